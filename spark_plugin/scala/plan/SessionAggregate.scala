package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.execution.{ProjectExec, SortExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.{BaseAggregateExec, MergingSessionsExec}
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.types.LongType

/**
 * The plan that Spark makes of `groupBy(keys, session_window(...)).agg(...)` on a stream, recognised:
 *
 * {{{
 *   final Aggregate <- SessionWindowStateStoreSave <- MergingSessions <- SessionWindowStateStoreRestore <- Sort
 *     <- Exchange(keys) <- partial Aggregate(keys, session of the row) <- Project(session of the row)
 * }}}
 *
 * The plan in its place:
 *
 * {{{
 *   Project(results) <- GpuWindow <- Exchange(keys) <- ProtoSessions <- Project(session of the row)
 * }}}
 *
 * Where Spark is told to merge sessions before the shuffle (`...sessionWindow.merge.sessions.in.local.partition`), it
 * tests the merged sessions for lateness, and not the rows. Then its own operators below the shuffle stay.
 */
object SessionAggregate {
  import WindowedAggregate.{Found, unsorted}

  /**
   * The aggregation in this plan, or the reason why it cannot be offloaded.
   *
   * @param held sessions that a task keeps before the shuffle
   */
  def from(finalAggregate: BaseAggregateExec, save: SessionWindowStateStoreSaveExec, held: SessionsHeld)
      : Found[WindowedAggregate] = {
    val saved = SavedState.of(save)
    val session = save.sessionExpression
    val keys = save.keyWithoutSessionExpressions
    for {
      input <- save.child match {
        case MergingSessionsExec(_, _, _, _, _, _, _, _, _, restore: SessionWindowStateStoreRestoreExec) =>
          Right(unsorted(restore.child))
        case _ => Left(WindowedAggregate.UnknownShape)
      }
      named = NamedResults.of(finalAggregate, keys, save.output)
      _ <- WindowedAggregate.keysTravel(keys, named.keys)
      watermarked <- WindowedAggregate.eventTimeIsWindow(saved, Some(session))
      below = input match {
        case exchange: ShuffleExchangeExec => exchange.child
        case other => other // the rows were partitioned by these keys already
      }
      late = saved.late.filter(_ => watermarked)
      protos <- protoSessions(below, keys, session, late, held)
      functions <- WindowedAggregate.functionsOf(protos._1)
      _ <- functions.find(MergeSpec.isWide).map(f =>
        s"${f.prettyName} over sessions orders by what fits 64 bits, on gpuwin").toLeft(())
      merges <- MergeSpec.ofAll(functions, pieces = true)
    } yield {
      val cells = input match {
        case exchange: ShuffleExchangeExec => exchange.copy(child = protos._2)
        case _ => protos._2
      }
      val sessionAt = Some(save.output.indexWhere(_.exprId == session.exprId))
      WindowedAggregate(saved, SessionShape, keys, sessionAt, merges, functions, named, cells, watermarked, None,
        WindowedAggregate.resultProjection(finalAggregate, save.output, sessionAt))
    }
  }

  /** Whether Spark's own merging can follow that of proto-sessions, or the reason why not. */
  def inAnyOrder(functions: Seq[AggregateFunction]): Found[Unit] =
    for {
      merges <- MergeSpec.ofAll(functions)
      _ <- merges.find(m => Arrival.decides(m.merge)).map(_ =>
        "an aggregate depends on the order of rows, which merging sessions does not keep").toLeft(())
    } yield ()

  /**
   * The plan that yields (keys, start, end, buffers, arrivals) in place of the one below the shuffle, and its
   * aggregates.
   *
   * A value arrives at the event time of its row, since Spark adds the rows of a session in order of that. Rows become
   * proto-sessions; but of buffers that stay in [[Pieces]] they are what Spark's partial aggregate makes of them.
   */
  def protoSessions(below: SparkPlan, keys: Seq[Attribute], session: Attribute, late: Option[Long],
      held: SessionsHeld): Found[(Seq[AggregateExpression], SparkPlan)] = {
    val bounds = Seq("start", "end").map(AttributeReference(_, LongType, nullable = false)())
    below match {
      case partial: BaseAggregateExec if partial.aggregateExpressions.forall(_.mode == Partial) =>
        val rows = unsorted(partial.child)
        val grouping = keys.flatMap(k => partial.groupingExpressions.find(_.exprId == k.exprId))
        val functions = partial.aggregateExpressions.map(_.aggregateFunction)
        val ordered = functions.find(Arrival.isOf).map(_.prettyName)
        lazy val found = SessionBounds(rows, session, grouping ++ partial.aggregateExpressions)
        if (functions.exists(Pieces.areOf) && (ordered.isEmpty || found.oneGap)) {
          val made = PartialAggregate.over(partial, partial.groupingExpressions, partial.aggregateExpressions,
            partial.resultExpressions, partial.child)
          val cells = if (found.oneGap) made else byEnd(made, session)
          Right((partial.aggregateExpressions, asTheyCome(cells, partial.aggregateExpressions, keys, session)))
        } else if (grouping.length != keys.length || !rows.output.exists(_.exprId == session.exprId))
          Left("its session is computed in a way that gpuwin does not know")
        else if (ordered.isDefined && !found.oneGap)
          Left(s"${ordered.get} over sessions needs a gap that is the same for all rows")
        else {
          val aggregates = ValueInTime.of(partial.aggregateExpressions, found.start)
          val output = keys ++ bounds ++ aggregates.flatMap(_.aggregateFunction.inputAggBufferAttributes)
          val made = ProtoSessionsExec(grouping, found.start, found.end, aggregates, late, held, output, found.plan)
          val wanted = keys ++ bounds ++ ValueInTime.columns(aggregates)
          Right((partial.aggregateExpressions, if (wanted == output) made else ProjectExec(wanted, made)))
        }
      case merging: MergingSessionsExec if merging.aggregateExpressions.forall(_.mode == PartialMerge) =>
        Right((merging.aggregateExpressions, asTheyCome(merging, merging.aggregateExpressions, keys, session)))
      case _ => Left("there is no partial aggregate below the shuffle")
    }
  }

  /** Cells in the order of Spark where their gaps differ: those of equal starts come by their ends. */
  private def byEnd(cells: SparkPlan, session: Attribute): SparkPlan =
    SortExec(Seq(SortOrder(GetStructField(session, 1), Ascending)), global = false, cells)

  /** Sessions as Spark makes them below the shuffle. The order in which it adds them is that of their starts. */
  private def asTheyCome(sessions: SparkPlan, aggregates: Seq[AggregateExpression], keys: Seq[Attribute],
      session: Attribute): SparkPlan = {
    def bound(at: Int): Expression = {
      val field = GetStructField(session, at)
      KnownNotNull(PreciseTimestampConversion(field, field.dataType, LongType))
    }
    val functions = aggregates.map(_.aggregateFunction)
    val arrivals = functions.filter(Arrival.isOf).map(_ => Alias(bound(0), "arrival")())
    val place = Seq(Alias(bound(0), "start")(), Alias(bound(1), "end")())
    ProjectExec(keys ++ place ++ functions.flatMap(_.inputAggBufferAttributes) ++ arrivals, sessions)
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
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

  /** The merges whose result does not depend on the order in which rows come. */
  private val OrderFree = Set("sum", "min", "max", "moments", "moments3", "moments4", "comoments", "correlation",
    "decimal_sum", "decimal_avg_sum", "bit_and", "bit_or", "bit_xor")

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
        case _ => Left("its plan has a shape that gpuwin does not know")
      }
      _ <- WindowedAggregate.keysTravel(keys)
      watermarked <- WindowedAggregate.eventTimeIsWindow(saved, session)
      below = input match {
        case exchange: ShuffleExchangeExec => exchange.child
        case other => other // the rows were partitioned by these keys already
      }
      late = saved.late.filter(_ => watermarked)
      protos <- protoSessions(below, keys, session, late, held)
      functions <- WindowedAggregate.functionsOf(protos._1)
      merges <- mergesOf(functions)
    } yield {
      val cells = input match {
        case exchange: ShuffleExchangeExec => exchange.copy(child = protos._2)
        case _ => protos._2
      }
      WindowedAggregate(saved, SessionShape, keys, save.output.indexWhere(_.exprId == session.exprId), merges,
        functions, NamedResults.of(finalAggregate, keys, save.output), cells, watermarked, None,
        WindowedAggregate.resultProjection(finalAggregate, save.output))
    }
  }

  /** The merges of proto-sessions, or the reason why rows cannot become such. */
  def mergesOf(functions: Seq[AggregateFunction]): Found[Seq[MergeSpec]] =
    for {
      _ <- functions.find(!_.isInstanceOf[DeclarativeAggregate]).map(f =>
        s"${f.prettyName} over session windows is written as code, which gpuwin cannot run row by row").toLeft(())
      merges <- MergeSpec.ofAll(functions)
      _ <- merges.find(m => !OrderFree(m.merge)).map(_ =>
        "an aggregate depends on the order of rows, which merging sessions does not keep").toLeft(())
    } yield merges

  /** The plan that yields (keys, start, end, buffers) in place of the one below the shuffle, and its aggregates. */
  def protoSessions(below: SparkPlan, keys: Seq[Attribute], session: Attribute, late: Option[Long],
      held: SessionsHeld): Found[(Seq[AggregateExpression], SparkPlan)] = {
    val bounds = Seq("start", "end").map(AttributeReference(_, LongType, nullable = false)())
    below match {
      case partial: BaseAggregateExec if partial.aggregateExpressions.forall(_.mode == Partial) =>
        val rows = unsorted(partial.child)
        val grouping = keys.flatMap(k => partial.groupingExpressions.find(_.exprId == k.exprId))
        val buffers = partial.aggregateExpressions.flatMap(_.aggregateFunction.inputAggBufferAttributes)
        if (grouping.length != keys.length || !rows.output.exists(_.exprId == session.exprId))
          Left("its session is computed in a way that gpuwin does not know")
        else {
          val found = SessionBounds(rows, session, grouping ++ partial.aggregateExpressions)
          Right((partial.aggregateExpressions, ProtoSessionsExec(grouping, found.start, found.end,
            partial.aggregateExpressions, late, held, keys ++ bounds ++ buffers, found.plan)))
        }
      case merging: MergingSessionsExec if merging.aggregateExpressions.forall(_.mode == PartialMerge) =>
        val ends = bounds.zipWithIndex.map { case (b, i) =>
          val field = GetStructField(session, i)
          Alias(KnownNotNull(PreciseTimestampConversion(field, field.dataType, LongType)), b.name)(b.exprId)
        }
        val buffers = merging.aggregateExpressions.flatMap(_.aggregateFunction.inputAggBufferAttributes)
        Right((merging.aggregateExpressions, ProjectExec(keys ++ ends ++ buffers, merging)))
      case _ => Left("there is no partial aggregate below the shuffle")
    }
  }
}

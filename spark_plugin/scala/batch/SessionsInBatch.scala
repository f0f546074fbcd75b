package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LogicalPlan, Project, UnaryNode, Union}
import org.apache.spark.sql.execution.{PlanLater, ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.{BaseAggregateExec, MergingSessionsExec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{LongType, StructType}

/**
 * Sessions of batch queries, merged before the shuffle. Spark shuffles and sorts a row per event:
 *
 * {{{
 *   final Aggregate <- MergingSessions <- Sort(keys, session) <- Exchange(keys)
 *     <- partial Aggregate(keys, session of the row) <- Project(session of the row)
 * }}}
 *
 * Here rows of a task that overlap or meet become one row first, and what is above the shuffle stays Spark's:
 *
 * {{{
 *   final Aggregate <- MergingSessions <- Sort(keys, session) <- Exchange(keys)
 *     <- Project(session) <- ProtoSessions <- Project(session of the row)
 * }}}
 *
 * A condition on the session, which Spark's optimizer moves below the aggregation, stays there: it drops rows.
 */
object SessionsInBatch {
  import WindowedAggregate.Found

  def apply(found: BatchAggregation): Found[SparkPlan] = {
    val session = found.window
    for {
      _ <- Either.cond(GpuWindowConf.get(SQLConf.get, GpuWindowConf.BatchSessions).toBoolean, (),
        s"${GpuWindowConf.BatchSessions.key} is false")
      _ <- everyRowHasOne(found.child, session.exprId)
      _ <- WindowedAggregate.keysTravel(found.keys, found.keys.map(_.name))
      functions <- WindowedAggregate.functionsOf(found.aggregates)
      _ <- SessionAggregate.inAnyOrder(functions)
      whole <- found.plannedBySpark(rows(found.child, session.exprId))
      merging <- whole.children.head match {
        case m: MergingSessionsExec if m.sessionExpression.exprId == session.exprId => Right(m)
        case _ => Left(WindowsInBatch.UnknownPlan)
      }
      partial <- merging.child match {
        case p: BaseAggregateExec => Right(p)
        case _ => Left(WindowsInBatch.UnknownPlan)
      }
      held = SessionsHeld(GpuWindowConf.get(SQLConf.get, GpuWindowConf.SessionsHeld).toLong, inBatch = true)
      protos <- SessionAggregate.protoSessions(partial, found.keys, session, None, held)
    } yield whole.withNewChildren(Seq(merging.copy(child = withSession(protos._2, partial.output, session))))
  }

  /** The condition that the session is made below, where Spark's analyzer also drops the rows that have none. */
  private def everyRowHasOne(plan: LogicalPlan, session: ExprId): Found[Unit] = plan match {
    case Project(list, child) => made(list, child, session)
    case aggregate: Aggregate => made(aggregate.aggregateExpressions, aggregate.child, session)
    case union: Union =>
      val at = union.output.indexWhere(_.exprId == session)
      union.children.map(c => everyRowHasOne(c, c.output(at).exprId)).find(_.isLeft).getOrElse(Right(()))
    case unary: UnaryNode if unary.child.output.exists(_.exprId == session) => everyRowHasOne(unary.child, session)
    case other => Left(s"its session is computed below a ${other.nodeName}, where gpuwin does not look")
  }

  private def made(columns: Seq[NamedExpression], child: LogicalPlan, session: ExprId): Found[Unit] =
    columns.find(_.exprId == session) match {
      case Some(Alias(_: CreateNamedStruct, _)) => Right(())
      case Some(Alias(below: Attribute, _)) => everyRowHasOne(child, below.exprId)
      case Some(_: Attribute) => everyRowHasOne(child, session)
      case _ => Left("its session is computed in a way that gpuwin does not know")
    }

  /** The rows with their sessions. Where these are computed last, the projection is there to be seen. */
  private def rows(plan: LogicalPlan, session: ExprId): SparkPlan = plan match {
    case Project(list, child) if list.exists(e => e.exprId == session && e.isInstanceOf[Alias]) =>
      // The columns that are read, said here: Spark prunes those of a scan by the projection above it.
      val read = AttributeSet.fromAttributeSets(list.map(_.references))
      val columns = child.output.filter(read.contains)
      ProjectExec(list, PlanLater(if (columns.length == child.output.length) child else Project(columns, child)))
    case other => PlanLater(other)
  }

  /** Proto-sessions as rows of Spark's partial aggregate. */
  private def withSession(protos: SparkPlan, output: Seq[Attribute], session: Attribute): SparkPlan = {
    val Seq(start, end) = protos.output.filterNot(a => output.exists(_.exprId == a.exprId))
    val fields = session.dataType.asInstanceOf[StructType].fields
    val struct = CreateNamedStruct(fields.toSeq.zip(Seq(start, end)).flatMap { case (field, bound) =>
      Seq(Literal(field.name), PreciseTimestampConversion(bound, LongType, field.dataType))
    })
    ProjectExec(output.map {
      case a if a.exprId == session.exprId =>
        Alias(struct, a.name)(exprId = a.exprId, explicitMetadata = Some(a.metadata))
      case other => other
    }, protos)
  }
}

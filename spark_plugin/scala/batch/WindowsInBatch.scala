package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.catalyst.planning.PhysicalAggregation
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LogicalPlan}
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.classic.Strategy
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.aggregate.{AggUtils, BaseAggregateExec}
import org.apache.spark.sql.internal.SQLConf

/**
 * The planner strategy for aggregations by window of batch queries: sliding windows go to [[PanesInBatch]], sessions to
 * [[SessionsInBatch]]. What neither can plan is left to Spark, with the reason.
 *
 * There is no state to keep, so all of it runs in Spark's tasks, and the device service has no part in it.
 */
object WindowsInBatch extends Strategy {
  import WindowedAggregate.Found

  /** The reason, on a logical aggregation by window that was left to Spark. */
  val ReasonTag: TreeNodeTag[String] = TreeNodeTag("gpuwin.batch.reason")

  val UnknownPlan = "Spark plans it in a way that gpuwin does not know"

  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case aggregate: Aggregate if !aggregate.isStreaming && aggregate.groupingExpressions.exists(isWindow) =>
      decide(aggregate) match {
        case Right(planned) =>
          PlanLog.inBatch(planned, GpuWindowConf.get(SQLConf.get, GpuWindowConf.Explain))
          Seq(planned)
        case Left(reason) =>
          aggregate.setTagValue(ReasonTag, reason)
          Nil
      }
    case _ => Nil
  }

  private def isWindow(grouping: Expression): Boolean = WindowedAggregate.isWindow(grouping.dataType)

  private def decide(aggregate: Aggregate): Found[SparkPlan] =
    if (!GpuWindowConf.get(SQLConf.get, GpuWindowConf.Enabled).toBoolean) Left(s"${GpuWindowConf.Enabled.key} is false")
    else aggregate match {
      case PhysicalAggregation(grouping, functions, results, child) =>
        val aggregates = functions.collect { case a: AggregateExpression => a }
        if (aggregates.length != functions.length) Left("an aggregate is a Python function")
        else windowAmong(grouping).flatMap { window =>
          val found = BatchAggregation(grouping, window, aggregates, results, child)
          if (window.metadata.contains(SessionWindow.marker)) SessionsInBatch(found) else PanesInBatch(found)
        }
      case _ => Left(UnknownPlan)
    }

  private def windowAmong(grouping: Seq[NamedExpression]): Found[Attribute] = grouping.filter(isWindow) match {
    case Seq(one) if !grouping.exists(g => g.exprId != one.exprId && g.references.contains(one.toAttribute)) =>
      Right(one.toAttribute)
    case Seq(_) => Left("it groups by something computed from the window, too")
    case _ => Left("it groups by more than one window")
  }
}

/** An aggregation by one window, as Spark's optimizer left it. */
final case class BatchAggregation(grouping: Seq[NamedExpression], window: Attribute,
    aggregates: Seq[AggregateExpression], results: Seq[NamedExpression], child: LogicalPlan) {

  def keys: Seq[Attribute] = grouping.map(_.toAttribute).filterNot(_.exprId == window.exprId)

  /** The final aggregate of Spark's own plan over these rows. */
  def plannedBySpark(rows: SparkPlan): Either[String, BaseAggregateExec] =
    AggUtils.planAggregateWithoutDistinct(grouping.map(normalized), aggregates, results, rows) match {
      case Seq(whole: BaseAggregateExec) => Right(whole)
      case _ => Left(WindowsInBatch.UnknownPlan)
    }

  private def normalized(key: NamedExpression): NamedExpression = NormalizeFloatingNumbers.normalize(key) match {
    case named: NamedExpression => named
    case other => Alias(other, key.name)(exprId = key.exprId)
  }
}

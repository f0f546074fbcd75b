package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, AggregateFunction}
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.catalyst.planning.PhysicalAggregation
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, Expand, Filter, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.plans.physical.{ClusteredDistribution, Distribution, Partitioning, UnspecifiedDistribution}
import org.apache.spark.sql.classic.Strategy
import org.apache.spark.sql.execution.{ExpandExec, FilterExec, ProjectExec, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.aggregate.{AggUtils, BaseAggregateExec, HashAggregateExec, ObjectHashAggregateExec, SortAggregateExec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{BooleanType, LongType}

/**
 * Sliding windows of batch queries, by panes. Spark copies each row once per window that holds it, and aggregates the
 * copies:
 *
 * {{{
 *   final Aggregate(keys, window) <- Exchange(keys, window) <- partial Aggregate(keys, window) <- Expand
 * }}}
 *
 * Here each row is aggregated once, and what is copied after the shuffle is the buffers of a pane:
 *
 * {{{
 *   final Aggregate(keys, window) <- PaneWindows <- Exchange(keys) <- partial Aggregate(keys, pane) <- Project(pane)
 * }}}
 *
 * There is no state to keep, so all of it is Spark's own code, and the device service has no part in it.
 */
object PanesInBatch extends Strategy {

  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case aggregate: Aggregate if !aggregate.isStreaming && GpuWindowConf.get(SQLConf.get, GpuWindowConf.Enabled).toBoolean &&
        aggregate.child.exists(_.isInstanceOf[Expand]) =>
      aggregate match {
        case PhysicalAggregation(grouping, functions, results, child) =>
          byPanes(grouping, functions.collect { case a: AggregateExpression => a }, results, child).toSeq
        case _ => Nil
      }
    case _ => Nil
  }

  private def byPanes(grouping: Seq[NamedExpression], aggregates: Seq[AggregateExpression],
      results: Seq[NamedExpression], child: LogicalPlan): Option[SparkPlan] =
    for {
      window <- grouping.map(_.toAttribute).filter(a => WindowedAggregate.isWindow(a.dataType)) match {
        case Seq(one) => Some(one)
        case _ => None
      }
      if grouping.forall(g => g.exprId == window.exprId || WireType.of(g.dataType).isDefined)
      if aggregates.forall(a => !a.isDistinct && !a.references.contains(window))
      if mergesInAnyOrder(aggregates.map(_.aggregateFunction))
      rows <- physical(child)
      lowered <- LowerToPanes(rows, window.exprId).toOption
      planned <- AggUtils.planAggregateWithoutDistinct(grouping.map(normalized), aggregates, results, rows).headOption
      rewritten <- planned match {
        case whole: BaseAggregateExec => rewrite(whole, window, lowered)
        case _ => None
      }
    } yield rewritten

  /** Panes are merged in another order than Spark merges the rows of a window. */
  private def mergesInAnyOrder(functions: Seq[AggregateFunction]): Boolean =
    MergeSpec.ofAll(functions).exists(!_.exists(m => Arrival.decides(m.merge)))

  private def normalized(key: NamedExpression): NamedExpression = NormalizeFloatingNumbers.normalize(key) match {
    case named: NamedExpression => named
    case other => Alias(other, key.name)(exprId = key.exprId)
  }

  /** The operators between the aggregation and the Expand of its window, as Spark would plan them. */
  private def physical(plan: LogicalPlan): Option[SparkPlan] = plan match {
    case Project(list, child) => physical(child).map(ProjectExec(list, _))
    case Filter(condition, child) => physical(child).map(FilterExec(condition, _))
    case Expand(projections, output, child) => Some(ExpandExec(projections, output, planLater(child)))
    case _ => None
  }

  private def rewrite(whole: BaseAggregateExec, window: Attribute, lowered: Lowered): Option[SparkPlan] =
    whole.children.head match {
      case partial: BaseAggregateExec if lowered.window.overlap > 1 =>
        val pane = lowered.pane.toAttribute
        val grouping = partial.groupingExpressions.map(g => if (g.exprId == window.exprId) pane else g)
        val cells = over(partial, grouping, partial.resultExpressions.map(r => if (r.exprId == window.exprId) pane else r),
          lowered.plan)
        val output = cells.output.map(a => if (a.exprId == pane.exprId) window else a)
        val keys = partial.groupingExpressions.map(_.toAttribute).filterNot(_.exprId == window.exprId)
        Some(whole.withNewChildren(Seq(PaneWindowsExec(lowered.window, pane, window, keys, output, cells))))
      case _ => None
    }

  private def over(partial: BaseAggregateExec, grouping: Seq[NamedExpression], result: Seq[NamedExpression],
      rows: SparkPlan): SparkPlan = partial match {
    case a: HashAggregateExec => a.copy(groupingExpressions = grouping, resultExpressions = result, child = rows)
    case a: ObjectHashAggregateExec => a.copy(groupingExpressions = grouping, resultExpressions = result, child = rows)
    case a: SortAggregateExec => a.copy(groupingExpressions = grouping, resultExpressions = result, child = rows)
  }
}

/**
 * Copies the buffers of each pane, once per window that it lies in. All panes of a window must meet, so its input is
 * partitioned by the keys alone; without keys by nothing, and the aggregation above has the windows shuffled.
 */
case class PaneWindowsExec(definition: WindowDefinition, pane: Attribute, window: Attribute, keys: Seq[Attribute],
    output: Seq[Attribute], child: SparkPlan) extends UnaryExecNode {

  override def nodeName: String = "PaneWindows"
  override def simpleString(maxFields: Int): String = s"PaneWindows ${definition.describe}"
  override lazy val producedAttributes: AttributeSet = AttributeSet(window)
  override def requiredChildDistribution: Seq[Distribution] =
    Seq(if (keys.isEmpty) UnspecifiedDistribution else ClusteredDistribution(keys))
  override def outputPartitioning: Partitioning = child.outputPartitioning

  private def startOf(back: Long): Expression = {
    val sinceOrigin = Subtract(pane, Literal(definition.originUs))
    Subtract(Subtract(pane, Pmod(sinceOrigin, Literal(definition.slideUs))), Literal(back * definition.slideUs))
  }

  private def struct(back: Long): Expression = {
    val time = definition.time.dataType
    val start = startOf(back)
    CreateNamedStruct(Seq(
      Literal("start"), PreciseTimestampConversion(start, LongType, time),
      Literal("end"), PreciseTimestampConversion(Add(start, Literal(definition.sizeUs)), LongType, time)))
  }

  /** The oldest copies may end before the pane begins, where the size is no multiple of the slide. */
  private def copies: SparkPlan = {
    val at = output.indexWhere(_.exprId == window.exprId)
    val projections = (0L until definition.overlap).map(back => child.output.updated(at, struct(back)))
    if (definition.sizeUs % definition.slideUs == 0) ExpandExec(projections, output, child)
    else {
      val holds = (0L until definition.overlap).map(back => GreaterThan(Add(startOf(back), Literal(definition.sizeUs)), pane))
      val flag = AttributeReference("holds", BooleanType, nullable = false)()
      val expanded = ExpandExec(projections.zip(holds).map { case (p, h) => p :+ h }, output :+ flag, child)
      ProjectExec(output, FilterExec(flag, expanded))
    }
  }

  override protected def doExecute(): RDD[InternalRow] = copies.execute()
  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(child = newChild)
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, AggregateFunction,
  TypedImperativeAggregate}
import org.apache.spark.sql.catalyst.plans.logical.{Expand, Filter, LogicalPlan, Project}
import org.apache.spark.sql.execution.{ExpandExec, FilterExec, PlanLater, ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.internal.SQLConf

/**
 * Sliding windows of batch queries, by panes. Spark copies each row once per window that holds it, and aggregates the
 * copies:
 *
 * {{{
 *   final Aggregate(keys, window) <- Exchange(keys, window) <- partial Aggregate(keys, window) <- Expand
 * }}}
 *
 * Here each row is aggregated once, into its pane, and windows are made of panes after the shuffle:
 *
 * {{{
 *   Project(results) <- PaneWindows <- Sort(keys, pane) <- Exchange(keys)
 *     <- partial Aggregate(keys, pane) <- Project(pane)
 * }}}
 */
object PanesInBatch {
  import WindowedAggregate.Found

  /** The most panes of one window in memory. */
  private val MostPanes = 65536L

  def apply(found: BatchAggregation): Found[SparkPlan] = {
    val (window, aggregates) = (found.window, found.aggregates)
    for {
      rows <- physical(found.child, window)
      lowered <- LowerToPanes.ofSome(rows, window.exprId)
      _ <- worthwhile(lowered.window)
      _ <- WindowedAggregate.keysTravel(found.keys, found.keys.map(_.name))
      _ <- aggregates.find(_.references.contains(window)).map(a => s"${a.sql} aggregates the window itself").toLeft(())
      functions <- WindowedAggregate.functionsOf(aggregates)
      _ <- mergeInAnyOrder(functions)
      whole <- found.plannedBySpark(rows)
      planned <- rewrite(whole, window, lowered)
    } yield planned
  }

  /** A reason against panes, if any: with few copies of a row, sorting panes costs more than copying rows. */
  private def worthwhile(window: WindowDefinition): Found[Unit] = {
    val least = GpuWindowConf.get(SQLConf.get, GpuWindowConf.BatchOverlap).toLong
    val panes = window.sizeUs / window.paneUs
    if (window.overlap < 2) Left("a row lies in one window only, so there is nothing to save")
    else if (panes > MostPanes)
      Left(s"a window has $panes panes, more than the $MostPanes that are worth holding in memory")
    else if (window.overlap < least)
      Left(s"a row lies in ${window.overlap} windows only, fewer than ${GpuWindowConf.BatchOverlap.key}, $least")
    else Right(())
  }

  /** The condition that no result depends on the order of merges, which is not that of Spark's rows. */
  private def mergeInAnyOrder(functions: Seq[AggregateFunction]): Found[Unit] = {
    def ordered(f: AggregateFunction) = MergeSpec.ofAll(Seq(f)).exists(_.exists(m => Arrival.decides(m.merge)))
    MergeSpec.ofAll(functions, pieces = true).flatMap(_ => functions.find(ordered).map(f =>
      s"the result of ${f.prettyName} depends on the order of the rows, and panes do not keep it").toLeft(()))
  }

  /** The operators between the aggregation and where its window is made, as Spark would plan them. */
  private def physical(plan: LogicalPlan, window: Attribute): Found[SparkPlan] = plan match {
    case Project(list, child) => list.find(_.exprId == window.exprId) match {
      case Some(Alias(below: Attribute, _)) => physical(child, below).map(ProjectExec(list, _))
      case Some(_: Alias) => Right(ProjectExec(list, PlanLater(child)))
      case _ => physical(child, window).map(ProjectExec(list, _))
    }
    case Filter(condition, child) => physical(child, window).map(FilterExec(condition, _))
    case Expand(projections, output, child) =>
      val at = output.indexWhere(_.exprId == window.exprId)
      val own = if (at < 0) None else ComputedWindow.onlyOne(projections.map(_(at)))
      val rows = child.output.find(column => own.contains(column.exprId)) match {
        case Some(below) => physical(child, below) // of grouping sets that all have the window
        case None => Right(PlanLater(child))
      }
      rows.map(ExpandExec(projections, output, _))
    case other => Left(s"the window is computed below a ${other.nodeName}, where gpuwin does not look")
  }

  private def rewrite(whole: BaseAggregateExec, window: Attribute, lowered: Lowered): Found[SparkPlan] =
    whole.children.head match {
      case partial: BaseAggregateExec =>
        val pane = lowered.pane.toAttribute
        def paned[A <: NamedExpression](columns: Seq[A]): Seq[NamedExpression] =
          columns.map(c => if (c.exprId == window.exprId) pane else c)
        val cells = PartialAggregate.over(partial, paned(partial.groupingExpressions), partial.aggregateExpressions,
          paned(partial.resultExpressions), lowered.plan)
        val grouping = cells.output.take(partial.groupingExpressions.length)
        val merged = whole.aggregateExpressions.map(a => a.copy(aggregateFunction = inPieces(a.aggregateFunction)))
        val output = whole.groupingExpressions.map(_.toAttribute) ++
          merged.flatMap(_.aggregateFunction.aggBufferAttributes)
        val sent = WireValue.sent(partial.aggregateExpressions.map(_.aggregateFunction).filter(Pieces.areOf), cells)
        val windows =
          PaneWindowsExec(lowered.grid, grouping, pane, window, merged, output, lowered.keptWindows, sent)
        Right(WindowedAggregate.resultProjection(whole, output)(windows))
      case _ => Left(WindowsInBatch.UnknownPlan)
    }

  private def inPieces(function: AggregateFunction): AggregateFunction = function match {
    case typed: TypedImperativeAggregate[_] if Pieces.areOf(typed) => JoinedPieces(typed)
    case other => other
  }
}

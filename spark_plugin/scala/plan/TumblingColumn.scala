package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.plans.{InnerLike, JoinType, LeftAnti, LeftOuter, LeftSemi, RightOuter}
import org.apache.spark.sql.execution.{LocalTableScanExec, ProjectExec, SparkPlan, UnionExec}
import org.apache.spark.sql.execution.joins.BaseJoinExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinExec
import org.apache.spark.sql.types.LongType

/**
 * The pane of a row whose window has been computed already: below a union or a join, by a query that explodes an array
 * after it, or by an aggregation below, whose windows are grouped a second time. A tumbling window is a pane, so its
 * start is the pane's, wherever it was computed, as long as every row has a window and all of them lie on one grid.
 * (One sliding window does not tell the other windows of its row.)
 *
 * Spark's optimizer folds what is below a watermark of a batch without data, the window among it, into a relation
 * without rows. Its grid is then the one that was read from the batch before it was folded ([[PlannedColumns]]).
 */
object TumblingColumn {

  def apply(plan: SparkPlan, window: ExprId): Option[Lowered] =
    for (column <- plan.output.find(_.exprId == window); grid <- gridOf(plan, window)) yield {
      val start = GetStructField(column, 0)
      val pane = Alias(KnownNotNull(PreciseTimestampConversion(start, start.dataType, LongType)), "pane")()
      Lowered(ProjectExec(plan.output.filterNot(_.exprId == window) :+ pane, plan), pane.toAttribute, grid)
    }

  /** The grid of the column, if it can come from nothing but a tumbling `window(...)`. */
  private def gridOf(plan: SparkPlan, column: ExprId): Option[WindowDefinition] = {
    val computed = plan.expressions.flatMap(_.collectFirst { case a: Alias if a.exprId == column => a })
    (plan, computed) match {
      case (empty: LocalTableScanExec, _) if empty.rows.isEmpty => PlannedColumns.gridOf(column)
      case (union: UnionExec, _) =>
        val at = union.output.indexWhere(_.exprId == column)
        val grids = union.children.map(child => gridOf(child, child.output(at).exprId))
        val equal = grids.flatten.map(g => (g.sizeUs, g.originUs)).distinct.length == 1
        if (grids.forall(_.isDefined) && equal) grids.head else None
      case (_, Seq(Alias(renamed: AttributeReference, _))) if renamed.exprId != column => below(plan, renamed.exprId)
      case (_, Seq(Alias(struct, _))) => tumbling(struct)
      case (_, Seq()) => below(plan, column)
      case _ => None
    }
  }

  /** The grid of a struct that is a tumbling window. */
  private[gpuwin] def tumbling(struct: Expression): Option[WindowDefinition] = WindowDefinition.parse(struct) match {
    case Right((grid, 0)) if grid.overlap == 1 && grid.sizeUs == grid.slideUs => Some(grid)
    case _ => None
  }

  private def below(plan: SparkPlan, column: ExprId): Option[WindowDefinition] =
    plan.children.filter(_.output.exists(_.exprId == column)) match {
      case Seq(child) if plan.children.length == 1 || keepsRowsOf(plan, child) => gridOf(child, column)
      case _ => None
    }

  /** Whether a join leaves the columns of this side as they were: an outer join may put nulls in their place. */
  private def keepsRowsOf(join: SparkPlan, side: SparkPlan): Boolean = {
    val kind = join match {
      case j: BaseJoinExec => Some(j.joinType)
      case j: StreamingSymmetricHashJoinExec => Some(j.joinType)
      case _ => None
    }
    kind.exists(keepsRows(_, side eq join.children.head))
  }

  /** Whether a join leaves the columns of its first, or its second, side as they were. */
  private[gpuwin] def keepsRows(kind: JoinType, first: Boolean): Boolean = kind match {
    case _: InnerLike | LeftSemi | LeftAnti => true
    case LeftOuter => first
    case RightOuter => !first
    case _ => false
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.plans.{InnerLike, JoinType, LeftAnti, LeftOuter, LeftSemi, RightOuter}
import org.apache.spark.sql.execution.{ExpandExec, LocalTableScanExec, ProjectExec, SparkPlan, UnionExec}
import org.apache.spark.sql.execution.joins.BaseJoinExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinExec
import org.apache.spark.sql.types.LongType

/**
 * The pane of a row whose window has been computed already: below a union or a join, by a query that explodes an array
 * after it or asks for some of its windows, or by an aggregation below, whose windows are grouped a second time. A
 * tumbling window is a pane, so its start is the pane's, wherever it was computed, as long as every row has a window
 * and all of them lie on one grid. A sliding window does not tell the other windows of its row, so it is a pane itself.
 *
 * Spark's optimizer folds what is below a watermark of a batch without data, the window among it, into a relation
 * without rows. Its grid is then the one that was read from the batch before it was folded ([[PlannedColumns]]).
 */
object ComputedWindow {

  /**
   * The pane, if the column is a window of one grid.
   *
   * @param noted its grid, where the plan does not have it any more
   * @param kept  whether the column stays beside the pane, as an aggregate reads it
   */
  def apply(plan: SparkPlan, window: ExprId, noted: Option[WindowDefinition], kept: Boolean): Option[Lowered] =
    for {
      column <- plan.output.find(_.exprId == window)
      grid <- new ComputedWindow(noted).gridOf(plan, window)
    } yield {
      val start = GetStructField(column, 0)
      val given = Some(GivenShape(grid.sizeUs, grid.slideUs, grid.originUs)).filter(_ => !isTumbling(grid))
      val place = given.fold[Expression](PreciseTimestampConversion(start, start.dataType, LongType))(_.paneOf(column))
      val pane = Alias(KnownNotNull(place), "pane")()
      val others = plan.output.filter(kept || _.exprId != window)
      Lowered(ProjectExec(others :+ pane, plan), pane.toAttribute, grid, given)
    }

  /** The grid of a struct that is a tumbling window. */
  private[gpuwin] def tumbling(struct: Expression): Option[WindowDefinition] = WindowDefinition.parse(struct) match {
    case Right((grid, 0)) if isTumbling(grid) => Some(grid)
    case _ => None
  }

  private def isTumbling(grid: WindowDefinition): Boolean = grid.sizeUs == grid.slideUs

  /** The column that all copies of a row have the value of. */
  private[gpuwin] def onlyOne(copies: Seq[Expression]): Option[ExprId] = copies.distinct match {
    case Seq(a: AttributeReference) => Some(a.exprId)
    case _ => None
  }

  /** The grid of a column of which an Expand gives each copy of a row another window. */
  private[gpuwin] def slidingOf(output: Seq[Attribute], projections: Seq[Seq[Expression]], column: ExprId)
      : Option[WindowDefinition] = {
    val at = output.indexWhere(_.exprId == column)
    if (at < 0) None else WindowDefinition.ofCopies(projections.map(_(at))).toOption
  }

  /** The grid whose newest window of a row is known. */
  private[gpuwin] def slidingOf(newest: Expression): Option[WindowDefinition] = WindowDefinition.parse(newest) match {
    case Right((grid, 0)) => Some(grid)
    case _ => None
  }

  /** Whether a join leaves the columns of its first, or its second, side as they were. */
  private[gpuwin] def keepsRows(kind: JoinType, first: Boolean): Boolean = kind match {
    case _: InnerLike | LeftSemi | LeftAnti => true
    case LeftOuter => first
    case RightOuter => !first
    case _ => false
  }
}

/**
 * The search for the grid of a column in a plan.
 *
 * @param noted the grid of what was folded
 */
private final class ComputedWindow(noted: Option[WindowDefinition]) {
  /** The grid of the column, if it can come from nothing but `window(...)`. */
  def gridOf(plan: SparkPlan, column: ExprId): Option[WindowDefinition] = {
    val computed = plan.expressions.flatMap(_.collectFirst { case a: Alias if a.exprId == column => a })
    (plan, computed) match {
      case (empty: LocalTableScanExec, _) if empty.rows.isEmpty => noted
      case (union: UnionExec, _) =>
        val at = union.output.indexWhere(_.exprId == column)
        val grids = union.children.map(child => gridOf(child, child.output(at).exprId))
        if (grids.forall(_.exists(grid => grids.head.exists(_.isGridOf(grid))))) grids.head else None
      case (copies: ExpandExec, _) if !copies.child.output.exists(_.exprId == column) =>
        val made = copies.projections.map(_(copies.output.indexWhere(_.exprId == column)))
        ComputedWindow.onlyOne(made)
          .fold(ComputedWindow.slidingOf(copies.output, copies.projections, column))(gridOf(copies.child, _))
      case (windows: OverlappingWindowsExec, _) if windows.window.exprId == column =>
        ComputedWindow.slidingOf(windows.newest)
      case (_, Seq(Alias(renamed: AttributeReference, _))) if renamed.exprId != column => below(plan, renamed.exprId)
      case (_, Seq(Alias(struct, _))) => ComputedWindow.tumbling(struct)
      case (_, Seq()) => below(plan, column)
      case _ => None
    }
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
    kind.exists(ComputedWindow.keepsRows(_, side eq join.children.head))
  }
}

package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.optimizer.InlineCTE
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, Expand, Join, LogicalPlan, Project, Union, WithCTE}
import org.apache.spark.sql.catalyst.rules.Rule

/**
 * The window columns of the batch that a thread plans, as the batch was before the optimizer folded it: sides of a
 * union that bring no rows are gone then, and so is all that is below a watermark of a batch without data. The rule
 * notes them at the end of its analysis.
 *
 * A query analyses each batch anew and plans it at once, in the thread of the query. So notes are the thread's: what
 * another query calls by the same id, and a second query of one DataFrame does, is never among them.
 */
object PlannedColumns extends Rule[LogicalPlan] {
  /** What is known of a column of windows. */
  private sealed trait Known
  private final case class Tumbling(grid: WindowDefinition) extends Known
  /** One of the windows of a row. */
  private final case class Sliding(grid: Option[WindowDefinition]) extends Known
  /** Of a union whose sides have more than one grid, or sliding windows; and the names that it has and had. */
  private final case class Mixed(names: Set[ExprId]) extends Known
  private type Columns = Map[ExprId, Known]

  private final class Notes {
    /** Grids of columns; none where a column has no grid, or another one, somewhere else in the plan. */
    val grids = mutable.Map.empty[ExprId, Option[WindowDefinition]]
    /** Columns that are grouped by, or what they were called below, and are mixed. */
    val mixed = mutable.Set.empty[ExprId]
    /** Columns that are grouped by and are not. */
    val others = mutable.Set.empty[ExprId]
  }

  private val noted = new ThreadLocal[Notes] { override def initialValue: Notes = new Notes }

  /** The grid of a column of the batch that this thread plans, if it is known. */
  def gridOf(column: ExprId): Option[WindowDefinition] = noted.get.grids.get(column).flatten

  /** Whether a column that is grouped by is a union of windows of several grids, or of sliding ones. */
  def isMixed(column: ExprId): Boolean = noted.get.mixed(column) && !noted.get.others(column)

  /** The plan as it is. It is noted if it is that of a stream. */
  override def apply(plan: LogicalPlan): LogicalPlan = {
    if (plan.resolved && plan.isStreaming) {
      noted.set(new Notes)
      below(if (plan.exists(_.isInstanceOf[WithCTE])) InlineCTE(alwaysInline = true)(plan) else plan)
    }
    plan
  }

  /** The columns of a plan that are windows, as [[ComputedWindow]] and [[LowerToPanes]] find them in a physical one. */
  private def below(plan: LogicalPlan): Columns = {
    val children = plan.children.map(below)
    val found: Columns = plan match {
      case union: Union =>
        val sides = union.children.zip(children).map { case (side, known) => side.output.map(c => known.get(c.exprId)) }
        union.output.zip(sides.transpose).flatMap { case (column, sides) => united(column, sides) }.toMap
      case join: Join =>
        children.zip(Seq(true, false)).collect {
          case (known, first) if ComputedWindow.keepsRows(join.joinType, first) => known
        }.foldLeft(Map.empty: Columns)(_ ++ _)
      case Project(columns, _) => children.head ++ computed(columns, children.head)
      case aggregate: Aggregate =>
        aggregate.groupingExpressions.collect { case a: Attribute => a.exprId }.foreach { key =>
          children.head.get(key) match {
            case Some(Mixed(names)) => noted.get.mixed ++= names
            case _ => noted.get.others += key
          }
        }
        children.head ++ computed(aggregate.aggregateExpressions, children.head)
      case expand: Expand => children.head ++ expand.producedAttributes.map { made =>
        val copies = expand.projections.map(_(expand.output.indexWhere(_.exprId == made.exprId)))
        made.exprId -> ComputedWindow.onlyOne(copies).flatMap(children.head.get)
          .getOrElse(Sliding(ComputedWindow.slidingOf(expand.output, expand.projections, made.exprId)))
      }
      case windows: OverlappingWindows =>
        children.head + (windows.window.exprId -> Sliding(ComputedWindow.slidingOf(windows.newest)))
      case _ => if (children.length == 1) children.head else Map.empty
    }
    val windows = plan.output.filter(column => WindowedAggregate.isWindow(column.dataType)).map(_.exprId)
    windows.foreach { column =>
      val grid = found.get(column).flatMap {
        case Tumbling(grid) => Some(grid)
        case Sliding(grid) => grid
        case _: Mixed => None
      }
      noted.get.grids(column) = noted.get.grids.getOrElse(column, grid).filter(known => grid.exists(known.isGridOf))
    }
    found.filter { case (column, _) => windows.contains(column) }
  }

  /** What a column of a union is, by what it is in each side. */
  private def united(column: Attribute, sides: Seq[Option[Known]]): Option[(ExprId, Known)] = {
    val grids = sides.collect { case Some(Tumbling(grid)) => grid }
    if (grids.exists(!_.isGridOf(grids.head)) || sides.flatten.exists(!_.isInstanceOf[Tumbling]))
      Some(column.exprId -> Mixed(Set(column.exprId)))
    else if (grids.length == sides.length) Some(column.exprId -> Tumbling(grids.head))
    else None
  }

  private def computed(columns: Seq[NamedExpression], known: Columns): Columns = columns.collect {
    case a @ Alias(renamed: AttributeReference, _) => known.get(renamed.exprId).map {
      case Mixed(names) => a.exprId -> Mixed(names + a.exprId)
      case other => a.exprId -> other
    }
    case a @ Alias(struct: CreateNamedStruct, _) => ComputedWindow.tumbling(struct).map(a.exprId -> Tumbling(_))
  }.flatten.toMap
}

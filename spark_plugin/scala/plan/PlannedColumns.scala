package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, Join, LogicalPlan, Project, Union}
import org.apache.spark.sql.catalyst.rules.Rule

/**
 * The tumbling columns of the batch that a thread plans, and their grids, as the batch was before the optimizer folded
 * it. The rule notes them at the end of its analysis.
 *
 * A query analyses each batch anew and plans it at once, in the thread of the query. So notes are the thread's: what
 * another query calls by the same id, and a second query of one DataFrame does, is never among them.
 */
object PlannedColumns extends Rule[LogicalPlan] {
  private type Grids = Map[ExprId, WindowDefinition]
  private val grids = new ThreadLocal[Grids]

  /** The grid of a column of the batch that this thread plans, if it is known. */
  def gridOf(column: ExprId): Option[WindowDefinition] = Option(grids.get).flatMap(_.get(column))

  /** The plan as it is. It is noted if it is that of a stream. */
  override def apply(plan: LogicalPlan): LogicalPlan = {
    if (plan.resolved && plan.isStreaming) grids.set(noted(plan))
    plan
  }

  /** The columns that are tumbling windows of one grid wherever the plan has them. */
  private def noted(plan: LogicalPlan): Grids = {
    val everywhere = mutable.Map.empty[ExprId, Option[WindowDefinition]]
    below(plan, (column, grid) => {
      val before = everywhere.getOrElse(column, grid)
      everywhere(column) = before.filter(known => grid.exists(place(_) == place(known)))
    })
    everywhere.collect { case (column, Some(grid)) => column -> grid }.toMap
  }

  /**
   * The columns of a plan that are tumbling windows, as [[TumblingColumn]] finds them in a physical plan.
   *
   * @param note what is called with each column of windows, at each node that has it, and with its grid if it is known.
   *             A union has the columns of its first side, so that one column may have a grid here and none there.
   */
  private def below(plan: LogicalPlan, note: (ExprId, Option[WindowDefinition]) => Unit): Grids = {
    val children = plan.children.map(below(_, note))
    val found: Grids = plan match {
      case union: Union =>
        val sides = union.children.zip(children).map { case (side, known) => side.output.map(c => known.get(c.exprId)) }
        union.output.zip(sides.transpose).collect {
          case (column, found) if found.forall(_.isDefined) && found.flatten.map(place).distinct.length == 1 =>
            column.exprId -> found.head.get
        }.toMap
      case join: Join =>
        children.zip(Seq(true, false)).collect {
          case (known, first) if TumblingColumn.keepsRows(join.joinType, first) => known
        }.foldLeft(Map.empty: Grids)(_ ++ _)
      case Project(columns, _) => children.head ++ computed(columns, children.head)
      case aggregate: Aggregate => children.head ++ computed(aggregate.aggregateExpressions, children.head)
      case _ => if (children.length == 1) children.head else Map.empty
    }
    val windows = plan.output.filter(column => WindowedAggregate.isWindow(column.dataType)).map(_.exprId)
    windows.foreach(column => note(column, found.get(column)))
    found.filter { case (column, _) => windows.contains(column) }
  }

  private def computed(columns: Seq[NamedExpression], known: Grids): Grids = columns.collect {
    case a @ Alias(renamed: AttributeReference, _) => known.get(renamed.exprId).map(a.exprId -> _)
    case a @ Alias(struct: CreateNamedStruct, _) => TumblingColumn.tumbling(struct).map(a.exprId -> _)
  }.flatten.toMap

  private def place(grid: WindowDefinition): (Long, Long) = (grid.sizeUs, grid.originUs)
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, Join, LogicalPlan, Union}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream

/**
 * The tumbling columns below aggregations of streaming queries, and their grids, as of the start of each query.
 */
object StartedColumns extends Rule[LogicalPlan] {
  private type Grids = Map[ExprId, WindowDefinition]
  /** Columns whose grids are kept; a query has a few. */
  private val Most = 10000
  private val grids = new Remembered[ExprId, WindowDefinition](Most)

  /** The grid of a column, if it is known. */
  def gridOf(column: ExprId): Option[WindowDefinition] = grids.get(column)

  /** The plan as it is. It is noted when it is that of a query that starts. */
  override def apply(plan: LogicalPlan): LogicalPlan = {
    plan match {
      case write: WriteToStream => write.inputQuery.foreach {
        case aggregate: Aggregate => noted(aggregate.child)
        case _ =>
      }
      case _ =>
    }
    plan
  }

  /** The columns of a plan that are tumbling windows, as [[TumblingColumn]] finds them in a physical plan. */
  private def noted(plan: LogicalPlan): Grids = {
    val found: Grids = plan match {
      case union: Union =>
        val sides = union.children.map { side =>
          val known = noted(side)
          side.output.map(column => known.get(column.exprId))
        }
        val equal: Grids = union.output.zip(sides.transpose).collect {
          case (column, found) if found.forall(_.isDefined) && found.flatten.map(place).distinct.length == 1 =>
            column.exprId -> found.head.get
        }.toMap
        forget(union.output.filterNot(column => equal.contains(column.exprId))) // its first side has the same columns
        equal
      case join: Join =>
        val sides = Seq(join.left -> true, join.right -> false).map { case (side, first) =>
          val known = noted(side)
          if (TumblingColumn.keepsRows(join.joinType, first)) known else { forget(side.output); Map.empty: Grids }
        }
        sides.reduce(_ ++ _)
      case _ =>
        val below = plan.children.map(noted).foldLeft(Map.empty: Grids)(_ ++ _)
        val made = plan.expressions.flatMap(_.collect {
          case a @ Alias(renamed: AttributeReference, _) => below.get(renamed.exprId).map(a.exprId -> _)
          case a @ Alias(struct: CreateNamedStruct, _) => TumblingColumn.tumbling(struct).map(a.exprId -> _)
        }).flatten
        (below ++ made).filter { case (column, _) => plan.outputSet.exists(_.exprId == column) }
    }
    found.foreach { case (column, grid) => grids.put(column, grid) }
    found
  }

  private def forget(columns: Seq[Attribute]): Unit = columns.foreach(column => grids.remove(column.exprId))

  private def place(grid: WindowDefinition): (Long, Long) = (grid.sizeUs, grid.originUs)
}

package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}

/**
 * The windows that a query keeps, by a condition on the window alone.
 *
 * @param condition over a row whose only column is the window
 */
final case class KeptWindows(grid: GridShape, condition: Expression) {
  @transient private lazy val bounds = new GenericInternalRow(2)
  @transient private lazy val window = new GenericInternalRow(Array[Any](bounds))

  /** The condition on a column. */
  def conditionOf(window: Attribute): Expression = condition.transform { case _: BoundReference => window }

  /** Whether the window of this start is kept. */
  def has(start: Long): Boolean = {
    bounds.update(0, start)
    bounds.update(1, Math.addExact(start, grid.sizeUs))
    condition.eval(window) == true
  }
}

object KeptWindows {
  /** The condition over a row whose only column is the window, if it is on the window alone. */
  def conditionOn(window: ExprId, condition: Expression): Option[Expression] =
    if (condition.deterministic && condition.references.forall(_.exprId == window) &&
        !SubqueryExpression.hasSubquery(condition)) Some(condition.transform {
      case a: Attribute if a.exprId == window => BoundReference(0, a.dataType, nullable = false)
    })
    else None
}

/**
 * Whether a pane lies in one of the windows that are kept. Rows of other panes are not to be read: Spark drops each of
 * their copies before it computes anything of them, which may fail.
 *
 * @param child the start of the pane
 */
case class InKeptWindow(child: Expression, kept: KeptWindows) extends UnaryExpression with Predicate {
  /** The answers for panes: many rows have the same one, and a pane may lie in thousands of windows. */
  @transient private lazy val known = mutable.LongMap.empty[Boolean]

  def holds(pane: Long): Boolean = {
    if (known.size >= InKeptWindow.MostKnown) known.clear()
    known.getOrElseUpdate(pane, kept.grid.windowsWith(pane).exists(kept.has))
  }

  override def nullable: Boolean = false
  override protected def nullSafeEval(pane: Any): Any = holds(pane.asInstanceOf[Long])
  override protected def doGenCode(ctx: CodegenContext, ev: ExprCode): ExprCode = {
    val self = ctx.addReferenceObj("inKeptWindow", this)
    defineCodeGen(ctx, ev, pane => s"$self.holds($pane)")
  }
  override protected def withNewChildInternal(newChild: Expression): InKeptWindow = copy(child = newChild)
}

object InKeptWindow {
  private val MostKnown = 65536
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{CodegenSupport, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo

/**
 * Cells of one operator, passed on as they are. They differ from those of every other operator, so Spark shuffles them
 * for this one alone.
 *
 * Spark shuffles by window and key, so two aggregations of one stream have shuffles of their own. Cells are shuffled by
 * key: those of two windows with one pane would be equal, Spark would put a reference to the first shuffle in the place
 * of the second, and would not find the watermark below the second operator when it plans the next batch.
 */
case class OperatorCellsExec(operator: Long, child: SparkPlan) extends UnaryExecNode with CodegenSupport {
  override def nodeName: String = "OperatorCells"
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering
  override protected def withNewChildInternal(newChild: SparkPlan): OperatorCellsExec = copy(child = newChild)

  override protected def doExecute(): RDD[InternalRow] = child.execute()

  override def supportCodegen: Boolean = child match {
    case c: CodegenSupport => c.supportCodegen
    case _ => false
  }
  override def inputRDDs(): Seq[RDD[InternalRow]] = child.asInstanceOf[CodegenSupport].inputRDDs()
  override protected def doProduce(ctx: CodegenContext): String = child.asInstanceOf[CodegenSupport].produce(ctx, this)

  /** The row goes on where the child made one, and else its columns. */
  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String =
    if (row.code.isEmpty) consume(ctx, null, row.value.toString) else consume(ctx, input)
}

object OperatorCellsExec {
  /** The plan with cells that are this operator's, where it shuffles them. */
  def in(plan: SparkPlan, operator: Option[StatefulOperatorStateInfo]): SparkPlan = plan match {
    case shuffle: ShuffleExchangeExec =>
      shuffle.copy(child = OperatorCellsExec(operator.fold(-1L)(_.operatorId), shuffle.child))
    case other => other
  }
}

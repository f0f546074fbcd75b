package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.types.LongType

/**
 * The arrival of a value, for the functions that need it: `first` and `last`, and `min_by` and `max_by` among equals.
 *
 * Spark merges the buffers of a window in the order in which they come. The panes of a window come in no order that
 * shows which held the first row, so each buffer takes with it the number of the row that its value is from. Rows are
 * numbered below the partial aggregate in the order of the input's partitions, and batches follow each other.
 */
object Arrival {

  /** Whether the result of this merge depends on the arrival. */
  def decides(merge: String): Boolean = Set("first", "last", "min_by", "max_by")(merge)

  /** Whether the buffers of this function come with an arrival. */
  def isOf(function: AggregateFunction): Boolean = function match {
    case _: First | _: Last | _: MaxBy | _: MinBy => true
    case _ => false
  }

  /** The rows with their number, where one of the aggregates needs it, and the partial aggregates of the numbers. */
  def numbered(rows: SparkPlan, aggregates: Seq[AggregateExpression]): (SparkPlan, Seq[AggregateExpression]) = {
    val number = Alias(MonotonicallyIncreasingID(), "arrival")()
    val added = aggregates.flatMap { a =>
      ofValue(a.aggregateFunction, number.toAttribute)
        .map(AggregateExpression(_, Partial, isDistinct = false, a.filter))
    }
    (if (added.isEmpty) rows else ProjectExec(rows.output :+ number, rows), added)
  }

  /** The column of the arrival that such a partial aggregate yields. */
  def column(aggregate: AggregateExpression): Attribute = aggregate.aggregateFunction.inputAggBufferAttributes.head

  private def ofValue(function: AggregateFunction, number: Attribute): Option[AggregateFunction] = function match {
    case f: First => Some(Min(counted(f.child, f.ignoreNulls, number)))
    case l: Last => Some(Max(counted(l.child, l.ignoreNulls, number)))
    case m: MaxBy => Some(MaxBy(number, m.orderingExpr))
    case m: MinBy => Some(MinBy(number, m.orderingExpr))
    case _ => None
  }

  private def counted(value: Expression, ignoreNulls: Boolean, number: Attribute): Expression =
    if (ignoreNulls && value.nullable) If(IsNotNull(value), number, Literal(null, LongType)) else number
}

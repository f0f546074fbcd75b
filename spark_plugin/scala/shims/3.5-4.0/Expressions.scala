package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.catalyst.expressions.{EvalMode, Expression, TimeAdd}
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum
import org.apache.spark.sql.types.DataType

/** The mode of a sum: what it does when it overflows. */
object SumMode {
  def of(sum: Sum): EvalMode.Value = sum.evalMode
}

/** A time of the day without a date: this Spark has no such type. */
object TimeOfDay {
  def unapply(dataType: DataType): Boolean = false
}

/** An instant and the interval that is added to it. */
object InstantPlusInterval {
  def unapply(expression: Expression): Option[(Expression, Expression)] = expression match {
    case TimeAdd(instant, interval, _) => Some((instant, interval))
    case _ => None
  }
}

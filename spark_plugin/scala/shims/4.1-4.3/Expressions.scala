package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.catalyst.expressions.{EvalMode, Expression, TimestampAddInterval}
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum
import org.apache.spark.sql.types.{DataType, TimeType}

/** The mode of a sum: what it does when it overflows. */
object SumMode {
  def of(sum: Sum): EvalMode.Value = sum.evalContext.evalMode
}

/** A time of the day without a date. */
object TimeOfDay {
  def unapply(dataType: DataType): Boolean = dataType.isInstanceOf[TimeType]
}

/** An instant and the interval that is added to it. */
object InstantPlusInterval {
  def unapply(expression: Expression): Option[(Expression, Expression)] = expression match {
    case TimestampAddInterval(instant, interval, _) => Some((instant, interval))
    case _ => None
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.types.{LongType, TimestampType}

/**
 * Grouping by the event time itself: each instant is a window of its own. Spark drops and evicts it once
 * `time <= watermark`, and a window once `end <= watermark`; so the window of an instant is the microsecond that ends
 * with it, and everything else is as for tumbling windows.
 *
 * Rows without a time are a group too, other than in windows. Their group is the last microsecond of 64 bits, which no
 * watermark reaches. So a row of that very time fails the query, and one of the first, whose microsecond would begin
 * before them.
 */
object EventTimeColumn {
  /** The end of the window of rows without a time. */
  val NoTime: Long = Long.MaxValue

  private val OutOfRange = "gpuwin cannot group by the first and the last event time that 64 bits of microseconds " +
    "can say, and a row has one of them. Filter such times out."

  def isOne(key: Attribute): Boolean =
    key.metadata.contains(EventTimeWatermark.delayKey) && key.dataType == TimestampType

  /**
   * The plan with the pane of each row, a microsecond.
   *
   * @param time the expression that the rows of the plan are grouped by
   */
  def lowered(plan: SparkPlan, time: Expression): Lowered = {
    val pane = Alias(paneOf(time), "pane")()
    Lowered(ProjectExec(plan.output :+ pane, plan), pane.toAttribute, WindowDefinition(time, 1, 1, 0))
  }

  /** The pane of an event time, a microsecond. */
  def paneOf(time: Expression): Expression = {
    val micros = PreciseTimestampConversion(time, time.dataType, LongType)
    val pane = If(Or(EqualTo(micros, Literal(NoTime)), EqualTo(micros, Literal(Long.MinValue))),
      Cast(new RaiseError(Literal(OutOfRange)), LongType), Subtract(micros, Literal(1L)))
    KnownNotNull(if (time.nullable) Coalesce(Seq(pane, Literal(NoTime - 1))) else pane)
  }
}

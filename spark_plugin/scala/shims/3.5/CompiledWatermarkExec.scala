package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec
import org.apache.spark.sql.gpuwin.CompiledWatermark
import org.apache.spark.unsafe.types.CalendarInterval

/** A watermark of Spark's with generated code ([[CompiledWatermark]]). In this Spark it has no id. */
class CompiledWatermarkExec(eventTime: Attribute, delay: CalendarInterval, child: SparkPlan)
  extends EventTimeWatermarkExec(eventTime, delay, child) with CompiledWatermark {

  override protected def withNewChildInternal(newChild: SparkPlan): CompiledWatermarkExec =
    new CompiledWatermarkExec(eventTime, delay, newChild)
}

object CompiledWatermarkExec {
  def of(w: EventTimeWatermarkExec): CompiledWatermarkExec = new CompiledWatermarkExec(w.eventTime, w.delay, w.child)
}

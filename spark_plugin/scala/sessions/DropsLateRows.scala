package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter

/**
 * A node below the shuffle that drops rows whose own session is late. Spark does so above it, and counts them there, so
 * the operator above counts them as its own.
 */
trait DropsLateRows extends SparkPlan {
  /** The metric of the rows that were dropped. */
  protected def droppedMetric: (String, SQLMetric) =
    DropsLateRows.Metric -> SQLMetrics.createMetric(sparkContext, "number of rows which are dropped by watermark")

  /** Rows dropped in this batch, as far as tasks have reported. */
  def droppedRows: Long = metrics.get(DropsLateRows.Metric).fold(0L)(_.value)
}

object DropsLateRows {
  val Metric = "numRowsDroppedByWatermark"

  /** Rows dropped below an operator, as far down as the next one. */
  def below(plan: SparkPlan): Long = plan match {
    case node: DropsLateRows => node.droppedRows
    case _: StateStoreWriter => 0L
    case other => other.children.map(below).sum
  }
}

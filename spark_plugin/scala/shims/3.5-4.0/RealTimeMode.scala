package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.SparkPlan

/** Real-Time Mode, which this Spark does not have. */
object RealTimeMode {
  def runs(plan: LogicalPlan): Boolean = false
  def runs(plan: SparkPlan): Boolean = false
}

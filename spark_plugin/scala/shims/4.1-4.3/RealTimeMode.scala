package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.datasources.v2.{RealTimeStreamScanExec, StreamingDataSourceV2ScanRelation}

/** Real-Time Mode: whether it runs the query whose batch was planned. */
object RealTimeMode {
  def runs(plan: LogicalPlan): Boolean = plan.exists {
    case scan: StreamingDataSourceV2ScanRelation => scan.relation.realTimeModeDuration.isDefined
    case _ => false
  }
  def runs(plan: SparkPlan): Boolean = plan.exists(_.isInstanceOf[RealTimeStreamScanExec])
}

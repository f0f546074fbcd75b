package org.apache.spark.sql.gpuwin.shims

import java.util.UUID

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.{IncrementalExecution, OffsetSeqMetadata, WatermarkPropagator}
import org.apache.spark.sql.gpuwin.CheckpointOwner
import org.apache.spark.sql.streaming.OutputMode

/** A streaming query that was not started. */
object UnstartedStream {
  /** The physical plan of its first batch. */
  def plan(session: SparkSession, query: LogicalPlan, mode: OutputMode): SparkPlan =
    new IncrementalExecution(session, query, mode, CheckpointOwner.NoCheckpoint, UUID.randomUUID, UUID.randomUUID, 0,
      None, OffsetSeqMetadata(0, 0), WatermarkPropagator.noop()).executedPlan
}

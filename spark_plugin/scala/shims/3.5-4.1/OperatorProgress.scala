package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.streaming.StateOperatorProgress

/** The progress of a stateful operator with another number of rows that were dropped as late. */
object OperatorProgress {
  def withDropped(progress: StateOperatorProgress, rows: Long): StateOperatorProgress =
    progress.copy(newNumRowsUpdated = progress.numRowsUpdated, newNumRowsDroppedByWatermark = rows)
}

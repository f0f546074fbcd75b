/*
 * Classes of Spark under the packages to which later versions have moved them, so that one import serves all.
 */
package org.apache.spark.sql.execution
package streaming

package operators {
  package object stateful {
    type EventTimeWatermarkExec = streaming.EventTimeWatermarkExec
    type SessionWindowStateStoreRestoreExec = streaming.SessionWindowStateStoreRestoreExec
    type SessionWindowStateStoreSaveExec = streaming.SessionWindowStateStoreSaveExec
    type StatefulOperatorCustomMetric = streaming.StatefulOperatorCustomMetric
    type StatefulOperatorStateInfo = streaming.StatefulOperatorStateInfo
    type StateStoreRestoreExec = streaming.StateStoreRestoreExec
    type StateStoreSaveExec = streaming.StateStoreSaveExec
    type StateStoreWriter = streaming.StateStoreWriter
    type StreamingDeduplicateExec = streaming.StreamingDeduplicateExec
    type StreamingDeduplicateWithinWatermarkExec = streaming.StreamingDeduplicateWithinWatermarkExec
    val StreamingSessionWindowStateManager = streaming.state.StreamingSessionWindowStateManager
    val StatefulOperatorCustomSumMetric = streaming.StatefulOperatorCustomSumMetric
    val StateStoreRestoreExec = streaming.StateStoreRestoreExec
    val StreamingDeduplicateExec = streaming.StreamingDeduplicateExec
  }

  package stateful {
    package object join {
      type StreamingSymmetricHashJoinExec = streaming.StreamingSymmetricHashJoinExec
    }
  }
}

package object checkpointing {
  type CheckpointFileManager = streaming.CheckpointFileManager
  type FileSystemBasedCheckpointFileManager = streaming.FileSystemBasedCheckpointFileManager
  val CheckpointFileManager = streaming.CheckpointFileManager
  val OffsetSeqMetadata = streaming.OffsetSeqMetadata
}

package object runtime {
  type IncrementalExecution = streaming.IncrementalExecution
  type StreamExecution = streaming.StreamExecution
  type StreamingQueryWrapper = streaming.StreamingQueryWrapper
  val StreamingCheckpointConstants = streaming.StreamingCheckpointConstants
  val WatermarkPropagator = streaming.WatermarkPropagator
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.streaming.OutputMode

/** The fields that Spark's two operators that save windowed state have in common. Watermarks in milliseconds. */
final case class SavedState(output: Seq[Attribute], info: Option[StatefulOperatorStateInfo],
    outputMode: Option[OutputMode], late: Option[Long], eviction: Option[Long])

object SavedState {
  def of(save: StateStoreSaveExec): SavedState = SavedState(save.output, save.stateInfo, save.outputMode,
    save.eventTimeWatermarkForLateEvents, save.eventTimeWatermarkForEviction)
  def of(save: SessionWindowStateStoreSaveExec): SavedState = SavedState(save.output, save.stateInfo, save.outputMode,
    save.eventTimeWatermarkForLateEvents, save.eventTimeWatermarkForEviction)
}

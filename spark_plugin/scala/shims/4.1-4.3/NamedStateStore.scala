package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.gpuwin.DeviceOperator

/** A stateful operator whose state store has a name of its own. */
trait NamedStateStore extends StateStoreWriter {
  override val stateStoreNames: Seq[String] = Seq(DeviceOperator.StoreName)
}

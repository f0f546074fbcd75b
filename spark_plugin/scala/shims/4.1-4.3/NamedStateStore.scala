package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter

/** A stateful operator whose state store has a name of its own. */
trait NamedStateStore extends StateStoreWriter {
  def storeName: String
  override val stateStoreNames: Seq[String] = Seq(storeName)
}

package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog

/** The state store of one partition's log at one version, open for reading only, and known to no other task. */
object SavedStore {
  /** What `read` makes of the store; `checkpointId` is the id of the version, where its commit gave it one. */
  def reading[A](id: StateStoreProviderId, version: Long, checkpointId: Option[String], conf: StateStoreConf,
      hadoopConf: Configuration)(read: ReadStateStore => A): A = {
    val provider = StateStoreProvider.createAndInit(id, StateLog.KeySchema, StateLog.ValueSchema,
      NoPrefixKeyStateEncoderSpec(StateLog.KeySchema), useColumnFamilies = false, conf, hadoopConf,
      useMultipleValuesPerKey = false, stateSchemaProvider = None)
    try {
      val store = provider.getReadStore(version, checkpointId)
      try read(store) finally store.abort()
    } finally provider.close()
  }
}

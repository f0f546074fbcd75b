package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog

/** The state store of one partition's log at one version, open for reading only, and known to no other task. */
object SavedStore {
  /** What `read` makes of the store; in this Spark a version has no `checkpointId`. */
  def reading[A](id: StateStoreProviderId, version: Long, checkpointId: Option[String], conf: StateStoreConf,
      hadoopConf: Configuration)(read: ReadStateStore => A): A = {
    val provider = StateStoreProvider.createAndInit(id, StateLog.KeySchema, StateLog.ValueSchema, 0, conf, hadoopConf)
    try {
      val store = provider.getReadStore(version)
      try read(store) finally store.abort()
    } finally provider.close()
  }
}

package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog

/** The state store of one partition's log at one version, known to no other task. */
object SavedStore {
  /** What `read` makes of the store; in this Spark a version has no `checkpointId`. */
  def reading[A](id: StateStoreProviderId, version: Long, checkpointId: Option[String], conf: StateStoreConf,
      hadoopConf: Configuration)(read: ReadStateStore => A): A = {
    val provider = open(id, conf, hadoopConf)
    try {
      val store = provider.getReadStore(version)
      try read(store) finally store.abort()
    } finally provider.close()
  }

  /** Lets `write` fill a store that has nothing yet, and commit it. */
  def writing(id: StateStoreProviderId, conf: StateStoreConf, hadoopConf: Configuration)(write: StateStore => Unit)
      : Unit = {
    val provider = open(id, conf, hadoopConf)
    try {
      val store = provider.getStore(0)
      try write(store) finally if (!store.hasCommitted) store.abort()
    } finally provider.close()
  }

  private def open(id: StateStoreProviderId, conf: StateStoreConf, hadoopConf: Configuration): StateStoreProvider =
    StateStoreProvider.createAndInit(id, StateLog.KeySchema, StateLog.ValueSchema, 0, conf, hadoopConf)
}

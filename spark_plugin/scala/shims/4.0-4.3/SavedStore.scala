package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog
import org.apache.spark.sql.types.StructType

/** The state store of one partition's log at one version, known to no other task. */
object SavedStore {
  /** What `read` makes of the store; `checkpointId` is the id of the version, where its commit gave it one. */
  def reading[A](id: StateStoreProviderId, version: Long, checkpointId: Option[String], conf: StateStoreConf,
      hadoopConf: Configuration)(read: ReadStateStore => A): A = {
    val provider = open(id, StateLog.KeySchema, StateLog.ValueSchema, 0, conf, hadoopConf)
    try {
      val store = provider.getReadStore(version, checkpointId)
      try read(store) finally store.abort()
    } finally provider.close()
  }

  /** Lets `write` fill a store that has nothing yet, and commit it. `prefix`: keys to scan by. */
  def writing(id: StateStoreProviderId, keys: StructType, values: StructType, prefix: Int, conf: StateStoreConf,
      hadoopConf: Configuration)(write: StateStore => Unit): Unit = {
    val provider = open(id, keys, values, prefix, conf, hadoopConf)
    try {
      val store = provider.getStore(0, None)
      try write(store) finally if (!store.hasCommitted) store.abort()
    } finally provider.close()
  }

  /** A store of Spark's own, open for reading until it is closed by what comes with it. */
  def sparks(id: StateStoreProviderId, version: Long, keys: StructType, values: StructType, prefix: Int,
      conf: StateStoreConf, hadoopConf: Configuration): (ReadStateStore, () => Unit) = {
    val provider = open(id, keys, values, prefix, conf, hadoopConf)
    val store =
      try provider.getReadStore(version, None)
      catch { case e: Throwable => provider.close(); throw e }
    (store, () => try store.abort() finally provider.close())
  }

  /** Whether the versions of the stores have ids. */
  def hasIds(info: StatefulOperatorStateInfo): Boolean = info.stateStoreCkptIds.isDefined

  private def open(id: StateStoreProviderId, keys: StructType, values: StructType, prefix: Int, conf: StateStoreConf,
      hadoopConf: Configuration): StateStoreProvider =
    StateStoreProvider.createAndInit(id, keys, values,
      if (prefix > 0) PrefixKeyScanStateEncoderSpec(keys, prefix) else NoPrefixKeyStateEncoderSpec(keys),
      useColumnFamilies = false, conf, hadoopConf, useMultipleValuesPerKey = false, stateSchemaProvider = None)
}

package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog

/** The state store of one partition's log. */
object LogStore {
  def get(id: StateStoreProviderId, info: StatefulOperatorStateInfo, conf: StateStoreConf,
      hadoopConf: Configuration): StateStore =
    StateStore.get(id, StateLog.KeySchema, StateLog.ValueSchema, 0, info.storeVersion, conf, hadoopConf)
}

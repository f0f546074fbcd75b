package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.StateLog

/** The state store of one partition's log. */
object LogStore {
  def get(id: StateStoreProviderId, info: StatefulOperatorStateInfo, conf: StateStoreConf,
      hadoopConf: Configuration): StateStore =
    StateStore.get(id, StateLog.KeySchema, StateLog.ValueSchema, NoPrefixKeyStateEncoderSpec(StateLog.KeySchema),
      info.storeVersion, info.getStateStoreCkptId(id.storeId.partitionId).map(_.head), None, useColumnFamilies = false,
      conf, hadoopConf)
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.{Partition, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.shims.LogStore
import org.apache.spark.sql.internal.SessionState
import org.apache.spark.sql.vectorized.ColumnarBatch

/**
 * One partition of a [[DeviceOperator]] with its state store. As in Spark's own state store RDD, a task prefers the
 * executor that holds the partition's state, which is also where it is resident on the device.
 */
class GpuWindowRDD(
    cells: RDD[InternalRow],
    operator: DeviceOperator,
    info: StatefulOperatorStateInfo,
    sessionState: SessionState,
    @transient private val coordinator: Option[StateStoreCoordinatorRef])
  extends BaseStateStoreRDD[InternalRow, ColumnarBatch](
    cells, info.checkpointLocation, info.queryRunId, info.operatorId, sessionState, coordinator) {

  override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions

  override def getStateProviderId(partition: Partition): StateStoreProviderId =
    StateStoreProviderId(
      StateStoreId(info.checkpointLocation, info.operatorId, partition.index, operator.storeName),
      info.queryRunId)

  override def compute(partition: Partition, context: TaskContext): Iterator[ColumnarBatch] = {
    val store = LogStore.get(getStateProviderId(partition), info, storeConf,
      StoreFiles.configuration(info.checkpointLocation, hadoopConfBroadcast.value.value))
    context.addTaskCompletionListener[Unit](_ => if (!store.hasCommitted) store.abort())
    val input = firstParent[InternalRow].iterator(partition, context)
    new WindowTask(operator, info, partition.index, context, new StateLog(store, info.storeVersion)).run(input)
  }
}

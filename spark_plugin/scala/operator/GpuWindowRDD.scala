package org.apache.spark.sql.gpuwin

import java.util.UUID

import org.apache.spark.{Partition, TaskContext}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.shims.LogStore
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.apache.spark.util.SerializableConfiguration

/**
 * One partition of a [[DeviceOperator]] with its state store. As in Spark's own state store RDD, a task prefers the
 * executor that holds the partition's state, which is also where it is resident in the service.
 *
 * Spark's class, which this one is not, broadcasts the Hadoop configuration anew for each batch.
 */
class GpuWindowRDD(
    cells: RDD[InternalRow],
    operator: DeviceOperator,
    info: StatefulOperatorStateInfo,
    storeConf: StateStoreConf,
    hadoopConf: Broadcast[SerializableConfiguration],
    @transient private val coordinator: StateStoreCoordinatorRef)
  extends RDD[ColumnarBatch](cells) {

  override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions

  override protected def getPreferredLocations(partition: Partition): Seq[String] =
    coordinator.getLocation(storeOf(partition)).toSeq

  private def storeOf(partition: Partition): StateStoreProviderId =
    StateStoreProviderId(
      StateStoreId(info.checkpointLocation, info.operatorId, partition.index, operator.storeName),
      info.queryRunId)

  override def compute(partition: Partition, context: TaskContext): Iterator[ColumnarBatch] = {
    val store = LogStore.get(storeOf(partition), info, storeConf,
      StoreFiles.configuration(info.checkpointLocation, hadoopConf.value.value))
    context.addTaskCompletionListener[Unit](_ => if (!store.hasCommitted) store.abort())
    val input = firstParent[InternalRow].iterator(partition, context)
    new WindowTask(operator, info, partition.index, context, new StateLog(store, info.storeVersion)).run(input)
  }
}

object GpuWindowRDD {
  def apply(cells: RDD[InternalRow], operator: DeviceOperator, info: StatefulOperatorStateInfo,
      session: SparkSession): GpuWindowRDD =
    new GpuWindowRDD(cells, operator, info, new StateStoreConf(session.sessionState.conf),
      HadoopConfs.of(info.queryRunId, session), session.streams.stateStoreCoordinator)
}

/**
 * The Hadoop configurations of the queries that run in this application, each broadcast once. They are those of
 * sessions that Spark clones when a query starts, and do not change after that. A batch took some 20 milliseconds of
 * processor time to write a thousand settings on the driver, and to read them in its tasks.
 */
private object HadoopConfs {
  /** Runs that are remembered; of one that is forgotten the configuration is broadcast again. */
  private val Most = 256

  private val known = new Remembered[UUID, Broadcast[SerializableConfiguration]](Most)

  def of(run: UUID, session: SparkSession): Broadcast[SerializableConfiguration] = known.getOrMake(run)(
    session.sparkContext.broadcast(new SerializableConfiguration(session.sessionState.newHadoopConf())))
}

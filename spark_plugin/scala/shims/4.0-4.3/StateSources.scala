package org.apache.spark.sql.gpuwin

import scala.util.Try

import org.apache.hadoop.fs.Path
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
import org.apache.spark.sql.execution.datasources.v2.state.{StateSourceOptions, StateTable}
import org.apache.spark.sql.execution.datasources.v2.state.metadata.{StateMetadataTable, StateMetadataTableEntry}
import org.apache.spark.sql.execution.streaming.runtime.StreamingCheckpointConstants
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.unsafe.types.UTF8String

/**
 * The check that refuses to read state of gpuwin by Spark's source `statestore`, which knows Spark's stores only and
 * would report a missing file.
 */
class StateOfGpuwinIsNotSparks(session: SparkSession) extends (LogicalPlan => Unit) {
  override def apply(plan: LogicalPlan): Unit = plan.foreach {
    case r: DataSourceV2Relation if r.table.isInstanceOf[StateTable] =>
      for {
        checkpoint <- Option(r.options.get(StateSourceOptions.PATH))
        operator <- Try(r.options.getLong(StateSourceOptions.OPERATOR_ID, 0)).toOption
        if CheckpointOwner.operators(checkpoint, session.sessionState.newHadoopConf()).contains(operator)
      } throw new GpuWindowException(s"The state of operator $operator in $checkpoint was written by gpuwin, as " +
        "columnar segments in a store named gpuwin, and Spark's source statestore cannot read it. To see it, call " +
        s"gw.spark.read_state(spark, path, operator=$operator), or run: gpuwin state show $checkpoint --operator " +
        s"$operator. The source state-metadata lists the operators of a checkpoint, those of gpuwin under that name. " +
        "If this was an attempt to repartition it, and the query no longer starts " +
        s"(STREAMING_UNFINISHED_REPARTITION_DETECTED), run: gpuwin state repair $checkpoint")
    case _ =>
  }
}

/** The source `state-metadata` with gpuwin's operators under their name: Spark wrote the names that it had planned. */
object NamedStateMetadata extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = plan.resolveOperators {
    case r: DataSourceV2Relation if r.table.getClass == classOf[StateMetadataTable] =>
      r.copy(table = new NamedStateMetadata)
  }
}

class NamedStateMetadata extends StateMetadataTable {
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () => {
    val scan = super.newScanBuilder(options).build()
    val conf = SparkSession.active.sessionState.newHadoopConf()
    val checkpoint = options.get(StateSourceOptions.PATH)
    val ours = CheckpointOwner.operators(checkpoint, conf).toSet
    val state = new Path(checkpoint, StreamingCheckpointConstants.DIR_NAME_STATE).toString
    val rescaled = if (ours.isEmpty) None else StateStores.read(state, conf).stores.lastOption.map(_.partitions)
    new Scan {
      override def readSchema(): StructType = scan.readSchema()
      override def toBatch: Batch = {
        val batch = scan.toBatch
        new Batch {
          override def planInputPartitions(): Array[InputPartition] = batch.planInputPartitions()
          override def createReaderFactory(): PartitionReaderFactory =
            new NamedStateMetadataReaders(batch.createReaderFactory(), ours, rescaled)
        }
      }
    }
  }
}

class NamedStateMetadataReaders(rows: PartitionReaderFactory, ours: Set[Long], rescaled: Option[Int])
  extends PartitionReaderFactory {
  import NamedStateMetadataReaders._

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] = {
    val reader = rows.createReader(partition)
    new PartitionReader[InternalRow] {
      override def next(): Boolean = reader.next()
      override def close(): Unit = reader.close()
      override def get(): InternalRow = reader.get() match {
        case row: GenericInternalRow if ours.contains(row.getLong(Operator)) =>
          row.update(Name, UTF8String.fromString(DeviceOperator.Name))
          rescaled.foreach(row.update(Partitions, _))
          row
        case row => row
      }
    }
  }
}

object NamedStateMetadataReaders {
  private val Operator = StateMetadataTableEntry.schema.fieldIndex("operatorId")
  private val Name = StateMetadataTableEntry.schema.fieldIndex("operatorName")
  private val Partitions = StateMetadataTableEntry.schema.fieldIndex("numPartitions")
}

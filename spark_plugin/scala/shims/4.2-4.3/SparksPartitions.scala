package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.fs.Path
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.datasources.v2.state.metadata.StateMetadataPartitionReader
import org.apache.spark.sql.execution.streaming.state.{OperatorStateMetadataV2, OperatorStateMetadataWriter}
import org.apache.spark.sql.execution.streaming.state.StateRewriter
import org.apache.spark.sql.functions.col
import org.apache.spark.util.SerializableConfiguration

/** State of Spark's own operators, written anew for another number of partitions as Spark's `repartition` does. */
object SparksPartitions {
  /** Why Spark cannot; none where it can. */
  def reasonAgainst(providerClass: String): Option[String] =
    if (providerClass.endsWith(".RocksDBStateStoreProvider")) None
    else Some("Spark can change it in the RocksDB state store only")

  /**
   * Writes the state of the last batch of a checkpoint anew.
   *
   * @param aside      another checkpoint, with the offsets of that batch and the metadata of the operators
   * @param batch      the last batch
   * @param partitions how many there are to be
   */
  def write(session: SparkSession, checkpoint: String, aside: String, batch: Long, partitions: Int): Unit = {
    val conf = session.sessionState.newHadoopConf()
    val byKey = (rows: DataFrame) => rows.repartition(partitions, col("partition_key"))
    new StateRewriter(session, batch, batch, aside, conf, Some(checkpoint), Some(byKey)).run()
    new StateMetadataPartitionReader(aside, new SerializableConfiguration(conf), batch).allOperatorStateMetadata
      .foreach {
        case versioned: OperatorStateMetadataV2 =>
          val stores = versioned.stateStoreInfo.map(_.copy(numPartitions = partitions))
          val folder = new Path(aside, s"state/${versioned.operatorInfo.operatorId}")
          OperatorStateMetadataWriter.createWriter(folder, conf, versioned.version, Some(batch))
            .write(versioned.copy(stateStoreInfo = stores))
        case _ => // of the first format, which is written once
      }
  }
}

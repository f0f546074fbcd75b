package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state.{RocksDBConf, StateStoreConf}

/**
 * The batches that were taken back: their entries were removed from the logs of the checkpoint, and the query does them
 * again.
 *
 * Where they were done before a rescaling, so is their state: the query goes on in the stores of that time. Versions
 * that it writes there come in the place of those from which the later stores were made. So these go out of use before
 * the first such batch runs; else a version that is written anew would be looked for in them. A query that is killed
 * right after that finds the same when it is started again.
 */
object TakenBack extends Logging {

  /** What the file of the stores says to a query whose first batch this is. */
  def from(said: StoresFile, info: StatefulOperatorStateInfo, session: SparkSession): StoresFile = {
    val (stores, void) = said.stores.partition(_.since <= info.storeVersion)
    val placed = said.placed.filter(_ <= info.storeVersion)
    if (void.isEmpty && placed == said.placed) said
    else {
      val conf = session.sessionState.newHadoopConf()
      if (void.nonEmpty) refuse(info, session, conf)
      val now = said.copy(stores = stores, placed = placed)
      StateStores.write(info.checkpointLocation, now, conf)
      if (void.nonEmpty) logWarning(s"Batch ${info.storeVersion} of the query whose state is in " +
        s"${info.checkpointLocation} was taken back, and is done again on the state before it was rescaled. What was " +
        s"made of later state is out of use: ${void.map(s => s"${s.name}, since version ${s.since}").mkString("; ")}.")
      now
    }
  }

  private def refuse(info: StatefulOperatorStateInfo, session: SparkSession, conf: Configuration): Unit = {
    val (batch, root) = (info.storeVersion, new Path(info.checkpointLocation).getParent)
    val files = root.getFileSystem(conf)
    if (files.exists(new Path(root, s"commits/$batch"))) throw wrong(s"Batch $batch of $root is to be done, and its " +
      s"log has commits/$batch: another query works there, or the batch was taken back in part. If so, remove that " +
      "entry, too, and those after it.")
    // With a log of changes Spark would find, at its next start, the snapshot that a rescaling made, and not what this
    // batch writes; without one, a batch writes a snapshot, in its place.
    if (RocksDBConf(StateStoreConf(session.sessionState.conf)).enableChangelogCheckpointing)
      SavedVersion.sparksOperators(root.toString, conf).find { operator =>
        (0 until info.numPartitions).exists(p => hasSnapshotAfter(files, new Path(root, s"state/$operator/$p"), batch))
      }.foreach(operator => throw wrong(s"Batch $batch of $root was taken back, and the state of operator $operator, " +
        s"Spark's own, has snapshots of later versions, which Spark would read. Move the files <version>.zip of " +
        s"versions above $batch away from the folders below state/$operator, and start the query again."))
  }

  private def hasSnapshotAfter(files: FileSystem, folder: Path, version: Long): Boolean =
    files.exists(folder) && files.listStatus(folder).exists { found =>
      found.getPath.getName match {
        case Snapshot(number) => number.toLong > version
        case _ => found.isDirectory && hasSnapshotAfter(files, found.getPath, version)
      }
    }

  private val Snapshot = raw"(\d+)\.zip".r

  private def wrong(message: String) = new GpuWindowException(s"$message Nothing of this batch was done.")
}

package org.apache.spark.sql.gpuwin

import java.io.IOException

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.classic.DataFrame
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.internal.SQLConf

/** A state store that is written anew, in a folder of its own, as of a version that the query has. */
object WholeStore {
  /** Folders of RocksDB's files beside the one that names them. */
  private val Shared = Seq("SSTs", "logs")

  /**
   * Lets `fill` write and commit a store that has nothing yet, and names what it leaves.
   *
   * @param version which the files are to have; a store's own count would begin at 1
   */
  def write(id: StateStoreId, version: Long, files: Configuration)(fill: => Unit): Unit = {
    val folder = id.storeCheckpointLocation()
    val fileSystem = folder.getFileSystem(files)
    fileSystem.delete(folder, true) // of an attempt that failed or was killed
    fill
    val (first, named) = Seq("1.delta" -> s"$version.snapshot", "1.zip" -> s"$version.zip")
      .find { case (first, _) => fileSystem.exists(new Path(folder, first)) }
      .getOrElse(throw new GpuWindowException(s"The state store that was written into $folder left no snapshot."))
    if (named != first) rename(fileSystem, new Path(folder, first), new Path(folder, named))
  }

  /** Lets `write` write each partition of the rows, and returns the sum of what it returns: how many there were. */
  def writeAll(rows: DataFrame, partitions: Int)(write: (Int, Iterator[InternalRow]) => Long): Long = {
    val counts = partitionsOf(rows, partitions)
      .mapPartitionsWithIndex((p, all) => Iterator.single(write(p, all)), preservesPartitioning = false).collect()
    if (counts.length != partitions) throw new GpuWindowException(
      s"State for $partitions partitions came in ${counts.length}. Nothing was changed. This is a fault of gpuwin: " +
        "please report it.")
    counts.sum
  }

  /** The partitions of the rows. Spark's adaptive planning makes a relation without partitions of one without rows. */
  private def partitionsOf(rows: DataFrame, partitions: Int): RDD[InternalRow] = {
    val planned = rows.queryExecution.toRdd
    if (planned.getNumPartitions > 0) planned
    else rows.sparkSession.sparkContext.parallelize(Seq.empty[InternalRow], partitions)
  }

  /** Moves what was written into the store of another name; the file of the version last, which names the others. */
  def move(from: StateStoreId, into: StateStoreId, files: Configuration): Unit = {
    val (old, found) = (from.storeCheckpointLocation(), into.storeCheckpointLocation())
    val fileSystem = old.getFileSystem(files)
    val (folders, own) = fileSystem.listStatus(old).toSeq.partition(_.isDirectory)
    for (name <- Shared; folder <- folders.find(_.getPath.getName == name)) {
      fileSystem.mkdirs(new Path(found, name))
      fileSystem.listStatus(folder.getPath)
        .foreach(f => rename(fileSystem, f.getPath, new Path(found, s"$name/${f.getPath.getName}")))
    }
    own.map(_.getPath).filter(p => p.getName.endsWith(".snapshot") || p.getName.endsWith(".zip")).foreach { file =>
      val named = new Path(found, file.getName)
      fileSystem.delete(named, false) // of an attempt that was killed
      rename(fileSystem, file, named)
    }
    fileSystem.delete(old, true)
  }

  /** Settings under which the first commit of a store leaves one file with all of it, and no sum beside it. */
  def settings(conf: SQLConf): StateStoreConf = {
    val whole = conf.clone()
    whole.setConfString("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "false")
    whole.setConfString("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
    StateStoreConf(whole)
  }

  private def rename(files: FileSystem, from: Path, to: Path): Unit =
    if (!files.rename(from, to)) throw new IOException(s"$from could not be renamed to $to")
}

package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.util.UUID

import scala.collection.mutable.ArrayBuffer
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.TaskContext
import org.apache.spark.sql.Column
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId, StateStoreProviderId}
import org.apache.spark.sql.functions.{col, lit}
import org.apache.spark.sql.gpuwin.shims.SavedStore
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.util.SerializableConfiguration

/**
 * The state of a stopped query, written anew for another number of partitions: `gpuwin state rescale`.
 *
 * The cells of the newest version are read from all logs, shuffled by their keys as a batch shuffles them, and written
 * into state stores of another name in the same folders. They come into use by one file ([[StateStores]]); until then
 * nothing refers to them. Offsets, commits, the sink's log and the operators of Spark's own in the query stay as they
 * are.
 */
class Rescaling(session: SparkSession, checkpoint: String, partitions: Int, stopped: Boolean) {
  private val conf = session.sessionState.newHadoopConf()

  /** What was done, in a sentence for each operator. */
  def run(): Seq[String] = {
    session.streams.stateStoreCoordinator // as in StateTable
    val found = SavedVersion.operatorsOf(checkpoint, conf).map { operator =>
      val (at, mark) = SavedVersion.find(checkpoint, Some(operator), None, conf)
      SavedOperator.parse(mark) match {
        case Right(saved) => (at, saved)
        case Left(reason) => throw wrong(s"The state of operator $operator in $checkpoint cannot be rescaled: $reason.")
      }
    }
    val state = found.head._1.state
    refuse(found.map(_._1))
    val logs = SavedVersion.newestEntries(checkpoint, conf)
    val before = StateStores.read(state, conf)
    val next = StateStores(found.head._1.version, s"${DeviceOperator.StoreName}-${before.length + 1}", partitions)
    val done = found.map { case (at, operator) => rewrite(at, operator, next) }
    if (SavedVersion.newestEntries(checkpoint, conf) != logs) throw wrong(s"The query of $checkpoint has begun or " +
      "committed a batch meanwhile, so it runs. Nothing was changed. Stop it, and run this again.")
    FailPoint.reach(FailPoint.RescaledState, before.length)
    StateStores.write(state, before :+ next, conf)
    done
  }

  private def refuse(all: Seq[SavedVersion]): Unit = {
    if (all.forall(_.partitions == partitions))
      throw wrong(s"The state of gpuwin in $checkpoint has $partitions partitions already.")
    all.find(_.checkpointIds.isDefined).foreach(_ => throw wrong(s"The state in $checkpoint is kept with " +
      "spark.sql.streaming.stateStore.checkpointFormatVersion=2, under which Spark's log of commits has the names of " +
      "its files. Such a checkpoint cannot be rescaled. Start the query with a new checkpointLocation."))
    val (begun, committed) = SavedVersion.newestEntries(checkpoint, conf)
    if (begun > committed && !stopped) throw wrong(s"Batch $begun of the query in $checkpoint was begun and is not " +
      "committed, so the query runs, or was stopped in the middle of a batch. If it runs, stop it. If nothing runs, " +
      "say so by --stopped: the batch is done again when the query is started.")
  }

  private def rewrite(at: SavedVersion, operator: SavedOperator, next: StateStores): String = {
    val sessionConf = session.sessionState.conf.clone()
    at.conf.foreach { case (key, value) => sessionConf.setConfString(key, value) }
    val reading = StateStoreConf(sessionConf)
    // The first version of a store is to be whole, under a name that says the version of the query.
    Rescaling.Whole.foreach { case (key, value) => sessionConf.setConfString(key, value) }
    val writing = StateStoreConf(sessionConf)
    val shared = new SerializableConfiguration(conf)
    val old = session.sparkContext.parallelize(0 until at.partitions, at.partitions)
      .map(p => LoggedCells.reading(at, p, reading, shared)(log => (log.emittedThrough, log.segments.map(_.cells).sum)))
      .collect()
    val through = old.flatMap(_._1).reduceOption(_ max _)
    val keys = operator.keyTypes.indices.map(i => col(s"c$i"))
    // As the shuffle below the operator: without a key by the pane, where every window is one, else all in one place.
    val by: Seq[Column] =
      if (keys.nonEmpty) keys
      else if (operator.window.isOnePane) Seq(col("c0"))
      else Seq(lit(0))
    val cells = session.internalCreateDataFrame(new LoggedCells(session.sparkContext, at, reading, shared),
      LoggedCells.schema(operator))
    val write = new RescaledPartition(at, next, through, WireType.schema(operator.cellTypes), operator.placeAt,
      TaskSettings.of(sessionConf), writing, shared)
    val written = cells.repartition(partitions, by: _*).sortWithinPartitions("segment").queryExecution.toRdd
      .mapPartitionsWithIndex((p, rows) => Iterator.single(write(p, rows)), preservesPartitioning = false).collect()
    val read = old.map(_._2).sum
    if (written.length != partitions || written.sum != read) throw wrong(s"Of $read cells of operator ${at.operator} " +
      s"${written.sum} arrived in ${written.length} partitions. Nothing was changed. This is a fault of gpuwin: " +
      "please report it.")
    s"operator ${at.operator}: ${at.partitions} -> $partitions partitions, ${written.sum} cells, version ${at.version}"
  }

  private def wrong(message: String): GpuWindowException = new GpuWindowException(message)
}

/** The writing of one partition; its result is the number of its cells. */
class RescaledPartition(at: SavedVersion, next: StateStores, through: Option[Long], schema: StructType, placeAt: Int,
    settings: TaskSettings, conf: StateStoreConf, hadoopConf: SerializableConfiguration) extends Serializable {

  def apply(partition: Int, rows: Iterator[InternalRow]): Long = {
    val id = StateStoreId(at.state, at.operator, partition, next.name)
    val files = LocalCheckpoint.configuration(at.state, hadoopConf.value)
    val folder = id.storeCheckpointLocation()
    val fileSystem = folder.getFileSystem(files)
    fileSystem.delete(folder, true) // of an attempt that failed or was killed
    var cells = 0L
    SavedStore.writing(StateStoreProviderId(id, UUID.randomUUID), conf, files) { store =>
      val log = new StateLog(store, 0)
      segments(rows) { (segment, chunks, count, last) =>
        log.append(chunks, count, None, last, segment)
        cells += count
      }
      log.emittedThrough = through
      log.commit()
    }
    // A snapshot of the version that the query has: a store's own count would begin at 1.
    val (whole, kind) = Seq("delta" -> "snapshot", "zip" -> "zip")
      .find { case (kind, _) => fileSystem.exists(new Path(folder, s"1.$kind")) }
      .getOrElse(throw new GpuWindowException(s"The state store that was written into $folder left no snapshot."))
    val named = new Path(folder, s"${at.version}.$kind")
    if (named.getName != s"1.$whole" && !fileSystem.rename(new Path(folder, s"1.$whole"), named))
      throw new IOException(s"$folder/1.$whole could not be renamed to $named")
    FailPoint.reach(FailPoint.RescaledPartition, partition)
    cells
  }

  /** Hands on each segment: its number, chunks, cells, and the last place in time. Rows come sorted by the number. */
  private def segments(rows: Iterator[InternalRow])(each: (Long, Seq[Array[Byte]], Long, Long) => Unit): Unit = {
    val allocator = ArrowUtils.rootAllocator.newChildAllocator("gpuwin rescale", 0, Long.MaxValue)
    TaskContext.get().addTaskCompletionListener[Unit](_ => allocator.close())
    val writer = new ArrowChunkWriter(schema, settings.chunkRows, settings.chunkBytes, allocator)
    try {
      val cell = UnsafeProjection.create(schema.fields.zipWithIndex.toSeq.map { case (f, i) =>
        BoundReference(LoggedCells.Head + i, f.dataType, f.nullable)
      })
      val all = rows.buffered
      while (all.hasNext) {
        val segment = all.head.getLong(0)
        val own = new Iterator[InternalRow] {
          override def hasNext: Boolean = all.hasNext && all.head.getLong(0) == segment
          override def next(): InternalRow = cell(all.next())
        }
        val chunks = ArrayBuffer.empty[Array[Byte]]
        var (cells, last) = (0L, Long.MinValue)
        while (own.hasNext) {
          val (bytes, count) = writer.next(own, row => last = math.max(last, row.getLong(placeAt)))
          chunks += bytes
          cells += count
        }
        each(segment, chunks.toSeq, cells, last)
      }
    } finally writer.close()
  }
}

/** What was done, or the sentence that says why nothing was. */
final case class RescalingAnswer(done: String, error: String)

/** The entry from Python. */
object Rescaling {
  /** Settings under which the first commit of a store leaves one file with all of it, and no sum beside it. */
  private val Whole = Seq(
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled" -> "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled" -> "false")

  def rescale(session: SparkSession, checkpoint: String, partitions: Int, stopped: Boolean): RescalingAnswer =
    try RescalingAnswer(new Rescaling(session, checkpoint, partitions, stopped).run().mkString("\n"), "")
    catch {
      case e: GpuWindowException => RescalingAnswer("", e.getMessage)
      case NonFatal(e) =>
        val said = Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).toSeq
        val own = said.collectFirst { case g: GpuWindowException => g.getMessage }
          .orElse("GpuWindowException: (.*)".r.findFirstMatchIn(e.getMessage).map(_.group(1)))
        RescalingAnswer("", own.getOrElse(s"$checkpoint could not be rescaled, and nothing was changed: " +
          said.map(_.getMessage).filter(_ != null).lastOption.getOrElse(e.toString).linesIterator.next()))
    }
}

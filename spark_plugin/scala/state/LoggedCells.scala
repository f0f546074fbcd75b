package org.apache.spark.sql.gpuwin

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.{Partition, SparkContext, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, SparkSession}
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, JoinedRow}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId, StateStoreProviderId}
import org.apache.spark.sql.gpuwin.shims.SavedStore
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.util.SerializableConfiguration

/**
 * The cells in the logs of an operator at one version: a partition for each of its own, whose rows are the segment, its
 * late watermark, the watermark up to which windows were emitted, and the columns of a cell, in the order of the log.
 *
 * Each task opens a state store of its own for reading, as Spark's source of states does, so a query that runs on the
 * checkpoint does not notice.
 */
class LoggedCells(context: SparkContext, at: SavedVersion, conf: StateStoreConf, hadoopConf: SerializableConfiguration)
  extends RDD[InternalRow](context, Nil) {

  override protected def getPartitions: Array[Partition] =
    Array.tabulate[Partition](at.partitions)(new LoggedPartition(_))

  override def compute(partition: Partition, task: TaskContext): Iterator[InternalRow] = {
    val (through, segments) = segmentsOf(partition.index)
    val allocator = ArrowUtils.rootAllocator.newChildAllocator(s"gpuwin state ${at.operator} ${partition.index}", 0,
      Long.MaxValue)
    var open: Iterator[_] with AutoCloseable = null
    task.addTaskCompletionListener[Unit] { _ =>
      if (open != null) open.close()
      allocator.close()
    }
    val reader = new ArrowChunkReader(allocator, identity)
    segments.iterator.flatMap { case (segment, chunks) =>
      val head = new GenericInternalRow(Array[Any](segment.id, segment.late, through.map(Long.box).orNull))
      chunks.iterator.flatMap { bytes =>
        if (open != null) open.close()
        val batches = reader.read(bytes)
        open = batches
        batches.flatMap(_.rowIterator().asScala).map(new JoinedRow(head, _))
      }
    }
  }

  /** The watermark and the segments of a partition. The store is closed again before a row is made of them. */
  private def segmentsOf(partition: Int): (Option[Long], Seq[(Segment, Seq[Array[Byte]])]) =
    LoggedCells.reading(at, partition, conf, hadoopConf)(log =>
      (log.emittedThrough, log.segments.map(s => (s, log.chunks(s).toVector))))
}

private class LoggedPartition(override val index: Int) extends Partition

object LoggedCells {
  /** Columns of a row before those of its cell. */
  val Head = 3

  /** What `read` makes of the log of a partition. */
  def reading[A](at: SavedVersion, partition: Int, conf: StateStoreConf, hadoopConf: SerializableConfiguration)(
      read: StateLogReader => A): A = {
    val id = StateStoreProviderId(StateStoreId(at.state, at.operator, partition, at.storeName), UUID.randomUUID)
    try SavedStore.reading(id, at.version, at.checkpointIds.map(_(partition)), conf,
        StoreFiles.configuration(at.state, hadoopConf.value))(store => read(new StateLogReader(store, at.version)))
    catch {
      case e: GpuWindowException => throw e
      case NonFatal(e) =>
        val said = Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).map(_.getMessage).filter(_ != null)
        throw new GpuWindowException(s"Version ${at.version} of operator ${at.operator}, partition $partition, in " +
          s"${at.state} cannot be read: its files are gone or damaged. Ask for another version, or restore the " +
          s"checkpoint from a copy. Spark says: ${said.mkString(" / ").replace('\n', ' ')}", e)
    }
  }

  /** All of them, as a table. */
  def table(session: SparkSession, at: SavedVersion, log: SavedLog): ClassicDataFrame = {
    session.streams.stateStoreCoordinator // some versions of RocksDB's provider ask for it, and a stream starts it
    val hadoopConf = new SerializableConfiguration(session.sessionState.newHadoopConf())
    session.internalCreateDataFrame(
      new LoggedCells(session.sparkContext, at, StateStoreConf(at.settings(session)), hadoopConf), schema(log))
  }

  /** The columns of its rows. */
  def schema(operator: SavedLog): StructType = StructType(
    Seq(StructField("segment", LongType, nullable = false), StructField("late", LongType, nullable = false),
      StructField("through", LongType)) ++ WireType.schema(operator.cellTypes))
}

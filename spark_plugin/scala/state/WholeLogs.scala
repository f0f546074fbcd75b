package org.apache.spark.sql.gpuwin

import java.util.UUID

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, BoundReference, Expression, Literal, UnsafeProjection}
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, Dataset}
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, StateStoreProviderId}
import org.apache.spark.sql.gpuwin.shims.SavedStore
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.util.SerializableConfiguration

/**
 * The writing of whole logs, each into a state store that has nothing yet, as of a version that the query has.
 *
 * @param stores  the state stores, from that version on
 * @param through the watermark in microseconds up to which windows were emitted
 * @param schema  columns of a cell, as in the log
 * @param placeAt column of a cell with the start of its pane, or the end of its session
 */
class WholeLogs(state: String, operator: Long, stores: StateStores, through: Option[Long], schema: StructType,
    placeAt: Int, settings: TaskSettings, sessionConf: SQLConf, hadoopConf: SerializableConfiguration)
  extends Serializable {
  private val conf = WholeStore.settings(sessionConf)

  /**
   * Writes all partitions, and returns the number of cells.
   *
   * @param cells rows as those of [[LoggedCells]]
   * @param by    what they are partitioned by, of the columns of a cell
   * @param sort  whether they come from several segments, which have to be gathered
   */
  def write(cells: ClassicDataFrame, by: Seq[Attribute] => Seq[Expression], sort: Boolean): Long = {
    val plan = cells.queryExecution.analyzed
    val keys = by(plan.output.drop(LoggedCells.Head))
    val there = Dataset.ofRows(cells.sparkSession, RepartitionByExpression(keys, plan, stores.partitions))
    val sorted = if (sort) there.sortWithinPartitions("segment") else there
    WholeStore.writeAll(sorted, stores.partitions)(writePartition)
  }

  private def writePartition(partition: Int, rows: Iterator[InternalRow]): Long = {
    val id = StateStoreId(state, operator, partition, stores.name)
    val files = StoreFiles.configuration(state, hadoopConf.value)
    var cells = 0L
    WholeStore.write(id, stores.since, files) {
      SavedStore.writing(StateStoreProviderId(id, UUID.randomUUID), StateLog.KeySchema, StateLog.ValueSchema, 0, conf,
          files) { store =>
        val log = new StateLog(store, 0)
        segments(rows) { (segment, chunks, count, last) =>
          log.append(chunks, count, None, last, segment)
          cells += count
        }
        log.emittedThrough = through
        log.commit()
      }
    }
    FailPoint.reach(FailPoint.WrittenPartition, partition)
    cells
  }

  /** Hands on each segment: its number, chunks, cells, and the last place in time. Rows come sorted by the number. */
  private def segments(rows: Iterator[InternalRow])(each: (Long, Seq[Array[Byte]], Long, Long) => Unit): Unit = {
    val allocator = ArrowUtils.rootAllocator.newChildAllocator(s"gpuwin log of operator $operator", 0, Long.MaxValue)
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

object WholeLogs {
  /**
   * Values by which cells are partitioned as the shuffle below the operator does: their keys; without a key the pane,
   * where every window is one; else nothing, so that all are in one place.
   */
  def partitioning(window: WindowShape, keys: Seq[DataType])(cell: Seq[Attribute]): Seq[Expression] =
    if (keys.nonEmpty) cell.zip(keys).map { case (column, dataType) => WireValue.read(column, dataType) }
    else if (window.isOnePane) cell.take(1)
    else Seq(Literal(0))
}

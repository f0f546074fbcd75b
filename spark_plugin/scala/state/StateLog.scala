package org.apache.spark.sql.gpuwin

import java.nio.ByteBuffer
import java.util.zip.CRC32C

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * A segment of the log: the cells or sessions of one batch, or of several that were merged.
 *
 * @param id      the version of the state store that wrote it, or `StateLog.Seeds`
 * @param chunks  number of Arrow streams it is stored in
 * @param late    the late watermark of its batch in microseconds: windows that end at or before it do not get its
 *                cells. Long.MinValue where nothing was late.
 * @param lastPane start of the newest pane in it, or the latest end of a session: once that is evicted, so is the
 *                 segment
 */
final case class Segment(id: Long, chunks: Int, cells: Long, bytes: Long, late: Long, lastPane: Long) {
  /** Whether it has windows that Spark had begun when the state was adopted, with their starts in place of panes. */
  def isSeeds: Boolean = id == StateLog.Seeds
}

/** The state log of one partition, read only: its segments, and the watermark up to which windows were emitted. */
class StateLogReader(entries: ReadStateStore, val version: Long) {
  import StateLog._

  protected var (listed, through) = readManifest()

  def segments: Seq[Segment] = listed

  /** The watermark in microseconds, in append mode: windows that end at or before it were emitted. */
  def emittedThrough: Option[Long] = through

  def chunks(segment: Segment): Iterator[Array[Byte]] =
    Iterator.range(0, segment.chunks).map { n =>
      val value = entries.get(key(segment.id, n), StateStore.DEFAULT_COL_FAMILY_NAME)
      if (value == null) throw damaged(s"chunk $n of segment ${segment.id} is missing")
      opened(segment.id, n, value.getBinary(0)).getOrElse(
        throw damaged(s"chunk $n of segment ${segment.id} is not what was written (its checksum differs)"))
    }

  private def damaged(how: String): GpuWindowException = new GpuWindowException(s"The state log of ${entries.id} is " +
    s"damaged: $how. No row was emitted from it and nothing was changed. The checkpoint cannot be resumed from here: " +
    "restore it from a copy, or start the query with a new checkpointLocation.")

  private def readManifest(): (Seq[Segment], Option[Long]) = {
    val value = entries.get(key(-1L, 0), StateStore.DEFAULT_COL_FAMILY_NAME)
    if (value == null) {
      if (version > 0)
        throw new GpuWindowException(s"The state log of ${entries.id} has no manifest at version $version. The " +
          "checkpoint is damaged or was not written by gpuwin; start the query with a new checkpointLocation.")
      (Nil, None)
    } else {
      val bytes = value.getBinary(0)
      val format = if (bytes.length < 4) Format else ByteBuffer.wrap(bytes).getInt()
      opened(-1L, 0, bytes) match {
        case Some(manifest) if Readable(format) => decode(manifest)
        case None if !Unreleased(format) => throw damaged("its manifest is not what was written (its checksum differs)")
        case _ =>
          throw new GpuWindowException(
            s"The state log has format $format and this gpuwin reads formats ${Readable.min} to ${Readable.max}. " +
            "Resume the query with the version of gpuwin that wrote the checkpoint.")
      }
    }
  }
}

/**
 * The durable state of one partition: a log of columnar segments in Spark's state store.
 *
 * Entry (id, n) is chunk n of segment id, an Arrow IPC stream of cells. Entry (-1, 0) is the manifest: the list of
 * segments and the watermark up to which windows were emitted. Each entry ends with a checksum of itself and its key,
 * and depends on no other. For where a batch is run again, RocksDB's changelog keeps the file of the first attempt,
 * while the state of the second attempt goes on, and the next manifest is about that. The same rows are in both, but
 * not in the same order, so a manifest with the checksums of the chunks would refuse them.
 *
 * A batch writes the cells that it received, as it received them, and the manifest: a handful of puts, whatever the
 * number of keys and windows. Segments whose panes are all evicted are removed whole; when many have gathered, the
 * newest are merged, the smaller ones first, so that a cell is rewritten a logarithmic number of times and old large
 * segments are left alone.
 */
class StateLog(val store: StateStore, version: Long) extends StateLogReader(store, version) {
  import StateLog._

  def emittedThrough_=(watermark: Option[Long]): Unit = through = watermark

  /** Adds a segment, that of this batch unless another is named. */
  def append(chunks: Seq[Array[Byte]], cells: Long, late: Option[Long], lastPane: Long, id: Long = version): Unit = {
    chunks.zipWithIndex.foreach { case (bytes, n) => put(id, n, bytes) }
    val bytes = chunks.map(_.length.toLong).sum
    listed :+= Segment(id, chunks.length, cells, bytes, late.getOrElse(Long.MinValue), lastPane)
  }

  /** Removes all segments. */
  def clear(): Unit = {
    listed.foreach(remove)
    listed = Nil
  }

  /** Removes the segments whose newest pane starts before `pane`. */
  def evict(pane: Long): Unit = {
    val (dead, live) = listed.partition(_.lastPane < pane)
    dead.foreach(remove)
    listed = live
  }

  /**
   * The newest segments that should be merged into one, oldest first, or nothing. Grows from the newest while the next
   * older one is not much larger than what is gathered already. Seeds stay apart.
   */
  def toMerge(maxSegments: Int): Seq[Segment] = {
    val newestFirst = listed.filterNot(_.isSeeds).reverse
    val count = newestFirst.length
    if (count <= maxSegments) Nil
    else {
      var gathered = 0L
      var n = 0
      while (n < count && (n < count - maxSegments / 2 || newestFirst(n).cells <= 2 * gathered)) {
        gathered += newestFirst(n).cells
        n += 1
      }
      newestFirst.take(n).reverse
    }
  }

  def replace(merged: Seq[Segment], chunks: Seq[Array[Byte]], cells: Long, lastPane: Long): Unit = {
    merged.foreach(remove)
    listed = listed.filterNot(merged.contains)
    if (cells > 0) append(chunks, cells, None, lastPane)
  }

  /** Writes the manifest and commits everything; returns the new version. */
  def commit(): Long = {
    put(-1L, 0, encode(listed, through))
    store.commit()
  }

  private def put(id: Long, n: Int, bytes: Array[Byte]): Unit =
    store.put(key(id, n), entry(id, n, bytes), StateStore.DEFAULT_COL_FAMILY_NAME)
  private def remove(segment: Segment): Unit =
    (0 until segment.chunks).foreach(n => store.remove(key(segment.id, n), StateStore.DEFAULT_COL_FAMILY_NAME))
}

object StateLog {
  val KeySchema: StructType = StructType(Seq(StructField("segment", LongType, nullable = false),
    StructField("chunk", IntegerType, nullable = false)))
  val ValueSchema: StructType = StructType(Seq(StructField("bytes", BinaryType, nullable = false)))
  private[gpuwin] val Format = 5
  /** The format of a manifest with seeds, which a gpuwin that knows none must not take for panes. */
  private[gpuwin] val SeededFormat = 6
  /** Formats that are read: 3 and 4 are those of builds whose chunks had no narrowed integers. */
  private[gpuwin] val Readable = Set(3, 4, Format, SeededFormat)
  /** The number of a segment of seeds. No version has it, and it comes first in a log. */
  private[gpuwin] val Seeds = -2L
  /** The formats of builds before the first release, whose entries have no checksum at their end. */
  private[gpuwin] val Unreleased = Set(1, 2)

  // Rows of KeySchema and ValueSchema, written by hand: a projection for each task took a tenth of its processor time.

  private[gpuwin] def key(id: Long, n: Int): UnsafeRow = row(2, 0) { w => w.write(0, id); w.write(1, n) }

  /** A value: bytes, and a CRC-32C of them and of their key. They are copied once, since they may be megabytes. */
  private def entry(id: Long, n: Int, bytes: Array[Byte]): UnsafeRow = {
    val (head, length) = (UnsafeRow.calculateBitSetWidthInBytes(1) + 8, bytes.length + 4)
    val row = new Array[Byte](head + ByteArrayMethods.roundNumberOfBytesToNearestWord(length))
    Platform.putLong(row, Platform.BYTE_ARRAY_OFFSET + head - 8, (head.toLong << 32) | length)
    ByteBuffer.wrap(row).position(head).put(bytes).putInt(sum(id, n, bytes, bytes.length))
    val value = new UnsafeRow(1)
    value.pointTo(row, row.length)
    value
  }

  private def row(fields: Int, room: Int)(write: UnsafeRowWriter => Unit): UnsafeRow = {
    val writer = new UnsafeRowWriter(fields, room)
    writer.resetRowWriter()
    write(writer)
    writer.getRow
  }

  private def sum(id: Long, n: Int, bytes: Array[Byte], length: Int): Int = {
    val crc = new CRC32C
    crc.update(ByteBuffer.allocate(12).putLong(id).putInt(n).array())
    crc.update(bytes, 0, length)
    crc.getValue.toInt
  }

  /** The bytes of an entry without their CRC-32C, if they are what was written. */
  private[gpuwin] def opened(id: Long, n: Int, bytes: Array[Byte]): Option[Array[Byte]] = {
    val length = bytes.length - 4
    if (length >= 0 && ByteBuffer.wrap(bytes).getInt(length) == sum(id, n, bytes, length)) Some(bytes.take(length))
    else None
  }

  private def encode(segments: Seq[Segment], through: Option[Long]): Array[Byte] = {
    val b = ByteBuffer.allocate(4 + 1 + 8 + 4 + segments.length * 44)
    b.putInt(if (segments.exists(_.isSeeds)) SeededFormat else Format)
    b.put(if (through.isDefined) 1.toByte else 0.toByte).putLong(through.getOrElse(0L))
    b.putInt(segments.length)
    segments.foreach(s =>
      b.putLong(s.id).putInt(s.chunks).putLong(s.cells).putLong(s.bytes).putLong(s.late).putLong(s.lastPane))
    b.array()
  }

  private[gpuwin] def decode(bytes: Array[Byte]): (Seq[Segment], Option[Long]) = {
    val b = ByteBuffer.wrap(bytes)
    b.getInt() // the format
    val some = b.get() == 1
    val through = b.getLong()
    val segments = Seq.fill(b.getInt()) {
      Segment(b.getLong(), b.getInt(), b.getLong(), b.getLong(), b.getLong(), b.getLong())
    }
    (segments, if (some) Some(through) else None)
  }
}

package org.apache.spark.sql.gpuwin

import java.nio.ByteBuffer
import java.util.zip.CRC32C

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.types._

/**
 * One segment of the log: the cells or sessions of one batch, or of several that were merged.
 *
 * @param id      the version of the state store that wrote it
 * @param chunks  number of Arrow streams it is stored in
 * @param late    the late watermark of its batch in microseconds: windows that end at or before it do not get its cells.
 *                Long.MinValue where nothing was late.
 * @param lastPane start of the newest pane in it, or the latest end of a session: once that is evicted, so is the
 *                 segment
 * @param sums    CRC-32C of each chunk; empty in a log of format 1, which has none
 */
final case class Segment(id: Long, chunks: Int, cells: Long, bytes: Long, late: Long, lastPane: Long, sums: Seq[Int])

/**
 * The durable state of one partition: a log of columnar segments in Spark's state store.
 *
 * Entry (id, n) is chunk n of segment id, an Arrow IPC stream of cells. Entry (-1, 0) is the manifest: the list of
 * segments with a checksum for each chunk, the watermark up to which windows were emitted, and a checksum of itself. A
 * batch writes the cells it received, as it received them, and the manifest: a handful of puts, whatever the number of
 * keys and windows. Segments whose panes are all evicted are removed whole; when many have gathered, the newest are
 * merged, the smaller ones first, so that a cell is rewritten a logarithmic number of times and old large segments are
 * left alone.
 */
class StateLog(val store: StateStore, val version: Long) {
  import StateLog._

  private val keyOf = UnsafeProjection.create(KeySchema)
  private val valueOf = UnsafeProjection.create(ValueSchema)
  private var (listed, through) = readManifest()

  def segments: Seq[Segment] = listed

  /** Windows that end at or before this watermark (microseconds) were emitted, in append mode. */
  def emittedThrough: Option[Long] = through
  def emittedThrough_=(watermark: Option[Long]): Unit = through = watermark

  def chunks(segment: Segment): Iterator[Array[Byte]] =
    Iterator.range(0, segment.chunks).map { n =>
      val value = store.get(key(segment.id, n), StateStore.DEFAULT_COL_FAMILY_NAME)
      if (value == null) throw damaged(s"chunk $n of segment ${segment.id} is missing")
      val bytes = value.getBinary(0)
      if (segment.sums.nonEmpty && segment.sums(n) != sum(bytes, bytes.length))
        throw damaged(s"chunk $n of segment ${segment.id} is not what was written (its checksum differs)")
      bytes
    }

  private def damaged(how: String): GpuWindowException = new GpuWindowException(s"The state log of ${store.id} is " +
    s"damaged: $how. No row was emitted from it and nothing was changed. The checkpoint cannot be resumed from here: " +
    "restore it from a copy, or start the query with a new checkpointLocation.")

  /** Adds the segment of this batch. */
  def append(chunks: Seq[Array[Byte]], cells: Long, late: Option[Long], lastPane: Long): Unit = {
    val id = version
    chunks.zipWithIndex.foreach { case (bytes, n) => put(id, n, bytes) }
    listed :+= Segment(id, chunks.length, cells, chunks.map(_.length.toLong).sum, late.getOrElse(Long.MinValue), lastPane,
      chunks.map(c => sum(c, c.length)))
  }

  /** Removes all segments. */
  def clear(): Unit = {
    listed.foreach(remove)
    listed = Nil
  }

  /** Removes the segments whose newest pane starts before `pane`; returns how many. */
  def evict(pane: Long): Int = {
    val (dead, live) = listed.partition(_.lastPane < pane)
    dead.foreach(remove)
    listed = live
    dead.length
  }

  /**
   * The newest segments that should be merged into one, oldest first, or nothing. Grows from the newest while the next
   * older one is not much larger than what is gathered already.
   */
  def toMerge(maxSegments: Int): Seq[Segment] =
    if (listed.length <= maxSegments) Nil
    else {
      val newestFirst = listed.reverse
      var gathered = 0L
      var n = 0
      while (n < newestFirst.length && (n < listed.length - maxSegments / 2 || newestFirst(n).cells <= 2 * gathered)) {
        gathered += newestFirst(n).cells
        n += 1
      }
      newestFirst.take(n).reverse
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

  private def key(id: Long, n: Int): UnsafeRow = keyOf(InternalRow(id, n))
  private def put(id: Long, n: Int, bytes: Array[Byte]): Unit =
    store.put(key(id, n).copy(), valueOf(InternalRow(bytes)).copy(), StateStore.DEFAULT_COL_FAMILY_NAME)
  private def remove(segment: Segment): Unit =
    (0 until segment.chunks).foreach(n => store.remove(key(segment.id, n).copy(), StateStore.DEFAULT_COL_FAMILY_NAME))

  private def readManifest(): (Seq[Segment], Option[Long]) = {
    val value = store.get(key(-1L, 0), StateStore.DEFAULT_COL_FAMILY_NAME)
    if (value == null) {
      if (version > 0) throw new GpuWindowException(s"The state log of ${store.id} has no manifest at version $version. " +
        "The checkpoint is damaged or was not written by gpuwin; start the query with a new checkpointLocation.")
      (Nil, None)
    } else decode(value.getBinary(0)).fold(how => throw damaged(how), identity)
  }
}

object StateLog {
  val KeySchema: StructType = StructType(Seq(StructField("segment", LongType, nullable = false),
    StructField("chunk", IntegerType, nullable = false)))
  val ValueSchema: StructType = StructType(Seq(StructField("bytes", BinaryType, nullable = false)))
  private val Format = 2
  /** Without checksums; read, and not written any more. */
  private val FormatWithoutSums = 1

  private def sum(bytes: Array[Byte], length: Int): Int = {
    val crc = new CRC32C
    crc.update(bytes, 0, length)
    crc.getValue.toInt
  }

  private def encode(segments: Seq[Segment], through: Option[Long]): Array[Byte] = {
    val b = ByteBuffer.allocate(4 + 1 + 8 + 4 + segments.map(48 + 4 * _.sums.length).sum + 4)
    b.putInt(Format).put(if (through.isDefined) 1.toByte else 0.toByte).putLong(through.getOrElse(0L)).putInt(segments.length)
    segments.foreach { s =>
      b.putLong(s.id).putInt(s.chunks).putLong(s.cells).putLong(s.bytes).putLong(s.late).putLong(s.lastPane).putInt(s.sums.length)
      s.sums.foreach(b.putInt)
    }
    b.putInt(sum(b.array(), b.position())).array()
  }

  /** The segments and the watermark of a manifest, or what is wrong with it. */
  private def decode(bytes: Array[Byte]): Either[String, (Seq[Segment], Option[Long])] = {
    val b = ByteBuffer.wrap(bytes)
    val format = b.getInt()
    if (format != Format && format != FormatWithoutSums) throw new GpuWindowException(s"The state log has format " +
      s"$format and this gpuwin reads formats $FormatWithoutSums and $Format. Resume the query with the version of " +
      "gpuwin that wrote the checkpoint.")
    val end = bytes.length - 4
    if (format == Format && (end < 4 || b.getInt(end) != sum(bytes, end))) Left("its manifest is not what was written " +
      "(its checksum differs)")
    else {
      val some = b.get() == 1
      val through = b.getLong()
      val segments = Seq.fill(b.getInt()) {
        val s = Segment(b.getLong(), b.getInt(), b.getLong(), b.getLong(), b.getLong(), b.getLong(), Nil)
        if (format == Format) s.copy(sums = Seq.fill(b.getInt())(b.getInt())) else s
      }
      Right((segments, if (some) Some(through) else None))
    }
  }
}

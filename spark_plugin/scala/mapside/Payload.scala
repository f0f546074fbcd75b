package org.apache.spark.sql.gpuwin

import java.nio.{ByteBuffer, ByteOrder}
import java.util.Arrays

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeReference, UnsafeRow}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * Cells of one task for one partition of the shuffle, as the service made them: an Arrow stream that goes to the
 * service above the shuffle, and into its log, as it is.
 *
 * @param last the start of the newest pane, or the latest end of a session, in microseconds
 */
final case class Payload(partition: Int, bytes: Array[Byte], cells: Long, last: Long)

object Payload {
  // Columns of the row that goes through the shuffle.
  val Tag = 0
  val Bytes = 1
  val Cells = 2
  val Last = 3
  private val types: Array[DataType] = Array(IntegerType, BinaryType, LongType, LongType)

  /** New attributes of such rows. */
  def output: Seq[Attribute] = Seq("partition", "cells", "count", "last").zip(types).map { case (name, t) =>
    AttributeReference(name, t, nullable = false)()
  }

  /** Such a row, in memory of its own. It is put together by hand, since the bytes may be megabytes. */
  def row(tag: Int, payload: Payload): UnsafeRow = {
    val head = UnsafeRow.calculateBitSetWidthInBytes(types.length) + 8 * types.length
    val length = payload.bytes.length
    val row = new Array[Byte](head + ByteArrayMethods.roundNumberOfBytesToNearestWord(length))
    System.arraycopy(payload.bytes, 0, row, head, length)
    def put(column: Int, value: Long): Unit =
      Platform.putLong(row, Platform.BYTE_ARRAY_OFFSET + head - 8 * (types.length - column), value)
    put(Tag, Integer.toUnsignedLong(tag))
    put(Bytes, (head.toLong << 32) | length)
    put(Cells, payload.cells)
    put(Last, payload.last)
    val made = new UnsafeRow(types.length)
    made.pointTo(row, row.length)
    made
  }

  /**
   * Payloads of one partition, put together into streams of up to `most` bytes: the head of the first, and the batches
   * of those after it that have the same head. Those of one task have, and small ones, whose integers are not narrowed.
   */
  def joined(payloads: Seq[Array[Byte]], most: Long): Seq[Array[Byte]] = {
    val streams = ArrayBuffer.empty[Array[Byte]]
    var at = 0
    while (at < payloads.length) {
      var (upto, bytes) = (at + 1, payloads(at).length.toLong)
      while (upto < payloads.length && bytes + payloads(upto).length <= most &&
          haveOneHead(payloads(at), payloads(upto))) {
        bytes += payloads(upto).length
        upto += 1
      }
      streams += (if (upto == at + 1) payloads(at) else one(payloads.slice(at, upto)))
      at = upto
    }
    streams.toSeq
  }

  private def haveOneHead(a: Array[Byte], b: Array[Byte]): Boolean =
    Arrays.equals(a, 0, headLength(a), b, 0, headLength(b))

  private def one(payloads: Seq[Array[Byte]]): Array[Byte] = {
    val heads = payloads.map(headLength)
    val batches = payloads.zip(heads).map { case (p, head) => p.length - head - End }
    val stream = ByteBuffer.allocate(heads.head + batches.sum + End).put(payloads.head, 0, heads.head)
    payloads.indices.foreach(i => stream.put(payloads(i), heads(i), batches(i)))
    stream.put(payloads.head, payloads.head.length - End, End).array()
  }

  // Arrow's encapsulated messages: a mark of -1, the length of the metadata, the metadata, the body. The first message
  // is the schema, which has no body; after the last one come the mark and a length of 0.
  private val End = 8

  private def headLength(payload: Array[Byte]): Int = {
    val numbers = ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN)
    if (payload.length < 2 * End || numbers.getInt(0) != -1 || numbers.getLong(payload.length - End) != 0xffffffffL)
      throw new GpuWindowException("A payload of the device service is not an Arrow stream.")
    End + numbers.getInt(4)
  }
}

package org.apache.spark.sql.gpuwin

import java.nio.{ByteBuffer, ByteOrder}

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types._

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

  /** A writer of such rows, each valid until the next. */
  def writer(tags: Array[Int]): Payload => UnsafeRow = {
    val project = UnsafeProjection.create(types)
    p => project(InternalRow(tags(p.partition), p.bytes, p.cells, p.last))
  }

  /**
   * Payloads of one partition, put together into streams of up to `most` bytes. All have the same columns, so a stream
   * is the head of its first payload, and the batches of them all.
   */
  def joined(payloads: Seq[Array[Byte]], most: Long): Seq[Array[Byte]] = {
    val streams = ArrayBuffer.empty[Array[Byte]]
    var at = 0
    while (at < payloads.length) {
      var (upto, bytes) = (at + 1, payloads(at).length.toLong)
      while (upto < payloads.length && bytes + payloads(upto).length <= most) {
        bytes += payloads(upto).length
        upto += 1
      }
      streams += (if (upto == at + 1) payloads(at) else one(payloads.slice(at, upto)))
      at = upto
    }
    streams.toSeq
  }

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

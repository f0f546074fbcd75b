package org.apache.spark.sql.gpuwin

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
}

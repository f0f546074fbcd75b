package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._

/**
 * Aggregation buffers as rows, with the columns of all functions one after the other, made and merged by Spark's own
 * expressions.
 *
 * @param cell   the columns of a row that ends with buffers
 */
private[gpuwin] final class AggregateBuffers(functions: Seq[AggregateFunction], cell: Seq[Attribute], partition: Int) {
  private val columns = functions.flatMap(_.aggBufferAttributes)
  private val incoming = functions.flatMap(_.inputAggBufferAttributes)
  private val types = columns.map(_.dataType)
  private val fixed = types.forall(UnsafeRow.isMutable)

  private val initial = projection(ImperativeBuffers.expressions(functions)(_.initialValues), Nil)
  private val code = new ImperativeBuffers(functions, 0, 0)
  private val template = if (fixed) blank() else null

  /** A merge of the buffers at the end of a cell; they are found by their place, as Spark's final aggregate does. */
  val addCell: (InternalRow, InternalRow) => Unit = {
    val before = cell.length - incoming.length
    merging(cell.take(before) ++ incoming, before)
  }

  /** A merge of another buffer. */
  val add: (InternalRow, InternalRow) => Unit = merging(incoming, 0)

  /** A new buffer, as it is before the first value. */
  def fresh(): InternalRow = if (fixed) template.asInstanceOf[UnsafeRow].copy() else blank()

  def clear(row: InternalRow): Unit = row match {
    case unsafe: UnsafeRow => unsafe.copyFrom(template.asInstanceOf[UnsafeRow])
    case other => start(other)
  }

  private def blank(): InternalRow = {
    val row: InternalRow =
      if (fixed) UnsafeProjection.create(types.toArray).apply(new GenericInternalRow(types.length)).copy()
      else new SpecificInternalRow(types)
    start(row)
    row
  }

  private def start(row: InternalRow): Unit = {
    initial.target(row)(InternalRow.empty)
    code.initialize(row)
  }

  private def merging(other: Seq[Attribute], otherAt: Int): (InternalRow, InternalRow) => Unit = {
    val merge = projection(ImperativeBuffers.expressions(functions)(_.mergeExpressions), columns ++ other)
    val code = new ImperativeBuffers(functions, 0, otherAt)
    val joined = new JoinedRow
    (into, from) => {
      merge.target(into)(joined(into, from))
      code.merge(into, from)
    }
  }

  private def projection(expressions: Seq[Expression], input: Seq[Attribute]): MutableProjection = {
    val made = MutableProjection.create(expressions, input)
    made.initialize(partition)
    made
  }
}

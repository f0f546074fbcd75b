package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, GenericInternalRow}
import org.apache.spark.sql.catalyst.expressions.aggregate.{ImperativeAggregate, TypedImperativeAggregate}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.types.DataType

/** The result of an aggregate function that is written as code; the columns of its merged buffer are the children. */
case class ImperativeResult(function: ImperativeAggregate, buffer: Seq[Expression])
  extends Expression with CodegenFallback {
  @transient private lazy val atZero = function.withNewMutableAggBufferOffset(0)

  override def children: Seq[Expression] = buffer
  override def dataType: DataType = function.dataType
  override def nullable: Boolean = function.nullable
  override def prettyName: String = function.prettyName

  override def eval(input: InternalRow): Any = (function, buffer) match {
    case (_, Seq(pieces: MergedPieces)) => pieces.result(input)
    case (typed: TypedImperativeAggregate[_], Seq(serialized)) =>
      typed.asInstanceOf[TypedImperativeAggregate[AnyRef]]
        .eval(typed.deserialize(serialized.eval(input).asInstanceOf[Array[Byte]]).asInstanceOf[AnyRef])
    case _ => ofColumns(input)
  }

  private def ofColumns(input: InternalRow): Any = {
    val row = new GenericInternalRow(buffer.length)
    var i = 0
    buffer.foreach { column => row.update(i, column.eval(input)); i += 1 }
    atZero.eval(row)
  }

  override protected def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): ImperativeResult =
    copy(buffer = newChildren)
}

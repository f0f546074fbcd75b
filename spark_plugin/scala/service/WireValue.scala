package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateFunction, Max, MaxMinBy, Min,
  TypedImperativeAggregate}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

/**
 * Buffers of aggregate functions in the form in which they travel to the device service ([[WireType]]), and back.
 *
 * A value that the service only carries, as `first` and `max_by` have one, goes as the bytes that it has in a row of
 * Spark's, whatever its type. The service compares those of `min` and `max`: of a struct or an array they are bytes
 * that have its order ([[SortableBytes]]). A buffer that only Spark's code merges is one of several [[Pieces]].
 */
object WireValue {
  /** The place among a function's buffers of the one that the service compares as bytes. */
  private def comparedAt(function: AggregateFunction): Option[Int] = function match {
    case _: Min | _: Max if WireType.isNested(function.dataType) => Some(0)
    case m: MaxMinBy if WireType.isNested(m.orderingExpr.dataType) => Some(1)
    case _ => None
  }

  /** The columns of a function's buffer as they are sent. */
  def sent(function: AggregateFunction, columns: Seq[Expression]): Seq[Expression] =
    if (Pieces.areOf(function)) columns.map(Piece(_))
    else comparedAt(function).fold(columns)(at => columns.updated(at, SortableBytes(columns(at))))

  /** The plan of cells, below a shuffle, with the buffers as they are sent. */
  def sent(functions: Seq[AggregateFunction], cells: SparkPlan): SparkPlan = {
    val changed = for {
      function <- functions
      (own, column) <- function.inputAggBufferAttributes.zip(sent(function, function.inputAggBufferAttributes))
      if own != column
    } yield own.exprId -> column
    if (changed.isEmpty) cells else withColumns(changed.toMap, cells)
  }

  private def withColumns(changed: Map[ExprId, Expression], cells: SparkPlan): SparkPlan = cells match {
    case shuffle: ShuffleExchangeExec => shuffle.copy(child = withColumns(changed, shuffle.child))
    case plan =>
      ProjectExec(plan.output.map(a => changed.get(a.exprId).fold[NamedExpression](a)(Alias(_, a.name)())), plan)
  }

  /** The columns of a cell that is one row, which `values` computes, as they are sent. */
  def ofRow(functions: Seq[AggregateFunction], cell: Seq[Attribute], values: Map[ExprId, Expression])
      : Seq[Expression] = {
    val compared = comparedIn(functions)
    cell.map {
      case a if compared(a.exprId) => SortableBytes(values(a.exprId))
      case a if WireType.isNested(a.dataType) => RowBytes(values(a.exprId))
      case a => values(a.exprId)
    }
  }

  private def comparedIn(functions: Seq[AggregateFunction]): Set[ExprId] =
    functions.flatMap(f => comparedAt(f).map(f.inputAggBufferAttributes(_).exprId)).toSet

  /** The columns that come from the service, by those of Spark's operator, among which the window is itself. */
  def received(output: Seq[Attribute], windowAt: Option[Int]): Seq[Attribute] = output.zipWithIndex.map {
    case (a, at) if !windowAt.contains(at) && WireType.isNested(a.dataType) =>
      AttributeReference(a.name, BinaryType, a.nullable, a.metadata)(a.exprId, a.qualifier)
    case (a, _) => a
  }

  /** The column as a value of a type. */
  def read(column: Expression, dataType: DataType): Expression =
    if (column.dataType == dataType) column else AsType(column, dataType)

  /** The buffer of a function, of the first of these columns as they are sent. */
  def read(function: AggregateFunction, columns: Seq[Attribute]): Seq[Expression] =
    function.aggBufferAttributes.zip(columns).zipWithIndex.map {
      case ((_, column), _) if Pieces.areOf(function) =>
        MergedPieces(function.asInstanceOf[TypedImperativeAggregate[AnyRef]], column)
      case ((own, column), at) if comparedAt(function).contains(at) && column.dataType == BinaryType =>
        FromSortableBytes(column, own.dataType)
      case ((own, column), _) => read(column, own.dataType)
    }
}

/** The bytes that a struct, array or map has in a row of Spark's. */
private[gpuwin] case class RowBytes(child: Expression) extends UnaryExpression with CodegenFallback {
  @transient private lazy val row = UnsafeProjection.create(Array(child.dataType))
  override def dataType: DataType = BinaryType
  override def nullable: Boolean = child.nullable
  override protected def nullSafeEval(input: Any): Any = row(InternalRow(input)).getBinary(0)
  override protected def withNewChildInternal(newChild: Expression): RowBytes = copy(child = newChild)
}

/**
 * A value under another type whose values Spark keeps in the same form: a long as a timestamp, an int as a date, and
 * bytes as the struct, array or map that they are in a row.
 */
private[gpuwin] case class AsType(child: Expression, dataType: DataType) extends UnaryExpression with CodegenFallback {
  override def nullable: Boolean = child.nullable

  override protected def nullSafeEval(input: Any): Any = (dataType, input) match {
    case (s: StructType, bytes: Array[Byte]) =>
      val row = new UnsafeRow(s.length)
      row.pointTo(bytes, bytes.length)
      row
    case (_: ArrayType, bytes: Array[Byte]) =>
      val array = new UnsafeArrayData
      array.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
      array
    case (_: MapType, bytes: Array[Byte]) =>
      val map = new UnsafeMapData
      map.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
      map
    case _ => input
  }

  override protected def withNewChildInternal(newChild: Expression): AsType = copy(child = newChild)
}

package org.apache.spark.sql.gpuwin

import java.nio.ByteBuffer
import java.util

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{AttributeReference, BoundReference, Expression, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.types._

/**
 * Pieces of aggregation buffers that only Spark's own code merges: `collect_list`, `percentile` and their like.
 *
 * A piece is the buffer of the rows of one task and one cell, as Spark serialises it, behind its length. The service
 * keeps the pieces of a cell as they came, one after the other, and Spark's code merges those of a window when it is
 * emitted. So a function can go this way where its buffer is about as large as the rows that are in it; of one with a
 * fixed size there would be as many as there were micro-batches. The summaries of `percentile_approx`, the counts of
 * values of `percentile`, `mode` and their like, and most sets are merged by the service.
 */
private[gpuwin] object Pieces {
  /** Functions whose buffers hold the values of rows, or a summary of them. */
  def areOf(function: AggregateFunction): Boolean = function match {
    case _: Collect[_] | _: PercentileBase | _: Mode | _: ApproximatePercentile => true
    case _ => false
  }

  /** The name of the merge: summaries, counts and sets become one in the service, which knows their bytes. */
  def mergeOf(function: AggregateFunction): String = function match {
    case _: ApproximatePercentile => "summaries"
    case _: PercentileBase | _: Mode => countsOf(function.children.head.dataType)
    case set: CollectSet if !set.dataType.asInstanceOf[ArrayType].containsNull => setsOf(set.bufferElementType)
    case _ => "pieces"
  }

  private def countsOf(value: DataType): String = value match {
    case DoubleType => "counts_of_double"
    case FloatType => "counts_of_float"
    case _ => "counts"
  }

  /**
   * Sets of values that are equal where their bytes are. Floating point is not, in the Sparks whose sets hold it as
   * such: there 0.0 is -0.0, and a NaN no other.
   */
  private def setsOf(value: DataType): String = value match {
    case BooleanType | ByteType => "sets_of_1"
    case ShortType => "sets_of_2"
    case IntegerType | DateType | _: YearMonthIntervalType => "sets_of_4"
    case LongType | TimestampType | TimestampNTZType | _: DayTimeIntervalType => "sets_of_8"
    case d: DecimalType => if (d.precision <= Decimal.MAX_LONG_DIGITS) "sets_of_8" else "sets"
    case _: StringType | ArrayType(ByteType, _) => "sets"
    case _ => "pieces"
  }

  /** The pieces of a column of them, each as Spark serialised it, in order of arrival. */
  def of(bytes: Array[Byte]): Iterator[Array[Byte]] = {
    val left = ByteBuffer.wrap(bytes)
    Iterator.continually(left).takeWhile(_.hasRemaining).map { _ =>
      val piece = new Array[Byte](left.getInt())
      left.get(piece)
      piece
    }
  }
}

/** Bytes that stand one after the other. What was joined is shared, and copied when it is asked for. */
private[gpuwin] sealed abstract class JoinedBytes {
  def length: Long

  def ++(other: JoinedBytes): JoinedBytes =
    if (length == 0) other else if (other.length == 0) this else JoinedBytes.Both(this, other, length + other.length)

  def toArray: Array[Byte] = {
    if (length > Int.MaxValue)
      throw new GpuWindowException(s"The values of a window take $length bytes, and a buffer of Spark's has 2 GiB.")
    val whole = ByteBuffer.allocate(length.toInt)
    val left = new util.ArrayDeque[JoinedBytes] // not by recursion: a window may have thousands of panes
    left.push(this)
    while (!left.isEmpty) left.pop() match {
      case JoinedBytes.Leaf(bytes) => whole.put(bytes)
      case JoinedBytes.Both(first, second, _) => left.push(second); left.push(first)
    }
    whole.array()
  }
}

private[gpuwin] object JoinedBytes {
  final case class Leaf(bytes: Array[Byte]) extends JoinedBytes {
    override def length: Long = bytes.length
  }
  final case class Both(first: JoinedBytes, second: JoinedBytes, length: Long) extends JoinedBytes
  val Empty: JoinedBytes = Leaf(Array.emptyByteArray)

  /** Those in a column of a row, or its bytes. */
  def of(row: InternalRow, at: Int): JoinedBytes = row.get(at, BinaryType) match {
    case joined: JoinedBytes => joined
    case bytes: Array[Byte] => Leaf(bytes)
  }
}

/**
 * The merge of pieces in the place of their function's, where Spark's tasks merge cells: those of a batch query. Its
 * buffer is a [[JoinedBytes]] in a column of bytes, so that windows share the pieces of the panes that they overlap in.
 */
private[gpuwin] case class JoinedPieces(function: TypedImperativeAggregate[_], mutableAggBufferOffset: Int = 0,
    inputAggBufferOffset: Int = 0) extends ImperativeAggregate {
  override def children: Seq[Expression] = Seq(function)
  override def nullable: Boolean = false
  override def dataType: DataType = BinaryType
  override def aggBufferSchema: StructType = StructType(Seq(StructField("pieces", BinaryType, nullable = false)))
  override lazy val aggBufferAttributes: Seq[AttributeReference] =
    Seq(AttributeReference("pieces", BinaryType, nullable = false)())
  override lazy val inputAggBufferAttributes: Seq[AttributeReference] = aggBufferAttributes.map(_.newInstance())

  override def initialize(buffer: InternalRow): Unit = buffer.update(mutableAggBufferOffset, JoinedBytes.Empty)
  override def update(buffer: InternalRow, row: InternalRow): Unit =
    throw new GpuWindowException("Pieces are merged only.")
  override def merge(buffer: InternalRow, other: InternalRow): Unit = {
    val joined = JoinedBytes.of(buffer, mutableAggBufferOffset) ++ JoinedBytes.of(other, inputAggBufferOffset)
    buffer.update(mutableAggBufferOffset, joined)
  }
  override def eval(buffer: InternalRow): Any = JoinedBytes.of(buffer, mutableAggBufferOffset).toArray

  override def withNewMutableAggBufferOffset(at: Int): ImperativeAggregate = copy(mutableAggBufferOffset = at)
  override def withNewInputAggBufferOffset(at: Int): ImperativeAggregate = copy(inputAggBufferOffset = at)
  override protected def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): JoinedPieces =
    copy(function = newChildren.head.asInstanceOf[TypedImperativeAggregate[_]])
}

/** The bytes of the [[JoinedBytes]] in a column; generated code gives no row to an expression without a child. */
private[gpuwin] case class BytesOf(child: Expression) extends UnaryExpression with CodegenFallback {
  @transient private lazy val at = child.asInstanceOf[BoundReference].ordinal
  override def nullable: Boolean = false
  override def dataType: DataType = BinaryType
  override def eval(row: InternalRow): Any = JoinedBytes.of(row, at).toArray
  override protected def withNewChildInternal(newChild: Expression): BytesOf = copy(child = newChild)
}

/** A buffer as Spark serialised it, as one piece. */
private[gpuwin] case class Piece(child: Expression) extends UnaryExpression with CodegenFallback {
  override def dataType: DataType = BinaryType
  override def nullable: Boolean = child.nullable

  override protected def nullSafeEval(input: Any): Any = {
    val bytes = input.asInstanceOf[Array[Byte]]
    ByteBuffer.allocate(Integer.BYTES + bytes.length).putInt(bytes.length).put(bytes).array()
  }

  override protected def withNewChildInternal(newChild: Expression): Piece = copy(child = newChild)
}

/**
 * Pieces as one buffer, which Spark's code merges and serialises. Neighbours are merged, and then what became of them,
 * so that a summary is not merged as often as there are pieces.
 */
private[gpuwin] case class MergedPieces(function: TypedImperativeAggregate[AnyRef], child: Expression)
  extends UnaryExpression with CodegenFallback {
  override def dataType: DataType = BinaryType
  override def nullable: Boolean = child.nullable

  override protected def nullSafeEval(input: Any): Any = function.serialize(merged(input.asInstanceOf[Array[Byte]]))

  /** The result of the function over the pieces, without a serialised buffer between. */
  def result(input: InternalRow): Any = child.eval(input) match {
    case bytes: Array[Byte] => function.eval(merged(bytes))
    case _ => null
  }

  private def merged(bytes: Array[Byte]): AnyRef = {
    val made = ArrayBuffer.empty[(Int, AnyRef)] // numbers of pieces, each smaller than the one before it
    def joinLast(): Unit = {
      val (newer, second) = made.remove(made.length - 1)
      val (older, first) = made.remove(made.length - 1)
      made += ((older + newer, function.merge(first, second)))
    }
    Pieces.of(bytes).foreach { piece =>
      made += ((1, function.deserialize(piece)))
      while (made.length > 1 && made(made.length - 2)._1 == made.last._1) joinLast()
    }
    while (made.length > 1) joinLast()
    made.headOption.fold(function.createAggregationBuffer())(_._2)
  }

  override protected def withNewChildInternal(newChild: Expression): MergedPieces = copy(child = newChild)
}

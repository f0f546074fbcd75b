package org.apache.spark.sql.gpuwin

import java.nio.ByteBuffer

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{AttributeReference, Concat, Expression, Literal, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.Append
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types.{BinaryType, DataType}

/**
 * Pieces of aggregation buffers that only Spark's own code merges: `collect_list`, `percentile` and their like.
 *
 * A piece is the buffer of the rows of one task and one cell, as Spark serialises it, behind its length. The service
 * keeps the pieces of a cell as they came, one after the other, and Spark's code merges those of a window when it is
 * emitted. So a function can go this way where its buffer is about as large as the rows that are in it; of one with a
 * fixed size there would be as many as there were micro-batches.
 */
private[gpuwin] object Pieces {
  /** The name of the merge. */
  val Merge = "pieces"

  /** Functions whose buffers hold the values of rows, or a summary of them. */
  def areOf(function: AggregateFunction): Boolean = function match {
    case _: Collect[_] | _: PercentileBase | _: Mode | _: ApproximatePercentile => true
    case _ => false
  }

  /** Why windows emitted in a mode cannot be made of pieces of these functions, if they cannot. */
  def reasonAgainst(functions: Seq[AggregateFunction], mode: Option[OutputMode]): Option[String] =
    if (mode.contains(Append)) None
    else functions.collectFirst { case f: ApproximatePercentile => "outside append mode a window is emitted again " +
      s"with each batch, and only Spark's own code can merge what came of ${f.prettyName}"
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

/** The merge of pieces in the place of their function's, where Spark's tasks merge cells: those of a batch query. */
private[gpuwin] case class JoinedPieces(function: TypedImperativeAggregate[_]) extends DeclarativeAggregate {
  private lazy val pieces = AttributeReference("pieces", BinaryType, nullable = false)()

  override def children: Seq[Expression] = Seq(function)
  override def nullable: Boolean = false
  override def dataType: DataType = BinaryType
  override lazy val aggBufferAttributes: Seq[AttributeReference] = Seq(pieces)
  override lazy val initialValues: Seq[Expression] = Seq(Literal(Array.emptyByteArray))
  override lazy val updateExpressions: Seq[Expression] = throw new GpuWindowException("Pieces are merged only.")
  override lazy val mergeExpressions: Seq[Expression] = Seq(Concat(Seq(pieces.left, pieces.right)))
  override lazy val evaluateExpression: Expression = pieces

  override protected def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): JoinedPieces =
    copy(function = newChildren.head.asInstanceOf[TypedImperativeAggregate[_]])
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

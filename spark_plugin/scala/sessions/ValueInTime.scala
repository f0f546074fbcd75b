package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.types.{DataType, LongType}

/**
 * `first`, `last`, `min_by` or `max_by` over rows of a session in any order: the buffer of Spark's function, and the
 * event time of the row that its value is from.
 *
 * Spark sorts the rows of a session by their time before it adds them. So the value of the earliest row is the first
 * one, that of the latest the last one, and of rows with equal orderings the latest decides. Rows of one time are added
 * as they come, there as here.
 *
 * @param function Spark's, with a buffer of two columns: the value; and whether there is one, or its ordering
 * @param time     event time of a row in microseconds
 */
final case class ValueInTime(function: DeclarativeAggregate, time: Expression) extends DeclarativeAggregate {
  private lazy val arrival = AttributeReference("arrival", LongType)()

  override def children: Seq[Expression] = Seq(function, time)
  override def nullable: Boolean = function.nullable
  override def dataType: DataType = function.dataType
  override lazy val aggBufferAttributes: Seq[AttributeReference] = function.aggBufferAttributes :+ arrival
  override lazy val initialValues: Seq[Expression] = function.initialValues :+ Literal(null, LongType)
  override lazy val updateExpressions: Seq[Expression] = kept(ValueInTime.alone(function) :+ time)
  override lazy val mergeExpressions: Seq[Expression] = kept(inputAggBufferAttributes)
  override lazy val evaluateExpression: Expression = function.evaluateExpression

  /** The buffer after another came: one of the two. */
  private def kept(came: Seq[Expression]): Seq[Expression] = {
    val takes = And(hasValue(came), Or(Not(hasValue(aggBufferAttributes)), decides(came)))
    came.zip(aggBufferAttributes).map { case (other, own) => If(takes, other, own) }
  }

  private def hasValue(buffer: Seq[Expression]): Expression = function match {
    case _: First | _: Last => buffer(1)
    case _ => IsNotNull(buffer(1))
  }

  /** Whether the value that came takes the place of the one that is there. */
  private def decides(came: Seq[Expression]): Expression = {
    val Seq(_, order, at) = came
    val Seq(_, ownOrder, ownAt) = aggBufferAttributes
    def unlessLaterThan(precedes: Expression): Expression =
      Or(precedes, And(EqualTo(order, ownOrder), GreaterThanOrEqual(at, ownAt)))
    function match {
      case _: First => LessThan(at, ownAt)
      case _: Last => GreaterThanOrEqual(at, ownAt)
      case _: MinBy => unlessLaterThan(LessThan(order, ownOrder))
      case _ => unlessLaterThan(GreaterThan(order, ownOrder))
    }
  }

  override protected def withNewChildrenInternal(children: IndexedSeq[Expression]): ValueInTime =
    copy(function = children.head.asInstanceOf[DeclarativeAggregate], time = children.last)
}

object ValueInTime {

  /** The aggregates of rows that come in any order of time, which is this column. */
  def of(aggregates: Seq[AggregateExpression], time: Attribute): Seq[AggregateExpression] = aggregates.map { a =>
    a.aggregateFunction match {
      case f: DeclarativeAggregate if Arrival.isOf(f) => a.copy(aggregateFunction = ValueInTime(f, time))
      case _ => a
    }
  }

  /** The buffer of a function for one row alone. */
  def alone(function: DeclarativeAggregate): Seq[Expression] = {
    val initial = function.aggBufferAttributes.map(_.exprId).zip(function.initialValues).toMap
    function.updateExpressions.map(_.transformUp {
      case a: AttributeReference if initial.contains(a.exprId) => initial(a.exprId)
    })
  }

  /** Columns with the buffers of Spark's functions, in their order, and then those of the arrivals. */
  def columns(aggregates: Seq[AggregateExpression]): Seq[Attribute] = {
    val parts = aggregates.map(_.aggregateFunction).map {
      case v: ValueInTime => v.inputAggBufferAttributes.splitAt(v.inputAggBufferAttributes.length - 1)
      case f => (f.inputAggBufferAttributes, Nil)
    }
    parts.flatMap(_._1) ++ parts.flatMap(_._2)
  }
}

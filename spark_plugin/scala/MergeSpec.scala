package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{AttributeReference, EvalMode, Expression}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types._

/**
 * How the buffer of one aggregate function is merged on the device.
 *
 * @param merge   sum | min | max | moments | decimal_sum | decimal_avg_sum
 * @param columns positions of its buffers among all buffers of the operator
 * @param wrap    integer sums: wrap around on overflow (Spark without ANSI) instead of raising
 * @param precision of the decimal sum; a larger total is an overflow
 * @param nullable whether a buffer can be null (before the first value)
 */
final case class MergeSpec(merge: String, columns: Seq[Int], wrap: Boolean = false, precision: Int = 0, scale: Int = 0,
    nullable: Boolean = true) {
  def json: String =
    s"""{"merge":"$merge","columns":[${columns.mkString(",")}],"wrap":$wrap,"precision":$precision,"scale":$scale,""" +
      s""""nullable":$nullable}"""
}

/**
 * The table of what can be merged. A Spark aggregate function is a list of buffer columns, expressions that merge two
 * buffers, and one that makes the result; gpuwin takes over only the merge, so only functions whose merge is known
 * exactly are listed, and every other one stays with Spark, with its name in the reason.
 */
object MergeSpec {

  def of(function: AggregateFunction, first: Int): Either[String, Seq[MergeSpec]] = function match {
    case _: Count => Right(Seq(MergeSpec("sum", Seq(first), wrap = true, nullable = false)))

    case s: Sum => s.dataType match {
      case _: DoubleType => Right(Seq(MergeSpec("sum", Seq(first))))
      case d: DecimalType if s.evalContext.evalMode != EvalMode.TRY =>
        Right(Seq(MergeSpec("decimal_sum", Seq(first, first + 1), precision = d.precision, scale = d.scale)))
      case _: LongType if s.evalContext.evalMode != EvalMode.TRY =>
        Right(Seq(MergeSpec("sum", Seq(first), wrap = s.evalContext.evalMode == EvalMode.LEGACY)))
      case _: DayTimeIntervalType => Right(Seq(MergeSpec("sum", Seq(first))))
      case other if s.evalContext.evalMode == EvalMode.TRY => Left(s"try_sum over ${other.simpleString} is left to Spark")
      case other => Left(s"sum over ${other.simpleString} is left to Spark")
    }

    case a: Average if a.evalMode == EvalMode.TRY => Left("try_avg is left to Spark")
    case a: Average => a.aggBufferAttributes.map(_.dataType) match {
      case Seq(DoubleType, LongType) =>
        Right(Seq(MergeSpec("sum", Seq(first)), MergeSpec("sum", Seq(first + 1), wrap = true, nullable = false)))
      case Seq(d: DecimalType, LongType) =>
        Right(Seq(MergeSpec("decimal_avg_sum", Seq(first), precision = d.precision, scale = d.scale),
          MergeSpec("sum", Seq(first + 1), wrap = true, nullable = false)))
      case other => Left(s"avg over ${other.head.simpleString} is left to Spark")
    }

    case m: Min => ordered(m.dataType, "min").map(_ => Seq(MergeSpec("min", Seq(first))))
    case m: Max => ordered(m.dataType, "max").map(_ => Seq(MergeSpec("max", Seq(first))))

    case _: StddevSamp | _: StddevPop | _: VarianceSamp | _: VariancePop =>
      Right(Seq(MergeSpec("moments", Seq(first, first + 1, first + 2))))

    case f => Left(s"the buffer of ${f.prettyName} cannot be merged on the device")
  }

  private def ordered(dataType: DataType, name: String): Either[String, Unit] = dataType match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType | FloatType | DoubleType | DateType | TimestampType |
        TimestampNTZType | BinaryType | _: DecimalType | _: DayTimeIntervalType | _: YearMonthIntervalType | _: TimeType =>
      Right(())
    case s: StringType if UnsafeRowUtils.isBinaryStable(s) => Right(())
    case other => Left(s"$name over ${other.simpleString} cannot be merged on the device")
  }

  /**
   * Raises what Spark raises when merging this aggregate's buffers overflows, by merging two buffers that do: the same
   * error class, message and query context, whatever they are in this version of Spark.
   */
  def raiseOverflow(function: DeclarativeAggregate): Unit = {
    val left = function.aggBufferAttributes
    val right = function.inputAggBufferAttributes
    val bound = function.mergeExpressions.head.transform {
      case a: AttributeReference if left.exists(_.exprId == a.exprId) || right.exists(_.exprId == a.exprId) => largest(a)
    }
    bound.eval(null)
  }

  private def largest(a: AttributeReference): Expression = {
    import org.apache.spark.sql.catalyst.expressions.Literal
    a.dataType match {
      case LongType => Literal(Long.MaxValue)
      case d: DayTimeIntervalType => Literal(Long.MaxValue, d)
      case BooleanType => Literal(false)
      case d: DecimalType => Literal(Decimal(BigDecimal("9" * d.precision) / BigDecimal(10).pow(d.scale), d.precision, d.scale), d)
      case other => Literal.default(other)
    }
  }
}

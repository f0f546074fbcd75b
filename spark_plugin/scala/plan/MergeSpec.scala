package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{AttributeReference, BitmapAndAgg, BitmapConstructAgg, BitmapOrAgg,
  EvalMode, Expression, Literal}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.gpuwin.shims.{SumMode, TimeOfDay}
import org.apache.spark.sql.types._
import org.json4s._

/**
 * The merge, in the service, of one aggregate function's buffer.
 *
 * @param merge   sum | min | max | moments | moments3 | moments4 | comoments | correlation | decimal_sum |
 *                decimal_avg_sum | bit_and | bit_or | bit_xor | registers | first | last | min_by | max_by | pieces |
 *                summaries | counts | counts_of_double | counts_of_float | sets | sets_of_1 | sets_of_2 | sets_of_4 |
 *                sets_of_8
 * @param columns positions of its buffers among all buffers of the operator
 * @param wrap    integer sums: wrap around on overflow (Spark without ANSI) instead of raising
 * @param precision of the decimal sum; a larger total is an overflow
 * @param nullable whether a buffer can be null (before the first value; of first, last and their like: after it too)
 * @param arrival position of the column that says when the value arrived, where that decides; see [[Arrival]]
 */
final case class MergeSpec(merge: String, columns: Seq[Int], wrap: Boolean = false, precision: Int = 0,
    nullable: Boolean = true, arrival: Int = -1) {
  def json: JObject = JObject(
    "merge" -> JString(merge),
    "columns" -> JArray(columns.map(c => JInt(c)).toList),
    "wrap" -> JBool(wrap),
    "precision" -> JInt(precision),
    "nullable" -> JBool(nullable),
    "arrival" -> JInt(arrival))
}

/**
 * The table of merges. A Spark aggregate function is a list of buffer columns, expressions that merge two
 * buffers, and one that makes the result; gpuwin takes over only the merge, so only functions whose merge is known
 * exactly are listed, and every other one stays with Spark, with its name in the reason.
 */
object MergeSpec {
  private type Found = Either[String, Seq[MergeSpec]]

  /**
   * The merges of all functions, whose buffers follow each other, then the columns of arrival. `pieces`: with those
   * whose buffers stay in [[Pieces]]. `pivots`: with the columns of pivots, each of which gets one value at most.
   */
  def ofAll(functions: Seq[AggregateFunction], pieces: Boolean = false, pivots: Boolean = false): Found = {
    val firsts = functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    val found = functions.zip(firsts).map {
      case (f, first) if pieces && Pieces.areOf(f) =>
        Right(Seq(MergeSpec(Pieces.mergeOf(f), Seq(first), nullable = false)))
      case (_: PivotFirst, _) if !pivots => Left("one value of its pivot may take the place of another, " +
        "over sessions and in other modes than append, in an order that gpuwin does not keep")
      case (f, first) => of(f, first)
    }
    found.collectFirst { case Left(reason) => reason }.toLeft {
      val places = Iterator.from(firsts.last)
      found.flatMap(_.getOrElse(Nil)).map(s => if (Arrival.decides(s.merge)) s.copy(arrival = places.next()) else s)
    }
  }

  private def of(function: AggregateFunction, first: Int): Found = function match {
    case _: Count => Right(Seq(MergeSpec("sum", Seq(first), wrap = true, nullable = false)))
    case s: Sum => ofSum(s, first)
    case a: Average => ofAverage(a, first)

    case m: Min => ordered(m.dataType, "min").map(_ => Seq(MergeSpec("min", Seq(first))))
    case m: Max => ordered(m.dataType, "max").map(_ => Seq(MergeSpec("max", Seq(first))))

    case c: CentralMomentAgg => c.aggBufferAttributes.length match {
      case 3 => Right(Seq(statistics("moments", first, 3)))
      case 4 => Right(Seq(statistics("moments3", first, 4)))
      case 5 => Right(Seq(statistics("moments4", first, 5)))
      case _ => Left(unknown(c))
    }
    case _: Covariance => Right(Seq(statistics("comoments", first, 4)))
    case _: PearsonCorrelation => Right(Seq(statistics("correlation", first, 6)))
    case _: RegrSlope | _: RegrIntercept =>
      Right(Seq(statistics("comoments", first, 4), statistics("moments", first + 4, 3)))

    case _: BitAndAgg => Right(Seq(MergeSpec("bit_and", Seq(first))))
    case _: BitOrAgg => Right(Seq(MergeSpec("bit_or", Seq(first))))
    case _: BitXorAgg => Right(Seq(MergeSpec("bit_xor", Seq(first))))
    case _: BitmapConstructAgg | _: BitmapOrAgg => Right(Seq(MergeSpec("bit_or", Seq(first), nullable = false)))
    case _: BitmapAndAgg => Right(Seq(MergeSpec("bit_and", Seq(first), nullable = false)))
    case h: HyperLogLogPlusPlus =>
      Right(h.aggBufferAttributes.indices.map(i => MergeSpec("registers", Seq(first + i), nullable = false)))

    case f: First =>
      kept(f.child, "first").map(_ => Seq(MergeSpec("first", Seq(first, first + 1), nullable = !f.ignoreNulls)))
    case l: Last =>
      kept(l.child, "last").map(_ => Seq(MergeSpec("last", Seq(first, first + 1), nullable = !l.ignoreNulls)))
    case m: MaxMinBy => ofExtremum(m, first)
    case several if Set("max_by", "min_by")(several.prettyName) =>
      Left(s"${several.prettyName} has a third argument, and gpuwin merges buffers of one value")

    case p: PivotFirst => ofPivot(p, first)

    case t: TypedImperativeAggregate[_] =>
      Left(s"${t.prettyName} gathers its values in an object that only Spark's own code can merge")
    case f => Left(unknown(f))
  }

  private def ofSum(s: Sum, first: Int): Found = {
    val name = if (SumMode.of(s) == EvalMode.TRY) "try_sum" else "sum"
    s.dataType match {
      case _: DoubleType => Right(Seq(MergeSpec("sum", Seq(first))))
      case d: DecimalType => roomy(name, s.child).map(_ =>
        Seq(MergeSpec("decimal_sum", Seq(first, first + 1), precision = d.precision)))
      case other if name == "try_sum" =>
        Left(s"$name over ${other.simpleString} is null once it overflows, which depends on the order of the rows")
      case _: LongType => Right(Seq(MergeSpec("sum", Seq(first), wrap = SumMode.of(s) == EvalMode.LEGACY)))
      case _: DayTimeIntervalType => Right(Seq(MergeSpec("sum", Seq(first))))
      case other => Left(s"sum over ${other.simpleString} is left to Spark")
    }
  }

  private def ofAverage(a: Average, first: Int): Found = {
    val name = if (a.evalMode == EvalMode.TRY) "try_avg" else "avg"
    val count = MergeSpec("sum", Seq(first + 1), wrap = true, nullable = false)
    a.aggBufferAttributes.map(_.dataType) match {
      case Seq(DoubleType, LongType) => Right(Seq(MergeSpec("sum", Seq(first)), count))
      case Seq(d: DecimalType, LongType) => roomy(name, a.child).map(_ =>
        Seq(MergeSpec("decimal_avg_sum", Seq(first), precision = d.precision), count))
      case Seq(other, LongType) if name == "try_avg" =>
        Left(s"$name over ${other.simpleString} is null once its sum overflows, " +
          "which depends on the order of the rows")
      case Seq(_: DayTimeIntervalType, LongType) => Right(Seq(MergeSpec("sum", Seq(first)), count))
      case other => Left(s"avg over ${other.head.simpleString} is left to Spark")
    }
  }

  /**
   * Room for the total of a sum of decimals, which has ten digits more than they have. Where there is none, Spark's
   * buffer becomes null once a running total leaves 38 digits, between rows, at a shuffle or in the state, and stays
   * null though the total comes back. So the result depends on which rows are added first, and cells are not added in
   * the order of Spark's rows.
   */
  private def roomy(name: String, value: Expression): Either[String, Unit] = value.dataType match {
    case d: DecimalType if d.precision + 10 > DecimalType.MAX_PRECISION =>
      Left(s"$name over ${d.simpleString} has no room for the total: Spark loses one that leaves " +
        s"${DecimalType.MAX_PRECISION} digits on the way, which depends on the order of the rows")
    case _ => Right(())
  }

  /** The merge of max_by or min_by: of equal orderings the one that came last wins, so the arrival decides too. */
  private def ofExtremum(m: MaxMinBy, first: Int): Found = {
    val name = m.prettyName
    for {
      merge <- m match {
        case _: MaxBy => Right("max_by")
        case _: MinBy => Right("min_by")
        case _ => Left(unknown(m))
      }
      _ <- kept(m.valueExpr, name)
      _ <- m.orderingExpr.dataType match {
        case BooleanType | ByteType | ShortType | IntegerType | LongType | FloatType | DoubleType | DateType |
            TimestampType | TimestampNTZType | _: DayTimeIntervalType | _: YearMonthIntervalType | TimeOfDay() =>
          Right(())
        case wide if isWide(m) && SortableBytes.canOrder(wide) && !hasFloats(wide) => Right(())
        case d: DecimalType if !isWide(m) => Right(())
        case other => Left(s"$name orders by ${other.simpleString}, which gpuwin cannot; write " +
          s"${merge.take(3)}(struct(ordering, value)) FILTER (WHERE ordering IS NOT NULL) for it")
      }
    } yield Seq(MergeSpec(merge, Seq(first, first + 1)))
  }

  /** Whether an ordering of max_by or min_by does not fit 64 bits, so that the service compares bytes. */
  def isWide(function: AggregateFunction): Boolean = function match {
    case m: MaxMinBy => m.orderingExpr.dataType match {
      case d: DecimalType => d.precision > Decimal.MAX_LONG_DIGITS
      case _: StringType | BinaryType => true
      case other => WireType.isNested(other)
    }
    case _ => false
  }

  /** Whether values of a type may differ and be equal: zeros of two signs are. */
  private def hasFloats(dataType: DataType): Boolean =
    dataType.existsRecursively { case FloatType | DoubleType => true; case _ => false }

  /**
   * The merge of a pivot. It stands above an aggregation by its own groups and the pivoted column, which in append mode
   * has one result for each column of the pivot, so the larger of two buffers is the one that has a value.
   */
  private def ofPivot(p: PivotFirst, first: Int): Found =
    if (p.aggBufferAttributes.length < p.pivotColumnValues.length) Left("its pivot lists a value twice")
    else Right(p.aggBufferAttributes.indices.map(i => MergeSpec("max", Seq(first + i))))

  private def statistics(merge: String, first: Int, words: Int): MergeSpec =
    MergeSpec(merge, first until first + words, nullable = false)

  private def unknown(f: AggregateFunction): String = s"the buffer of ${f.prettyName} cannot be merged by gpuwin"

  /** Whether values travel to the service, which carries them and never looks at them. */
  private def kept(value: Expression, name: String): Either[String, Unit] =
    if (WireType.of(value.dataType).isDefined) Right(())
    else Left(s"$name over ${value.dataType.simpleString}: gpuwin has no form for such values")

  private def ordered(dataType: DataType, name: String): Either[String, Unit] = dataType match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType | FloatType | DoubleType | DateType |
        TimestampType | TimestampNTZType | BinaryType | _: DecimalType | _: DayTimeIntervalType |
        _: YearMonthIntervalType | TimeOfDay() =>
      Right(())
    case s: StringType if UnsafeRowUtils.isBinaryStable(s) => Right(())
    case nested if WireType.isNested(nested) && SortableBytes.canOrder(nested) => Right(())
    case other => Left(s"$name over ${other.simpleString} cannot be merged by gpuwin")
  }

  /**
   * Raises what Spark raises when merging this aggregate's buffers overflows, by merging two buffers that do: the same
   * error class, message and query context, whatever they are in this version of Spark.
   */
  def raiseOverflow(aggregate: AggregateFunction): Unit = aggregate match {
    case function: DeclarativeAggregate =>
      val buffers = (function.aggBufferAttributes ++ function.inputAggBufferAttributes).map(_.exprId).toSet
      function.mergeExpressions.head
        .transform { case a: AttributeReference if buffers(a.exprId) => largest(a) }
        .eval(null)
    case _ =>
  }

  private def largest(a: AttributeReference): Expression = a.dataType match {
    case LongType => Literal(Long.MaxValue)
    case d: DayTimeIntervalType => Literal(Long.MaxValue, d)
    case BooleanType => Literal(false)
    case d: DecimalType =>
      val value = BigDecimal("9" * d.precision) / BigDecimal(10).pow(d.scale)
      Literal(Decimal(value, d.precision, d.scale), d)
    case other => Literal.default(other)
  }
}

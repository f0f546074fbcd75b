package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.types.{LongType, TimestampNTZType, TimestampType}

/**
 * The window grid of a `window(...)` expression: window k is
 * `[origin + k*slide, origin + k*slide + size)`, in microseconds.
 */
final case class WindowDefinition(time: Expression, sizeUs: Long, slideUs: Long, originUs: Long) {
  /** Width of a pane: every window is a whole number of panes, and so is every slide. */
  val paneUs: Long = BigInt(sizeUs).gcd(BigInt(slideUs)).toLong

  /** The start of the pane that a row falls in, in microseconds; rounds towards minus infinity. */
  def paneStart: Expression = {
    val micros = PreciseTimestampConversion(time, time.dataType, LongType)
    val sinceOrigin = if (originUs == 0) micros else Subtract(micros, Literal(originUs))
    KnownNotNull(Subtract(micros, Pmod(sinceOrigin, Literal(paneUs))))
  }

  /** The most windows that contain an instant. */
  def overlap: Long = (sizeUs + slideUs - 1) / slideUs
}

object WindowDefinition {
  private[gpuwin] val Unreadable = "its window expression is not one that gpuwin can read"


  /**
   * The grid of the struct that Spark's analyser makes of `window(time, size, slide, start)`:
   * `named_struct(start, t - pmod(t - origin, slide) - i*slide, end, start + size)`.
   *
   * The slide and the origin are read from the remainder in it; the rest is not matched by its text but computed at
   * sample instants and compared with the grid, so a rewriting by the optimizer that keeps the values does no harm, and
   * one that does not is refused.
   *
   * Returns the definition and i, the number of slides that this copy of the row lies back.
   */
  def parse(struct: Expression): Either[String, (WindowDefinition, Long)] = struct match {
    case named: CreateNamedStruct if named.valExprs.length == 2 =>
      val Seq(start, end) = named.valExprs
      val times = start.collect {
        case c @ PreciseTimestampConversion(_, TimestampType | TimestampNTZType, LongType) => c
      }
      val remainder = start.collectFirst {
        case Remainder(Subtract(_, Literal(origin: Long, LongType), _), Literal(slide: Long, LongType), _) =>
          (origin, slide)
      }
      (times, remainder) match {
        case (first +: rest, Some((origin, slide))) if slide > 0 && rest.forall(_.semanticEquals(first)) =>
          try sampled(first.child, start, end, origin, slide)
          catch { case _: ArithmeticException => Left("its windows are so long that ends of them leave 64 bits") }
        case _ => Left(Unreadable)
      }
    case _ => Left("its window column is computed by an expression other than window(...)")
  }

  /** The definition and the slides back, read from the windows of a few instants. */
  private def sampled(time: Expression, start: Expression, end: Expression, origin: Long, slide: Long)
      : Either[String, (WindowDefinition, Long)] = {
    val (s0, e0) = (startAt(start, origin), startAt(end, origin))
    val back = (origin - s0) / slide
    val definition = WindowDefinition(time, e0 - s0, slide, Math.floorMod(origin, slide))
    val agrees = samples(origin, slide).forall { t =>
      val expected = t - Math.floorMod(t - origin, slide) - back * slide
      startAt(start, t) == expected && startAt(end, t) == expected + definition.sizeUs
    }
    if (agrees && definition.sizeUs > 0 && back >= 0) Right((definition, back))
    else Left(Unreadable)
  }

  /**
   * The number of slides that another copy of the row lies back, if it is a copy of the same window. Copies differ by a
   * constant, so two instants tell; there can be thousands of copies, and they are read anew for every batch.
   */
  def slidesBack(struct: Expression, definition: WindowDefinition): Option[Long] = struct match {
    case named: CreateNamedStruct if named.valExprs.length == 2 && readsOnly(named, definition.time) =>
      val Seq(start, end) = named.valExprs
      def newest(t: Long): Long = t - Math.floorMod(t - definition.originUs, definition.slideUs)
      val distances = Seq(0L, 1700000000123456L).map { t =>
        val s = startAt(start, t)
        if (startAt(end, t) - s == definition.sizeUs) Some(newest(t) - s) else None
      }
      distances match {
        case Seq(Some(a), Some(b)) if a == b && a >= 0 && a % definition.slideUs == 0 => Some(a / definition.slideUs)
        case _ => None
      }
    case _ => None
  }

  private def readsOnly(struct: Expression, time: Expression): Boolean = struct.collect {
    case PreciseTimestampConversion(child, TimestampType | TimestampNTZType, LongType) => child
  }.forall(_.semanticEquals(time))

  private def samples(origin: Long, slide: Long): Seq[Long] =
    Seq(0L, 1L, -1L, origin, origin - 1, origin + slide - 1, origin + slide, origin - slide, 1700000000123456L,
      -1700000000123456L)

  /** The value in microseconds of a start or end expression for a row whose time is `t`. */
  private def startAt(expression: Expression, t: Long): Long = {
    val bound = expression.transform {
      case PreciseTimestampConversion(_, TimestampType | TimestampNTZType, LongType) => Literal(t)
    }
    bound.eval(InternalRow.empty).asInstanceOf[Long]
  }
}

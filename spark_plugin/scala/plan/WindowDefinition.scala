package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.types.{BooleanType, IntegerType, LongType, TimestampNTZType, TimestampType}

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

  /** Whether both have the same windows, whatever the time is. */
  def isGridOf(other: WindowDefinition): Boolean =
    sizeUs == other.sizeUs && slideUs == other.slideUs && originUs == other.originUs
}

object WindowDefinition {
  private[gpuwin] val Unreadable = "its window is not one that Spark's window(...) makes of one time"

  /**
   * The grid of the struct that Spark's analyser makes of `window(time, size, slide, start)`:
   * `named_struct(start, t - pmod(t - origin, slide) - i*slide, end, start + size)`.
   *
   * Both bounds have to be whole numbers computed from one time ([[WindowBounds]]). The slide and the origin are read
   * from the remainder among them; the rest is not matched by its text but computed at sample instants and compared
   * with the grid, so a rewriting by the optimizer that keeps the values does no harm, and one that does not is
   * refused.
   *
   * Returns the definition and i, the number of slides that this copy of the row lies back.
   */
  def parse(struct: Expression): Either[String, (WindowDefinition, Long)] = struct match {
    case named: CreateNamedStruct if named.valExprs.length == 2 =>
      val remainder = named.valExprs.head.collectFirst {
        case Remainder(Subtract(_, Literal(origin: Long, LongType), _), Literal(slide: Long, LongType), _) =>
          (origin, slide)
      }
      (WindowBounds.of(named), remainder) match {
        case (Some(bounds), Some((origin, slide))) if slide > 0 =>
          try sampled(bounds, origin, slide)
          catch { case _: ArithmeticException => Left("its windows are so long that ends of them leave 64 bits") }
        case _ => Left(Unreadable)
      }
    case _ => Left("its window column is computed by an expression other than window(...)")
  }

  /**
   * The definition and the slides back, read from the windows of a few instants. A window shorter than its slide is
   * none of Spark's.
   */
  private def sampled(bounds: WindowBounds, origin: Long, slide: Long): Either[String, (WindowDefinition, Long)] = {
    val (s0, e0) = bounds.at(origin)
    val back = (origin - s0) / slide
    val definition = WindowDefinition(bounds.time, e0 - s0, slide, Math.floorMod(origin, slide))
    val agrees = samples(origin, slide).forall { t =>
      val expected = t - Math.floorMod(t - origin, slide) - back * slide
      bounds.at(t) == ((expected, expected + definition.sizeUs))
    }
    if (agrees && definition.sizeUs >= slide && back >= 0) Right((definition, back))
    else Left(Unreadable)
  }

  /**
   * The number of slides that another copy of the row lies back, if it is a copy of the same window. Copies differ by a
   * constant, so two instants tell; there can be thousands of copies, and they are read anew for every batch.
   */
  def slidesBack(struct: Expression, definition: WindowDefinition): Option[Long] = {
    def newest(t: Long): Long = t - Math.floorMod(t - definition.originUs, definition.slideUs)
    WindowBounds.of(struct).filter(_.time.semanticEquals(definition.time)).flatMap { bounds =>
      val distances = Seq(0L, 1700000000123456L).map { t =>
        val (s, e) = bounds.at(t)
        if (e - s == definition.sizeUs) Some(newest(t) - s) else None
      }
      distances match {
        case Seq(Some(a), Some(b)) if a == b && a >= 0 && a % definition.slideUs == 0 => Some(a / definition.slideUs)
        case _ => None
      }
    }
  }

  /**
   * The definition of which copies of a row have a window each, as Spark's Expand makes them: all that contain an
   * instant, and no other.
   */
  def ofCopies(copies: Seq[Expression]): Either[String, WindowDefinition] =
    parse(copies.head).flatMap { case (definition, _) =>
      val backs = copies.flatMap(slidesBack(_, definition))
      if (backs.length == copies.length && backs.sorted == (0L until definition.overlap)) Right(definition)
      else Left("its windows do not lie on one grid")
    }

  private def samples(origin: Long, slide: Long): Seq[Long] =
    Seq(0L, 1L, -1L, origin, origin - 1, origin + slide - 1, origin + slide, origin - slide, 1700000000123456L,
      -1700000000123456L)
}

/**
 * The bounds of a struct, in microseconds, as they are computed from the microseconds of one time.
 *
 * What Spark writes for a window is whole numbers from the time to the bound, and only Spark can write it: to a query a
 * bound is an instant, and so is all that it makes of one. An instant on the way, a column, or a second time makes the
 * bound something else, which a few samples need not tell from a window.
 */
private[gpuwin] final case class WindowBounds(time: Expression, start: Expression, end: Expression) {
  /** The bounds for a row whose time is `t`. */
  def at(t: Long): (Long, Long) = (WindowBounds.computed(start, t), WindowBounds.computed(end, t))
}

private[gpuwin] object WindowBounds {
  def of(struct: Expression): Option[WindowBounds] = struct match {
    case named: CreateNamedStruct if named.valExprs.length == 2 =>
      for {
        start <- micros(named.valExprs.head)
        end <- micros(named.valExprs.last)
        times <- timesOf(start).flatMap(of => timesOf(end).map(of ++ _))
        time <- times.headOption
        if times.tail.forall(_.semanticEquals(time))
      } yield WindowBounds(time, start, end)
    case _ => None
  }

  /** The microseconds of which an instant is made. */
  private def micros(instant: Expression): Option[Expression] = instant match {
    case KnownNullable(child) => micros(child)
    case PreciseTimestampConversion(computed, LongType, TimestampType | TimestampNTZType) => Some(computed)
    case _ => None
  }

  /** The times that a whole number is computed from, where there is nothing else that it is computed from. */
  private def timesOf(number: Expression): Option[Seq[Expression]] = number match {
    case PreciseTimestampConversion(time, TimestampType | TimestampNTZType, LongType) => Some(Seq(time))
    case Literal(value, _) if value != null && isWhole(number) => Some(Nil)
    case made if made.children.nonEmpty && isWhole(made) =>
      made.children.map(timesOf).reduce((one, other) => one.flatMap(times => other.map(times ++ _)))
    case _ => None
  }

  private def isWhole(expression: Expression): Boolean = expression.dataType match {
    case LongType | IntegerType | BooleanType => true
    case _ => false
  }

  private def computed(number: Expression, t: Long): Long = number.transform {
    case PreciseTimestampConversion(_, TimestampType | TimestampNTZType, LongType) => Literal(t)
  }.eval(InternalRow.empty).asInstanceOf[Long]
}

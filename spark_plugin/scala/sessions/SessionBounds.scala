package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.gpuwin.shims.InstantPlusInterval
import org.apache.spark.sql.types.{LongType, TimestampNTZType, TimestampType}
import org.apache.spark.unsafe.types.CalendarInterval

/**
 * A plan that yields the session of each row as two longs in microseconds.
 *
 * @param oneGap whether the gap is known to be the same for all rows
 */
final case class SessionBounds(plan: SparkPlan, start: Attribute, end: Attribute, oneGap: Boolean)

/**
 * The bounds of each row's session, taken from the expression of its struct, so that the struct is never built.
 *
 * Where the gap is a fixed number of microseconds, the end is the start plus that many. Spark's own addition goes
 * through the calendar of the time zone, which gives the same number more slowly; it is kept for the instants so late
 * that the sum leaves 64 bits, for its error.
 */
object SessionBounds {

  /**
   * The rows with the bounds of their sessions.
   *
   * @param elsewhere expressions above that may refer to the session itself, which then stays a column
   */
  def apply(rows: SparkPlan, session: Attribute, elsewhere: Seq[Expression]): SessionBounds = {
    val kept = elsewhere.exists(_.references.contains(session))
    rows match {
      case p: ProjectExec =>
        p.projectList.collectFirst {
          case Alias(s: CreateNamedStruct, _) if s.valExprs.length == 2 && p.projectList.exists(e =>
            e.exprId == session.exprId && e.isInstanceOf[Alias] && e.asInstanceOf[Alias].child == s) => s
        }.filter(_ => !kept) match {
          case Some(struct) =>
            val Seq(first, last) = struct.valExprs
            val others = p.projectList.filterNot(_.exprId == session.exprId)
            val fixed = fixedEnd(last)
            of(others, micros(first), fixed.getOrElse(micros(last)), p.child, fixed.isDefined)
          case None => taken(rows, session, kept)
        }
      case _ => taken(rows, session, kept)
    }
  }

  private def taken(rows: SparkPlan, session: Attribute, kept: Boolean): SessionBounds = {
    val others = rows.output.filter(a => kept || a.exprId != session.exprId)
    of(others, micros(GetStructField(session, 0)), micros(GetStructField(session, 1)), rows, oneGap = false)
  }

  private def of(others: Seq[NamedExpression], start: Expression, end: Expression, child: SparkPlan, oneGap: Boolean)
      : SessionBounds = {
    val bounds = Seq(Alias(KnownNotNull(start), "start")(), Alias(KnownNotNull(end), "end")())
    SessionBounds(ProjectExec(others ++ bounds, child), bounds.head.toAttribute, bounds.last.toAttribute, oneGap)
  }

  private def micros(instant: Expression): Expression = PreciseTimestampConversion(instant, instant.dataType, LongType)

  private def fixedEnd(end: Expression): Option[Expression] = unwrapped(end) match {
    case InstantPlusInterval(time, Literal(gap: CalendarInterval, _)) if gap.months == 0 && gap.days == 0 &&
        gap.microseconds >= 0 && (time.dataType == TimestampType || time.dataType == TimestampNTZType) =>
      val start = micros(time)
      Some(If(GreaterThan(start, Literal(Long.MaxValue - gap.microseconds)), micros(end),
        Add(start, Literal(gap.microseconds))))
    case _ => None
  }

  private def unwrapped(e: Expression): Expression = e match {
    case KnownNullable(child) => unwrapped(child)
    case PreciseTimestampConversion(child, _, _) => unwrapped(child)
    case other => other
  }
}

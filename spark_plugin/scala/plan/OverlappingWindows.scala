package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, Expand, Filter, LogicalPlan, UnaryNode}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.{SparkSession => ClassicSession, Strategy}
import org.apache.spark.sql.execution.{ExpandExec, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.gpuwin.shims.RealTimeMode
import org.apache.spark.sql.types.LongType

/**
 * The copies of a row, one per window that may hold it, as one expression and a number.
 *
 * Spark's analyser writes a sliding window of 7 days every minute as an Expand of 10,080 projections, some 300,000
 * expressions, and analyses, optimises and plans them anew for every micro-batch: seconds, whatever the batch holds.
 * The projections differ by a constant, so one stands for all of them until it is known where the aggregation runs.
 *
 * @param newest the window struct of the newest window that may hold a row
 * @param window the attribute that it is known by
 * @param copies how many windows there are, each one slide before the last
 * @param spark  what Spark wrote, for a query that goes on without gpuwin
 */
case class OverlappingWindows(newest: Expression, window: Attribute, copies: Int, slideUs: Long, spark: SparksExpand,
    child: LogicalPlan) extends UnaryNode {
  override def output: Seq[Attribute] = window +: child.output
  /** The Expand as it was. It fits a plan that the optimizer has not seen. */
  def asItWas: Expand = Expand(spark.projections, output, child)
  override lazy val producedAttributes: AttributeSet = AttributeSet(window)
  override protected def withNewChildInternal(newChild: LogicalPlan): LogicalPlan = copy(child = newChild)
}

/** The projections of an Expand, which a plan takes along and does not look into. */
final class SparksExpand(val projections: Seq[Seq[Expression]]) {
  override def toString: String = s"${projections.length} copies"
}

/** [[OverlappingWindows]] in a physical plan. It runs as the Expand that it stands for; on gpuwin it is gone. */
case class OverlappingWindowsExec(newest: Expression, window: Attribute, copies: Int, slideUs: Long, child: SparkPlan)
    extends UnaryExecNode {
  override def output: Seq[Attribute] = window +: child.output
  override lazy val producedAttributes: AttributeSet = AttributeSet(window)

  /** The Expand that Spark would have run. */
  def expanded: ExpandExec =
    ExpandExec((0 until copies).map(back => slidBack(back) +: child.output), output, child)

  private def slidBack(back: Int): Expression = newest match {
    case struct: CreateNamedStruct if back > 0 =>
      struct.withNewChildren(struct.nameExprs.zip(struct.valExprs).flatMap { case (name, instant) =>
        val micros = PreciseTimestampConversion(instant, instant.dataType, LongType)
        Seq(name, PreciseTimestampConversion(Subtract(micros, Literal(back * slideUs)), LongType, instant.dataType))
      })
    case struct => struct
  }

  override protected def doExecute(): RDD[InternalRow] = expanded.execute()
  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(child = newChild)
}

/**
 * The rule that makes [[OverlappingWindows]] of Spark's Expand. It does so once, when a streaming query starts: later
 * than every analysis of the user's DataFrames, before every batch. Whether the query runs in Real-Time Mode is known
 * only with its first batch, whose analysis then puts the Expand back.
 */
class CompactWindows(session: ClassicSession) extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    case write: WriteToStream if GpuWindowConf.get(conf, GpuWindowConf.Enabled).toBoolean =>
      write.copy(inputQuery = AnalysisHelper.allowInvokingTransformsInAnalyzer {
        write.inputQuery.transformDown { case expand: Expand => CompactWindows.of(expand).getOrElse(expand) }
      })
    case batch if batch.exists(_.isInstanceOf[OverlappingWindows]) && RealTimeMode.runs(batch) =>
      AnalysisHelper.allowInvokingTransformsInAnalyzer {
        batch.transformDown { case windows: OverlappingWindows => windows.asItWas }
      }
    case other => other
  }
}

object CompactWindows {
  /** The fewest copies that are compacted: below it, Spark's own plan is cheap enough. */
  val Fewest = 16

  /** The rows of an Expand, if it is that of a sliding window and of nothing else. */
  def of(expand: Expand): Option[OverlappingWindows] = {
    val copies = expand.projections.map(_.head)
    val passed = expand.child.output
    val isWindows = copies.length >= Fewest && expand.output.length == passed.length + 1 &&
      expand.output.tail.map(_.exprId) == passed.map(_.exprId) &&
      expand.projections.forall(p => p.tail.corresponds(passed) {
        case (a: Attribute, b) => a.exprId == b.exprId
        case _ => false
      })
    if (!isWindows) None
    else WindowDefinition.parse(copies.head) match {
      case Right((definition, 0)) if definition.overlap == copies.length &&
          copies.flatMap(WindowDefinition.slidesBack(_, definition)) == (0L until copies.length) =>
        Some(OverlappingWindows(copies.head, expand.output.head, copies.length, definition.slideUs,
          new SparksExpand(expand.projections), withTime(expand.child, definition)))
      case _ => None
    }
  }

  /** The rows with a time. Spark infers the condition, which a scan may then use, from one above its Expand. */
  private def withTime(rows: LogicalPlan, definition: WindowDefinition): LogicalPlan = definition.time match {
    case time: AttributeReference if time.nullable => Filter(IsNotNull(time), rows)
    case _ => rows
  }
}

/**
 * The optimizer's rule that moves conditions on rows below [[OverlappingWindows]], as Spark moves them below an Expand:
 * a scan may use them, and leave out files and partitions.
 */
object FilterBelowWindows extends Rule[LogicalPlan] with PredicateHelper {
  override def apply(plan: LogicalPlan): LogicalPlan = plan.transform {
    case filter @ Filter(condition, windows: OverlappingWindows) =>
      val (below, above) = splitConjunctivePredicates(condition).partition(c =>
        c.deterministic && !SubqueryExpression.hasSubquery(c) && c.references.subsetOf(windows.child.outputSet))
      below.reduceOption(And).fold[LogicalPlan](filter) { pushed =>
        val rows = windows.copy(child = Filter(pushed, windows.child))
        above.reduceOption(And).fold[LogicalPlan](rows)(Filter(_, rows))
      }
  }
}

/** The strategy that plans [[OverlappingWindows]]. */
object OverlappingWindowsStrategy extends Strategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case w: OverlappingWindows =>
      Seq(OverlappingWindowsExec(w.newest, w.window, w.copies, w.slideUs, planLater(w.child)))
    case _ => Nil
  }
}

package org.apache.spark.sql.gpuwin

import java.util.UUID

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, Dataset, Strategy}
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.streaming.operators.stateful.{EventTimeWatermarkExec, StreamingDeduplicateExec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DataType, DateType, LongType, StructType, TimestampNTZType, TimestampType}
import org.apache.spark.unsafe.types.CalendarInterval
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * A specification as `gw.spark.aggregate` describes it to Spark. Its text is read by the service only.
 *
 * @param request  fields of the request to the service
 * @param code     digest of the file with the user's accumulations, which Spark distributes
 * @param delayMs  how far Spark's watermark is behind the largest time
 * @param follows  whether Spark's watermark moves the operator
 * @param noData   whether a batch without data does something once the watermark has moved
 * @param ticks    whether time that passes without rows does something
 * @param identity as a checkpoint keeps it: state of one specification must not be read as state of another
 * @param describe as a plan shows it
 */
final case class SpecifiedWork(request: JObject, code: Option[String], delayMs: Long, follows: Boolean,
    noData: Boolean, ticks: Boolean, identity: String, describe: String) {
  override def toString: String = describe
}

/**
 * A whole specification of gpuwin on a stream: triggers, retractions, allowed lateness, and all else that Spark cannot
 * express.
 *
 * @param inputs the columns that the specification reads
 * @param keys   by which rows meet; a constant where they must all meet
 * @param now    the current time, for which Spark puts that of the micro-batch
 */
case class SpecifiedAggregation(work: SpecifiedWork, inputs: Seq[Attribute], keys: Seq[Attribute], now: Expression,
    override val output: Seq[Attribute], child: LogicalPlan) extends UnaryNode with SupportsNonDeterministicExpression {
  override def allowNonDeterministicExpression: Boolean = true
  override lazy val producedAttributes: AttributeSet = AttributeSet(output)
  override protected def withNewChildInternal(newChild: LogicalPlan): LogicalPlan = copy(child = newChild)
}

/** The entry from Python. */
object SpecifiedAggregation {
  private implicit val formats: Formats = DefaultFormats

  /** The delay of the column's watermark in milliseconds; -1 if the stream has none, -2 if it has another one. */
  def watermarkOf(frame: ClassicDataFrame, column: Int): Long = {
    val nodes = frame.queryExecution.analyzed.collect { case w: EventTimeWatermark => w }
    val metadata = frame.queryExecution.analyzed.output(column).metadata
    if (nodes.isEmpty) -1L
    else if (nodes.length == 1 && metadata.contains(EventTimeWatermark.delayKey))
      metadata.getLong(EventTimeWatermark.delayKey)
    else -2L
  }

  /** The operator on a stream whose columns are those that the specification reads. */
  def of(frame: ClassicDataFrame, placing: String, request: String, output: String): ClassicDataFrame = {
    val said = JsonMethods.parse(placing)
    val plan = frame.queryExecution.analyzed
    val time = (said \ "time").extractOpt[Int]
    val added = time.filter(watermarkOf(frame, _) == -1L)
    val delayMs = added.fold(time.fold(0L)(watermarkOf(frame, _)))(_ => (said \ "delay_ms").extract[Long])
    val work = SpecifiedWork(
      JsonMethods.parse(request).extract[JObject],
      (said \ "code").extractOpt[String],
      delayMs,
      (said \ "follows").extract[Boolean], (said \ "no_data").extract[Boolean], (said \ "ticks").extract[Boolean],
      // A started query goes on with the watermark that Spark has kept, from which only this delay leads to the
      // largest time.
      s"${(said \ "identity").extract[String]}; withWatermark: $delayMs ms".replace('\n', ' '),
      (said \ "describe").extract[String])
    val keyed = (said \ "keys").extract[Seq[Int]].map(plan.output)
    val together = if (keyed.isEmpty) Seq(Alias(Literal(0), "gpuwin_together")()) else Nil
    val marked = added.map(at => Alias(asTimestamp(plan.output(at)), "gpuwin_time")())
    val extended = Project(plan.output ++ together ++ marked, plan)
    val watermarked = marked.fold[LogicalPlan](extended)(t =>
      EventTimeWatermark(UUID.randomUUID, t.toAttribute, new CalendarInterval(0, 0, Math.multiplyExact(delayMs, 1000L)),
        extended))
    val columns = toAttributes(DataType.fromJson(output).asInstanceOf[StructType]).map(_.withNullability(true))
    val keys = if (keyed.isEmpty) together.map(_.toAttribute) else keyed
    Dataset.ofRows(frame.sparkSession,
      SpecifiedAggregation(work, plan.output, keys, CurrentTimestamp(), columns, watermarked))
  }

  /**
   * A check against two watermarks that wait for each other. One of the results moves when there are results, which
   * there are when that of the rows moves; and Spark's watermark is the smaller of the two, so neither ever would.
   */
  def refuseWaitingForItself(plan: SparkPlan, conf: SQLConf): Unit = {
    val waits = plan.exists {
      case w: EventTimeWatermarkExec => w.child.exists {
        case s: SpecifiedAggregationExec => s.work.follows
        case _ => false
      }
      case _ => false
    }
    if (waits && conf.getConf(SQLConf.STREAMING_MULTIPLE_WATERMARK_POLICY) == "min") throw new GpuWindowException(
      "A withWatermark above gw.spark.aggregate waits for its results, and they wait for Spark's watermark, which is " +
        "the smaller of the two: neither would ever move. Leave it out, and write the results to a table that a " +
        "second query reads, with a watermark of its own.")
  }

  /** The timestamp of an instant without a zone, or of a date: in UTC, whatever the zone of the session. */
  private def asTimestamp(time: Attribute): Expression = {
    def ofMicros(e: Expression) =
      PreciseTimestampConversion(PreciseTimestampConversion(e, TimestampNTZType, LongType), LongType, TimestampType)
    time.dataType match {
      case TimestampNTZType => ofMicros(time)
      case DateType => ofMicros(Cast(time, TimestampNTZType))
      case _ => time
    }
  }
}

/**
 * [[SpecifiedAggregation]] in a physical plan, until [[OffloadRule]] puts [[GpuWindowOperatorExec]] in its place.
 *
 * Spark fills in the state info and the watermarks of the stateful operators that it knows, and of no others. So the
 * child is one of those, a deduplication by the keys, which is never run.
 */
case class SpecifiedAggregationExec(work: SpecifiedWork, inputs: Seq[Attribute], place: Attribute, now: Expression,
    override val output: Seq[Attribute], child: SparkPlan) extends UnaryExecNode {
  override lazy val producedAttributes: AttributeSet = AttributeSet(output)
  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(child = newChild)
  override protected def doExecute() = throw new GpuWindowException(
    "gw.spark.aggregate on a stream runs on gpuwin's own operator, and this plan did not come through the plugin.")
}

/**
 * The strategy that plans [[SpecifiedAggregation]]. A shuffle brings rows in any order, so each takes its place in the
 * batch along.
 */
object SpecifiedAggregationStrategy extends Strategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case s: SpecifiedAggregation =>
      val place = Alias(MonotonicallyIncreasingID(), "gpuwin_place")()
      val placed = ProjectExec((s.inputs ++ s.keys).distinct :+ place, planLater(s.child))
      Seq(SpecifiedAggregationExec(s.work, s.inputs, place.toAttribute, s.now, s.output,
        StreamingDeduplicateExec(s.keys, placed, None, None, None)))
    case _ => Nil
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.sql.catalyst.expressions.{Attribute, Literal}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StructField, StructType}
import org.json4s._

/**
 * `gw.spark.aggregate` on a stream: each partition is a gpuwin operator in the device service, which gets the rows as
 * they are and answers with what the specification emits.
 *
 * @param chained whether a stateful operator is below. The rows that it emits when the watermark moves are older than
 *                the watermark, and come in batches without data, too
 * @param batch   the time of the micro-batch in microseconds, and whether it has rows
 */
case class GpuWindowOperatorExec(
    work: SpecifiedWork,
    override val output: Seq[Attribute],
    chained: Boolean,
    batch: (Long, Boolean),
    settings: TaskSettings,
    stateInfo: Option[StatefulOperatorStateInfo],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    @transient child: SparkPlan)
  extends DeviceOperator {
  import GpuWindowOperatorExec._

  override def storeName: String = DeviceOperator.StoreName
  override def nodeName: String = "GpuWindowOperator"
  override def simpleString(maxFields: Int): String =
    s"GpuWindowOperator ${work.describe}, device=$device, " +
      s"watermark=${watermarks._2.filter(_ != Long.MinValue).getOrElse(if (work.follows) "none" else "its own")}"

  override protected def withNewChildInternal(newChild: SparkPlan): GpuWindowOperatorExec = copy(child = newChild)

  override val wireSchema: StructType =
    StructType(child.output.zipWithIndex.map { case (a, i) => StructField(s"c$i", a.dataType) })
  override def takesPayloads: Boolean = false
  override def paneAt: Option[Int] = None
  override def logsWhatCame: Boolean = false
  override def worksWithoutRows: Boolean = true
  override def mergesSegments: Boolean = false
  override def functions: Seq[AggregateFunction] = Nil
  override def watermarks: (Option[Long], Option[Long]) =
    (None, eventTimeWatermarkForEviction.filter(_ => work.follows))
  override def reader(allocator: BufferAllocator): ArrowChunkReader = new ArrowChunkReader(allocator, identity)
  override def request: JObject = JObject(List(
    "window" -> JString("specified"),
    "delay" -> JLong(Math.multiplyExact(work.delayMs, 1000L)),
    "code" -> work.code.fold[JValue](JNull)(JString(_)),
    "chained" -> JBool(chained)) ++ work.request.obj)

  /** Whether Spark is to plan a batch without data: for time that passes at most each second, to spare the core. */
  override def shouldRunAnotherBatch(newInputWatermark: Long): Boolean =
    (work.noData && eventTimeWatermarkForEviction.exists(newInputWatermark > _)) ||
      (work.ticks && System.currentTimeMillis() - batch._1 / 1000 >= TickMs)
}

object GpuWindowOperatorExec {
  private val TickMs = 1000L

  /**
   * The operator in the place of a planned specification.
   *
   * @param rows the plan below the shuffle's consumer, already rewritten
   */
  def from(planned: SpecifiedAggregationExec, carrier: StreamingDeduplicateExec, rows: SparkPlan,
      conf: SQLConf): GpuWindowOperatorExec = {
    val now = planned.now match {
      case Literal(micros: Long, _) => micros
      case other => throw new GpuWindowException(s"The plan does not say the time of its batch, but $other.")
    }
    val chained = rows.exists(_.isInstanceOf[StateStoreWriter])
    val data = chained || rows.collectLeaves().exists {
      case scan: LocalTableScanExec => scan.rows.nonEmpty
      case _ => true
    }
    val wanted = ProjectExec(planned.inputs :+ planned.place, rows)
    GpuWindowOperatorExec(planned.work, planned.output, chained, (now, data), TaskSettings.of(conf), carrier.stateInfo,
      carrier.eventTimeWatermarkForLateEvents, carrier.eventTimeWatermarkForEviction,
      ApplyColumnarRulesAndInsertTransitions(Nil, outputsColumnar = false)(wanted))
  }
}

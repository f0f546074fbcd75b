package org.apache.spark.sql.gpuwin

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.{Append, Complete, Update}
import org.apache.spark.sql.execution.{ApplyColumnarRulesAndInsertTransitions, SparkPlan}
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.gpuwin.shims.OperatorProgress
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{OutputMode, StateOperatorProgress}
import org.apache.spark.sql.types.StructType
import org.json4s.JObject

/**
 * A windowed aggregation of Spark whose state is in the device service. It takes cells (keys, pane, buffers) or
 * proto-sessions (keys, start, end, buffers) from its child, and emits one row of merged buffers for each window that
 * closed (append), changed (update) or exists (complete).
 *
 * @param keys    their names in the query
 * @param mapSide where the cells are made; those of the device service come as payloads ([[Payload]])
 */
case class GpuWindowExec(
    output: Seq[Attribute],
    keys: Seq[String],
    windowAt: Option[Int],
    spec: WindowSpec,
    functions: Seq[AggregateFunction],
    settings: TaskSettings,
    stateInfo: Option[StatefulOperatorStateInfo],
    outputMode: Option[OutputMode],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    storeName: String,
    mapSide: MapSide,
    @transient child: SparkPlan)
  extends DeviceOperator {

  override def nodeName: String = "GpuWindow"
  override def simpleString(maxFields: Int): String =
    s"GpuWindow [${keys.mkString(", ")}], ${spec.describe}, ${outputMode.map(_.toString).getOrElse("")}, " +
      s"device=$device, watermark=$watermark"

  /** The watermark in a plan; a query that was not started has none yet. */
  private def watermark: String =
    if (!spec.watermarked) "none"
    else eventTimeWatermarkForEviction.filter(_ != Long.MinValue).fold("not yet")(_.toString)

  override def outputPartitioning: Partitioning = mapSide match {
    case OnService(partitioning) => partitioning
    case InSpark(_) => child.outputPartitioning
  }
  override protected def withNewChildInternal(newChild: SparkPlan): GpuWindowExec = copy(child = newChild)

  override def wireSchema: StructType = spec.wireSchema
  override def takesPayloads: Boolean = mapSide.isInstanceOf[OnService]
  override def request: JObject = spec.json
  override def paneAt: Option[Int] = Some(spec.keyCount)
  override def logsWhatCame: Boolean = spec.window.logsWhatCame
  override def worksWithoutRows: Boolean = false
  override def mergesSegments: Boolean = true
  override def batch: (Long, Boolean) = (0L, true)
  override def reader(allocator: BufferAllocator): ArrowChunkReader = WindowChunks.reader(spec, windowAt, allocator)

  override def shouldRunAnotherBatch(newInputWatermark: Long): Boolean =
    (outputMode.contains(Append) || outputMode.contains(Update)) &&
      eventTimeWatermarkForEviction.exists(newInputWatermark > _)

  /** The late and the evicting watermark; none where the window does not carry the event time. */
  override def watermarks: (Option[Long], Option[Long]) = {
    val complete = outputMode.contains(Complete)
    (eventTimeWatermarkForLateEvents.filter(_ => spec.watermarked && (!complete || spec.window.dropsInCompleteMode)),
      eventTimeWatermarkForEviction.filter(_ => spec.watermarked && !complete))
  }

  /** Spark's progress. Rows that were dropped below the shuffle count as dropped by this operator, as in Spark. */
  override def getProgress(): StateOperatorProgress = {
    child.collectFirst { case s: ShuffleExchangeExec => s }
      .foreach(LastMapSides.ran(stateInfo, _, longMetric("gpuwinCellsIn").value))
    val own = super.getProgress()
    OperatorProgress.withDropped(own, own.numRowsDroppedByWatermark + DropsLateRows.below(child))
  }
}

object GpuWindowExec {
  /** The operator in the place of an aggregation that was recognised. */
  def from(found: WindowedAggregate, conf: SQLConf): GpuWindowExec = {
    val save = found.save
    val (cells, mapSide) = MapSide.below(found, conf)
    val own = OperatorCellsExec.in(cells, save.info)
    val rows = ApplyColumnarRulesAndInsertTransitions(Nil, outputsColumnar = false)(own)
    GpuWindowExec(WireValue.received(save.output, found.windowAt), found.named.keys, found.windowAt,
      WindowSpec.of(found), found.functions, TaskSettings.of(conf), save.info, save.outputMode, save.late,
      save.eviction, found.storeName, mapSide, rows)
  }
}

/** Settings that a task needs, read once on the driver. */
final case class TaskSettings(device: String, timeoutMs: Long, retries: Int, chunkRows: Int, chunkBytes: Long,
    maxSegments: Int, answerBytes: Long, mapSideBytes: Long)

object TaskSettings {
  def of(conf: SQLConf): TaskSettings = {
    def long(e: ConfEntry) = GpuWindowConf.get(conf, e).toLong
    TaskSettings(GpuWindowConf.get(conf, GpuWindowConf.Device).toLowerCase(java.util.Locale.ROOT),
      long(GpuWindowConf.Timeout) * 1000, long(GpuWindowConf.Retries).toInt, long(GpuWindowConf.ChunkRows).toInt,
      long(GpuWindowConf.ChunkBytes), long(GpuWindowConf.MaxSegments).toInt,
      long(GpuWindowConf.AnswerBytes), long(GpuWindowConf.MapSideBytes))
  }
}

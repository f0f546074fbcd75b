package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.plans.physical.{Distribution, Partitioning, UnspecifiedDistribution}
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.{Append, Update}
import org.apache.spark.sql.execution.{ApplyColumnarRulesAndInsertTransitions, ColumnarToRowExec, RowToColumnarTransition, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.vectorized.ColumnarBatch

/**
 * A windowed aggregation whose state lives on the device: it takes cells (keys, pane, aggregation buffers) from its
 * child, and yields one row of merged buffers for each window that closed (append), changed (update) or exists
 * (complete).
 *
 * To Spark it is a stateful operator like its own. [[StateStoreWriter]] gives it the metrics and the progress report,
 * the watermark propagation, and `shouldRunAnotherBatch`, by which Spark plans a batch without data once the watermark
 * has moved. Its durable state is a log of columnar segments in Spark's state store, under the name `gpuwin`, so commit,
 * abort, versions, maintenance and both providers are Spark's ([[StateLog]]). What happens to one partition in one batch
 * is told in [[WindowTask]].
 *
 * Input is rows, output is columnar: Spark puts its own columnar-to-row conversion above, inside whole-stage code
 * generation. Below a transition like this one Spark looks no further, so the rule converts what is below.
 */
case class GpuWindowExec(
    output: Seq[Attribute],
    keys: Seq[Attribute],
    windowAt: Int,
    spec: WindowSpec,
    functions: Seq[org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate],
    settings: TaskSettings,
    stateInfo: Option[StatefulOperatorStateInfo],
    outputMode: Option[OutputMode],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    override val stateStoreNames: Seq[String],
    child: SparkPlan)
  extends RowToColumnarTransition with StateStoreWriter {

  override def nodeName: String = "GpuWindow"
  override def shortName: String = GpuWindowExec.OperatorName
  override def simpleString(maxFields: Int): String =
    s"GpuWindow [${keys.map(_.name).mkString(", ")}], ${spec.describe}, ${outputMode.map(_.toString).getOrElse("")}, " +
      s"device=${settings.device}, watermark=${eventTimeWatermarkForEviction.filter(_ != Long.MinValue).getOrElse("none")}"

  override def supportsColumnar: Boolean = true
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = Nil
  override def requiredChildDistribution: Seq[Distribution] = Seq(UnspecifiedDistribution)
  override protected def withNewChildInternal(newChild: SparkPlan): GpuWindowExec = copy(child = newChild)

  /** Spark has written the schema of the operator it planned before this one took its place. */
  override def validateAndMaybeEvolveStateSchema(
      hadoopConf: Configuration, batchId: Long, stateSchemaVersion: Int): List[StateSchemaValidationResult] = Nil

  override def shouldRunAnotherBatch(newInputWatermark: Long): Boolean =
    (outputMode.contains(Append) || outputMode.contains(Update)) &&
      eventTimeWatermarkForEviction.exists(newInputWatermark > _)

  override protected def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    GpuWindowExec.CustomMetrics.map { case (name, text) => StatefulOperatorCustomSumMetric(name, text) }

  override protected def doExecute(): RDD[InternalRow] = ColumnarToRowExec(this).execute()

  override protected def doExecuteColumnar(): RDD[ColumnarBatch] = {
    metrics // created on the driver, before the plan is serialised
    new GpuWindowRDD(child.execute(), this, getStateInfo, session.sessionState,
      Some(session.streams.stateStoreCoordinator))
  }

  /** What the watermarks mean for this operator: none where the window does not carry the event time. */
  def watermarks: (Option[Long], Option[Long]) =
    if (!spec.watermarked || outputMode.contains(
      org.apache.spark.sql.catalyst.streaming.InternalOutputModes.Complete)) (None, None)
    else (eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction)

  /** Called on the executor when the partition's rows have been consumed and its state is committed. */
  private[gpuwin] def report(store: StateStore, done: BatchReport, commitMs: Long, updateMs: Long): Unit = {
    longMetric("numUpdatedStateRows") += done.updated
    longMetric("numRemovedStateRows") += done.removed
    longMetric("numRowsDroppedByWatermark") += done.dropped
    longMetric("allUpdatesTimeMs") += updateMs
    longMetric("allRemovalsTimeMs") += done.emitMs
    longMetric("commitTimeMs") += commitMs
    setStoreMetrics(store)
    // Spark counts the entries of the store; what a user asks is how many cells are kept.
    longMetric("numTotalStateRows") += done.cells - store.metrics.numKeys
    longMetric("stateMemory") += done.stateBytes
    setOperatorMetrics()
    done.custom.foreach { case (name, value) => longMetric(name) += value }
  }

  private[gpuwin] def countOutput(rows: Long): Unit = longMetric("numOutputRows") += rows
}

object GpuWindowExec {
  val OperatorName = "gpuwin"
  val StoreName = "gpuwin"

  val CustomMetrics: Seq[(String, String)] = Seq(
    "gpuwinDeviceTimeMs" -> "time in the device service",
    "gpuwinBytesToDevice" -> "bytes sent to the device service",
    "gpuwinBytesFromDevice" -> "bytes received from the device service",
    "gpuwinCellsIn" -> "cells sent to the device service",
    "gpuwinSegments" -> "segments in the state log",
    "gpuwinCompactions" -> "compactions of the state log",
    "gpuwinLogBytesWritten" -> "bytes written to the state log",
    "gpuwinResidentHits" -> "partitions whose state was resident",
    "gpuwinServiceRestarts" -> "times the service died under a task")

  def from(found: WindowedAggregate, conf: SQLConf): GpuWindowExec = {
    val save = found.save
    GpuWindowExec(save.output, found.keys, found.windowAt, WindowSpec.of(found), found.functions, TaskSettings.of(conf),
      save.stateInfo, save.outputMode, save.eventTimeWatermarkForLateEvents, save.eventTimeWatermarkForEviction,
      Seq(StoreName), ApplyColumnarRulesAndInsertTransitions(Nil, outputsColumnar = false)(found.cells))
  }
}

/** The part of an operator that the device service has to know, as it travels in the request. */
final case class WindowSpec(sizeUs: Long, slideUs: Long, originUs: Long, watermarked: Boolean, mode: String,
    types: Seq[org.apache.spark.sql.types.DataType], keyCount: Int, merges: Seq[MergeSpec]) {

  /** Types of the columns of a cell: keys, pane, buffers. */
  def wireSchema: org.apache.spark.sql.types.StructType = WireType.schema(types)

  def describe: String =
    if (sizeUs == slideUs) s"tumbling ${WindowSpec.duration(sizeUs)}"
    else s"sliding ${WindowSpec.duration(sizeUs)} every ${WindowSpec.duration(slideUs)}"

  def json: String = {
    val names = wireSchema.fields.map(f => "\"" + f.dataType.simpleString + "\"").mkString(",")
    s"""{"size":$sizeUs,"slide":$slideUs,"origin":$originUs,"mode":"$mode","types":[$names],"keys":$keyCount,""" +
      s""""merges":[${merges.map(_.json).mkString(",")}]}"""
  }
}

object WindowSpec {
  def of(found: WindowedAggregate): WindowSpec = {
    val buffers = found.save.output.drop(found.keys.length + 1)
    val types = found.keys.map(_.dataType) ++ (org.apache.spark.sql.types.LongType +: buffers.map(_.dataType))
    WindowSpec(found.window.sizeUs, found.window.slideUs, found.window.originUs, found.watermarked,
      found.save.outputMode.map(_.toString.toLowerCase(java.util.Locale.ROOT)).getOrElse("append"), types,
      found.keys.length, found.merges)
  }

  private def duration(us: Long): String =
    if (us % 86400000000L == 0) s"${us / 86400000000L} d" else if (us % 3600000000L == 0) s"${us / 3600000000L} h"
    else if (us % 60000000L == 0) s"${us / 60000000L} min" else if (us % 1000000L == 0) s"${us / 1000000L} s"
    else s"$us us"
}

/** Settings that a task needs, read once on the driver. */
final case class TaskSettings(device: String, timeoutMs: Long, retries: Int, chunkRows: Int, chunkBytes: Long,
    maxSegments: Int, answerBytes: Long)

object TaskSettings {
  def of(conf: SQLConf): TaskSettings = {
    def long(e: ConfEntry) = GpuWindowConf.get(conf, e).toLong
    TaskSettings(GpuWindowConf.get(conf, GpuWindowConf.Device).toLowerCase(java.util.Locale.ROOT),
      long(GpuWindowConf.Timeout) * 1000, long(GpuWindowConf.Retries).toInt, long(GpuWindowConf.ChunkRows).toInt,
      long(GpuWindowConf.ChunkBytes), long(GpuWindowConf.MaxSegments).toInt,
      long(GpuWindowConf.AnswerBytes))
  }
}

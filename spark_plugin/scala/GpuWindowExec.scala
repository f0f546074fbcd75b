package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.plans.physical.{Distribution, Partitioning, UnspecifiedDistribution}
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.{Append, Complete, Update}
import org.apache.spark.sql.execution.{ApplyColumnarRulesAndInsertTransitions, ColumnarToRowExec, RowToColumnarTransition, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{OutputMode, StateOperatorProgress}
import org.apache.spark.sql.vectorized.ColumnarBatch

/**
 * A windowed aggregation whose state lives on the device: it takes cells (keys, pane, aggregation buffers) or
 * proto-sessions (keys, start, end, aggregation buffers) from its child, and yields one row of merged buffers for each window that closed (append), changed (update) or exists
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
    functions: Seq[org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction],
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
  def watermarks: (Option[Long], Option[Long]) = {
    val complete = outputMode.contains(Complete)
    (eventTimeWatermarkForLateEvents.filter(_ => spec.watermarked && (!complete || spec.window.dropsInCompleteMode)),
      eventTimeWatermarkForEviction.filter(_ => spec.watermarked && !complete))
  }

  /** What was dropped below the shuffle counts as dropped by this operator, as it does in Spark. */
  override def getProgress(): StateOperatorProgress = {
    def droppedBelow(plan: SparkPlan): Long = plan match {
      case sessions: ProtoSessionsExec => sessions.longMetric("numRowsDroppedByWatermark").value
      case _: StateStoreWriter => 0L
      case other => other.children.map(droppedBelow).sum
    }
    val own = super.getProgress()
    own.copy(newNumRowsUpdated = own.numRowsUpdated, newNumRowsRemoved = own.numRowsRemoved,
      newNumRowsDroppedByWatermark = own.numRowsDroppedByWatermark + droppedBelow(child))
  }

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
      save.info, save.outputMode, save.late, save.eviction,
      Seq(StoreName), ApplyColumnarRulesAndInsertTransitions(Nil, outputsColumnar = false)(found.cells))
  }
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

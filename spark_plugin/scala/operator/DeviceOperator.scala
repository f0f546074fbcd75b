package org.apache.spark.sql.gpuwin

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.SortOrder
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.plans.physical._
import org.apache.spark.sql.execution.{ColumnarToRowExec, RowToColumnarTransition}
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.gpuwin.shims.{NamedStateStore, UncheckedStateSchema}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s.JObject

/**
 * A stateful operator whose state is in the device service, in the form that Spark and [[WindowTask]] ask for.
 *
 * To Spark it is a stateful operator like its own. [[StateStoreWriter]] gives it the metrics and the progress report,
 * the watermark propagation, and `shouldRunAnotherBatch`, by which Spark plans a batch without data. Its durable state
 * is a log of segments in Spark's state store, under the name `gpuwin`, so commit, abort, versions, maintenance and
 * both providers are Spark's ([[StateLog]]). [[WindowTask]] is one partition in one batch.
 *
 * Input is rows, output is columnar: Spark puts its own columnar-to-row conversion above, inside whole-stage code
 * generation. Below a transition like this one Spark looks no further, so the rule converts what is below.
 *
 * Every task reads a copy of the operator, without the plan below, which was a third of the bytes.
 */
trait DeviceOperator extends RowToColumnarTransition with NamedStateStore with UncheckedStateSchema {
  def settings: TaskSettings
  /** Name of the state store in each partition's folder. */
  def storeName: String
  /** Types of the rows that are sent to the service. */
  def wireSchema: StructType
  /** Whether cells come as the service made them of rows ([[DeviceCellsExec]]); else they come as rows. */
  def takesPayloads: Boolean
  /** Description of the operator for the service, made by each task. */
  def request: JObject
  /** Position of the column with the start of a row's pane or session; none where the service assigns windows. */
  def paneAt: Option[Int]
  /** Whether the state log keeps the rows as they came; else it keeps the entries that the service returns. */
  def logsWhatCame: Boolean
  /** Whether a batch without rows can change an empty state, or emit from it. */
  def worksWithoutRows: Boolean
  /** Whether segments of the log can be merged without the state. */
  def mergesSegments: Boolean
  /** The late and the evicting watermark, in milliseconds, as far as they mean something here. */
  def watermarks: (Option[Long], Option[Long])
  /** The time of the batch in microseconds, and whether it has rows in any partition. */
  def batch: (Long, Boolean)
  /** Aggregate functions in the order of their buffers, for the error that an overflow raises. */
  def functions: Seq[AggregateFunction]
  /** A reader of the service's answers. */
  def reader(allocator: BufferAllocator): ArrowChunkReader

  /** A sort-merge join above calls this in its tasks, where the plan below is not. */
  override protected[sql] def cleanupResources(): Unit = if (child != null) super.cleanupResources()

  override def shortName: String = DeviceOperator.Name

  /** The device that was asked for and, once a batch ran, the devices that hold the state. */
  def device: String = {
    def count(name: String): Long = metrics.get(name).fold(0L)(_.value)
    val found = Seq("cuda" -> "gpuwinPartitionsOnCuda", "cpu" -> "gpuwinPartitionsOnCpu").collect {
      case (device, metric) if count(metric) > 0 => device
    }
    if (found.isEmpty || found == Seq(settings.device)) settings.device
    else s"${settings.device} (${found.mkString(" and ")})"
  }

  override def supportsColumnar: Boolean = true
  override def outputOrdering: Seq[SortOrder] = Nil

  /** The distribution that the shuffle below brings, said as Spark's own stateful operators say it. */
  override def requiredChildDistribution: Seq[Distribution] = Seq(child.outputPartitioning match {
    case HashPartitioning(keys, partitions) => StatefulOpClusteredDistribution(keys, partitions)
    case SinglePartition => AllTuples
    case _ => UnspecifiedDistribution
  })

  override protected def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    DeviceOperator.CustomMetrics.map { case (name, text) => StatefulOperatorCustomSumMetric(name, text) }

  override protected def doExecute(): RDD[InternalRow] = ColumnarToRowExec(this).execute()

  override protected def doExecuteColumnar(): RDD[ColumnarBatch] = {
    metrics // created on the driver, before the plan is serialised
    GpuWindowRDD(child.execute(), this, getStateInfo, session)
  }

  /** Metrics of a partition, set on the executor once its rows have been consumed and its state is committed. */
  private[gpuwin] def report(store: StateStore, done: BatchReport, commitMs: Long, updateMs: Long): Unit = {
    longMetric("numUpdatedStateRows") += done.updated
    longMetric("numRemovedStateRows") += done.removed
    longMetric("numRowsDroppedByWatermark") += done.dropped
    longMetric("allUpdatesTimeMs") += updateMs
    longMetric("allRemovalsTimeMs") += done.emitMs
    longMetric("commitTimeMs") += commitMs
    setStoreMetrics(store)
    // Spark counts the entries of the store, and a user wants the cells. (Adding a negative number to a metric does
    // nothing.)
    longMetric("numTotalStateRows").set(done.cells)
    longMetric("stateMemory") += done.stateBytes
    setOperatorMetrics()
    done.custom.foreach { case (name, value) => longMetric(name) += value }
  }

  /** Metrics of this operator alone, of a batch with so many rows. */
  private[gpuwin] def customMetrics(done: BatchReport, rows: Long): Map[String, Long] = Map.empty

  private[gpuwin] def countOutput(rows: Long): Unit = longMetric("numOutputRows") += rows
}

object DeviceOperator {
  val Name = "gpuwin"
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
    "gpuwinPartitionsOnCuda" -> "partitions whose state was on the GPU",
    "gpuwinPartitionsOnCpu" -> "partitions whose state was on the CPU",
    "gpuwinServiceRestarts" -> "times the service died under a task")
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{WindowSpec => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.expressions.codegen._
import org.apache.spark.sql.catalyst.plans.physical.{Partitioning, UnknownPartitioning}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.types.StructType

/**
 * The map side of windows on a grid, on the device service: the columns of the child are appended to Arrow buffers, the
 * service makes cells of the rows, and one row for each partition of the shuffle leaves with the cells that are for it
 * ([[Payload]]). It replaces Spark's partial aggregate, and keeps nothing between batches.
 *
 * It takes part in whole-stage code generation: the loop over the rows writes into the buffers. [[RowsToPanes]] is what
 * a task does with them.
 *
 * @param spec      the cells
 * @param places    see [[SentColumns]]; the last column of the child is the partition of the row
 * @param constants see [[SentColumns]]
 * @param tags      see [[PartitionTags]]
 */
case class DevicePanesExec(
    spec: WindowSpec,
    places: Seq[Int],
    constants: Seq[Literal],
    partitions: Int,
    tags: Array[Int],
    functions: Seq[AggregateFunction],
    settings: TaskSettings,
    override val output: Seq[Attribute],
    child: SparkPlan)
  extends EmitsBetweenRows {

  override def nodeName: String = "DevicePanes"
  override def simpleString(maxFields: Int): String = s"DevicePanes ${spec.describe}, $partitions partitions"
  override def outputPartitioning: Partitioning = UnknownPartitioning(child.outputPartitioning.numPartitions)
  override def outputOrdering: Seq[SortOrder] = Nil
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override protected def withNewChildInternal(newChild: SparkPlan): DevicePanesExec = copy(child = newChild)

  override lazy val metrics: Map[String, SQLMetric] = DevicePanesExec.Metrics.map { case (name, text) =>
    name -> SQLMetrics.createMetric(sparkContext, text)
  }

  /** What a task needs of it. */
  private lazy val work = PanesWork(spec, places, constants, partitions, tags,
    WireType.schema(child.output.map(_.dataType)), functions, settings, metrics)

  override protected def doExecute(): RDD[InternalRow] = {
    val task = work
    child.execute().mapPartitionsInternal(rows => new RowsToPanes(task).of(rows))
  }

  private var panes: String = _

  override protected def doProduce(ctx: CodegenContext): String = {
    val given = ctx.addReferenceObj("work", work)
    val kind = classOf[RowsToPanes].getName
    panes = ctx.addMutableState(kind, "panes", v => s"$v = new $kind($given);", forceInline = true)
    loop(ctx, panes, "finish", "")
  }

  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String = {
    val appends = input.zip(child.output).zipWithIndex.map { case ((value, attribute), i) =>
      val kind = RowColumn.classOf(WireType.of(attribute.dataType).get).getName
      val column = ctx.addMutableState(kind, s"column$i", v => s"$v = ($kind) $panes.column($i);", forceInline = true)
      val put = s"$column.put(${value.value});"
      s"""
         |${value.code}
         |${if (attribute.nullable) s"if (${value.isNull}) { $column.putNull(); } else { $put }" else put}
       """.stripMargin
    }
    s"""
       |${appends.mkString("\n")}
       |$panes.rowCame();
       |while ($panes.ready() && !shouldStop()) $emit();
     """.stripMargin
  }
}

object DevicePanesExec {
  val Metrics: Map[String, String] = Map(
    "numOutputRows" -> "number of output rows",
    "gpuwinRowsIn" -> "rows sent to the device service",
    "gpuwinCellsOut" -> "cells received from the device service",
    "gpuwinParts" -> "parts in which rows were aggregated",
    "gpuwinDeviceTimeMs" -> "time in the device service",
    "gpuwinBytesToDevice" -> "bytes sent to the device service",
    "gpuwinServiceRestarts" -> "times the service died under a task")
}

/** The part of a [[DevicePanesExec]] that a task needs. `sent` are the columns of its rows. */
final case class PanesWork(spec: WindowSpec, places: Seq[Int], constants: Seq[Literal], partitions: Int,
    tags: Array[Int], sent: StructType, functions: Seq[AggregateFunction], settings: TaskSettings,
    metrics: Map[String, SQLMetric])

package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.plans.physical.{AllTuples, ClusteredDistribution, Distribution, Partitioning}
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}

/**
 * Windows (keys, window, buffers) of a batch query, made of cells (keys, pane, buffers). All panes of a window must
 * meet, so the input is partitioned by the keys alone, and without keys is one partition.
 *
 * @param grouping   the columns of `child` before its buffers: the keys, and the pane where the window was
 * @param pane       which of them is the pane
 * @param aggregates in mode Final
 * @param kept       the windows that are made; None for all that have a row
 */
case class PaneWindowsExec(
    grid: GridShape,
    grouping: Seq[Attribute],
    pane: Attribute,
    window: Attribute,
    aggregates: Seq[AggregateExpression],
    override val output: Seq[Attribute],
    kept: Option[KeptWindows],
    child: SparkPlan)
  extends UnaryExecNode {

  private val keys: Seq[Attribute] = grouping.filterNot(_.exprId == pane.exprId)

  override def nodeName: String = "PaneWindows"
  override def simpleString(maxFields: Int): String =
    s"PaneWindows [${keys.map(_.name).mkString(", ")}], ${grid.describe}" +
      kept.fold("")(k => s", where ${k.conditionOf(window).sql}")
  override lazy val producedAttributes: AttributeSet = AttributeSet(window +: aggregates.flatMap { a =>
    a.aggregateFunction.aggBufferAttributes ++ a.aggregateFunction.inputAggBufferAttributes
  })
  override def requiredChildDistribution: Seq[Distribution] =
    Seq(if (keys.isEmpty) AllTuples else ClusteredDistribution(keys))
  override def requiredChildOrdering: Seq[Seq[SortOrder]] = Seq((keys :+ pane).map(SortOrder(_, Ascending)))
  override def outputPartitioning: Partitioning = child.outputPartitioning

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numPanes" -> SQLMetrics.createMetric(sparkContext, "number of panes of partitions"),
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"))

  override protected def doExecute(): RDD[InternalRow] = {
    val (panes, windows) = (longMetric("numPanes"), longMetric("numOutputRows"))
    val paneAt = grouping.indexWhere(_.exprId == pane.exprId)
    val plan = PaneWindowsPlan(grid, aggregates.map(_.aggregateFunction), child.output,
      grouping.indices.filter(_ != paneAt), paneAt, output, kept)
    child.execute().mapPartitionsWithIndexInternal { (index, cells) =>
      new PaneWindows(plan, index, cells.map { cell => panes += 1; cell }).map { row => windows += 1; row }
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): PaneWindowsExec = copy(child = newChild)
}

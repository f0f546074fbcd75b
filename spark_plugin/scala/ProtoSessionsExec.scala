package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, DeclarativeAggregate}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}

/**
 * Aggregates the rows of a partition into proto-sessions before they are shuffled: rows of a key whose sessions overlap
 * or meet become one row (keys, start, end, buffers), in place of Spark's partial aggregate, which leaves one row per
 * event.
 *
 * A row is late by its own session, as in Spark, so late rows are dropped here, before they are merged. What comes out
 * may still overlap (other partitions have rows of the same keys, and memory is bounded): merging is complete only in
 * the operator above the shuffle.
 *
 * @param grouping   the grouping expressions without the session, in the order of the operator's keys
 * @param start      the column of `child` with the start of a row's own session, in microseconds
 * @param end        the one with its end
 * @param aggregates in mode Partial
 * @param late       sessions that end at or before it are late; milliseconds
 * @param held       how many proto-sessions a task keeps in memory
 */
case class ProtoSessionsExec(
    grouping: Seq[NamedExpression],
    start: Attribute,
    end: Attribute,
    aggregates: Seq[AggregateExpression],
    late: Option[Long],
    held: Long,
    override val output: Seq[Attribute],
    child: SparkPlan)
  extends UnaryExecNode {

  override def nodeName: String = "ProtoSessions"
  override def simpleString(maxFields: Int): String =
    s"ProtoSessions [${grouping.map(_.name).mkString(", ")}], late=${late.filter(_ != Long.MinValue).getOrElse("none")}"
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = Nil
  override def producedAttributes: AttributeSet = AttributeSet(output) -- AttributeSet(child.output)
  override protected def withNewChildInternal(newChild: SparkPlan): ProtoSessionsExec = copy(child = newChild)

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"),
    "numRowsDroppedByWatermark" -> SQLMetrics.createMetric(sparkContext, "number of rows which are dropped by watermark"))

  private def at(column: Attribute): Int = child.output.indexWhere(_.exprId == column.exprId)

  override protected def doExecute(): RDD[InternalRow] = {
    val (rowsOut, dropped) = (longMetric("numOutputRows"), longMetric("numRowsDroppedByWatermark"))
    val merging = ProtoSessionPlan(grouping, at(start), at(end), aggregates,
      late.map(Math.multiplyExact(_, 1000L)).getOrElse(Long.MinValue), held, child.output, output)
    child.execute().mapPartitionsWithIndexInternal { (index, rows) =>
      val sessions = new ProtoSessions(merging, index, dropped)
      sessions.of(rows).map { row => rowsOut += 1; row }
    }
  }
}

/** What a task needs to know, without the plan. Late: microseconds. */
final case class ProtoSessionPlan(grouping: Seq[NamedExpression], startAt: Int, endAt: Int, aggregates: Seq[AggregateExpression],
    late: Long, held: Long, input: Seq[Attribute], output: Seq[Attribute]) {

  val functions: Seq[DeclarativeAggregate] = aggregates.map(_.aggregateFunction.asInstanceOf[DeclarativeAggregate])
  val buffers: Seq[AttributeReference] = functions.flatMap(_.aggBufferAttributes)
  val incoming: Seq[AttributeReference] = functions.flatMap(_.inputAggBufferAttributes)

  /** Spark's update expressions; a row that an aggregate's FILTER leaves out changes nothing. */
  def updates: Seq[Expression] = aggregates.zip(functions).flatMap { case (a, f) =>
    a.filter.fold(f.updateExpressions)(condition =>
      f.updateExpressions.zip(f.aggBufferAttributes).map { case (update, buffer) => If(condition, update, buffer) })
  }
  def merges: Seq[Expression] = functions.flatMap(_.mergeExpressions)
  def initials: Seq[Expression] = functions.flatMap(_.initialValues)
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.BindReferences.bindReferences
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.expressions.codegen._
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.types.{BinaryType, LongType}

/**
 * A partial aggregation of rows into proto-sessions, below the shuffle: rows of a key whose sessions overlap or meet
 * become one row (keys, start, end, buffers). It replaces Spark's partial aggregate, which leaves one row per event.
 *
 * A row is late by its own session, as in Spark, so late rows are dropped here, before they are merged. Its results may
 * still overlap (other partitions have rows of the same keys, and memory is bounded): merging is complete only in the
 * operator above the shuffle.
 *
 * Where buffers can be changed in place, by expressions, the operator takes part in whole-stage code generation, as
 * Spark's partial aggregate would: the key, the session and the updates of the buffer are code within the loop over the
 * rows.
 *
 * @param grouping   the grouping expressions without the session, in the order of the operator's keys
 * @param start      the column of `child` with the start of a row's own session, in microseconds
 * @param end        the one with its end
 * @param aggregates in mode Partial
 * @param late       the late watermark in milliseconds: sessions that end at or before it are late
 * @param held       limits of what a task keeps in memory
 */
case class ProtoSessionsExec(
    grouping: Seq[NamedExpression],
    start: Attribute,
    end: Attribute,
    aggregates: Seq[AggregateExpression],
    late: Option[Long],
    held: SessionsHeld,
    override val output: Seq[Attribute],
    child: SparkPlan)
  extends EmitsBetweenRows with DropsLateRows {

  override def nodeName: String = "ProtoSessions"
  override def simpleString(maxFields: Int): String =
    s"ProtoSessions [${grouping.map(_.name).mkString(", ")}]" +
      (if (held.inBatch) "" else s", late=${late.filter(_ != Long.MinValue).getOrElse("none")}")
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = Nil
  override def producedAttributes: AttributeSet = AttributeSet(output) -- AttributeSet(child.output)
  override protected def withNewChildInternal(newChild: SparkPlan): ProtoSessionsExec = copy(child = newChild)

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"), droppedMetric)

  private def at(column: Attribute): Int = child.output.indexWhere(_.exprId == column.exprId)

  /** The late watermark in microseconds, once there is one. */
  def lateUs: Option[Long] = late.filter(_ != Long.MinValue).map(Math.multiplyExact(_, 1000L))

  private lazy val merging = ProtoSessionPlan(grouping, aggregates, lateUs.getOrElse(Long.MinValue), held, output)

  override protected def doExecute(): RDD[InternalRow] = {
    val (rowsOut, dropped) = (longMetric("numOutputRows"), longMetric(DropsLateRows.Metric))
    val (plan, input, startAt, endAt) = (merging, child.output, at(start), at(end))
    child.execute().mapPartitionsWithIndexInternal { (index, rows) =>
      new RowsToProtoSessions(plan, input, startAt, endAt, index, dropped).of(rows).map { row => rowsOut += 1; row }
    }
  }

  override def supportCodegen: Boolean = merging.fixed && !merging.imperative

  private var sessions: String = _

  override protected def doProduce(ctx: CodegenContext): String = {
    val plan = ctx.addReferenceObj("plan", merging)
    val dropped = metricTerm(ctx, DropsLateRows.Metric)
    val kind = classOf[ProtoSessions].getName
    sessions = ctx.addMutableState(kind, "sessions", v => s"$v = new $kind($plan, $dropped);", forceInline = true)
    loop(ctx, sessions, "emitAll", s"${metricTerm(ctx, "numOutputRows")}.add(1);")
  }

  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String = {
    ctx.currentVars = input
    val key = GenerateUnsafeProjection.createCode(ctx, bindReferences[Expression](grouping, child.output))
    val (from, to) = (input(at(start)).value, input(at(end)).value)
    val buffer = ctx.freshName("session")
    ctx.currentVars = new Array[ExprCode](merging.record.length) ++ input
    ctx.INPUT_ROW = buffer
    val updates = bindReferences(merging.updates, merging.record ++ child.output)
    val common = ctx.subexpressionEliminationForWholeStageCodegen(updates)
    val values = ctx.withSubExprEliminationExprs(common.states)(updates.map(_.genCode(ctx)))
    val assignments = values.zip(updates).zipWithIndex.map { case ((value, update), i) =>
      CodeGenerator.updateColumn(buffer, update.dataType, merging.bounds.length + i, value, update.nullable)
    }
    s"""
       |while ($sessions.ready()) $emit();
       |if (!$sessions.isLate($to)) {
       |  ${key.code}
       |  UnsafeRow $buffer = (UnsafeRow) $sessions.target($sessions.joining(${key.value}, $from, $to));
       |  ${evaluateVariables(common.exprCodesNeedEvaluate)}
       |  ${ctx.evaluateSubExprEliminationState(common.states.values)}
       |  ${evaluateVariables(values)}
       |  ${assignments.mkString("\n")}
       |  $sessions.settle();
       |  while ($sessions.ready() && !shouldStop()) $emit();
       |}
     """.stripMargin
  }
}

/**
 * Limits of the proto-sessions of a task.
 *
 * @param most    the most that it keeps in memory
 * @param inBatch whether they are of a batch query
 */
final case class SessionsHeld(most: Long, inBatch: Boolean)

/** The part of [[ProtoSessionsExec]] that a task needs. `late` is in microseconds. */
final case class ProtoSessionPlan(grouping: Seq[NamedExpression], aggregates: Seq[AggregateExpression], late: Long,
    held: SessionsHeld, output: Seq[Attribute]) {

  val functions: Seq[AggregateFunction] = aggregates.map(_.aggregateFunction)
  /** Whether Spark's own code changes the buffers of some. */
  val imperative: Boolean = functions.exists(_.isInstanceOf[ImperativeAggregate])
  val buffers: Seq[AttributeReference] = functions.flatMap(_.aggBufferAttributes)

  /** Whether buffers can be changed in place; then start and end lie before them in the same row. */
  val fixed: Boolean = buffers.forall(b => UnsafeRow.isMutable(b.dataType))
  val bounds: Seq[AttributeReference] = boundsOfRecord()

  /** The columns of the row that is updated, and those of another that is merged into it. */
  val record: Seq[AttributeReference] = bounds ++ buffers
  val other: Seq[AttributeReference] = boundsOfRecord() ++ functions.flatMap(_.inputAggBufferAttributes)

  private def boundsOfRecord(): Seq[AttributeReference] =
    if (fixed) Seq("start", "end").map(AttributeReference(_, LongType, nullable = false)()) else Nil

  /** Expressions of a whole record, made of those of the bounds and of the buffers. */
  def ofRecord(bounds: Seq[Expression], buffers: Seq[Expression]): Seq[Expression] =
    if (fixed) bounds ++ buffers else buffers

  def updates: Seq[Expression] = ImperativeBuffers.updates(aggregates)
  def merges: Seq[Expression] = ImperativeBuffers.expressions(functions)(_.mergeExpressions)
  def initials: Seq[Expression] = ImperativeBuffers.expressions(functions)(_.initialValues)

  /** About how many bytes the buffers of one session take. */
  def sizeOfBuffers: Long = functions.flatMap(f => f.aggBufferAttributes.map(b => (f, b.dataType))).map {
    case (_: ImperativeAggregate, BinaryType) => BitmapExpressionUtils.NUM_BYTES.toLong
    case (_, dataType) => dataType.defaultSize.toLong
  }.sum

  /** What the functions written as code do to records. */
  def code: ImperativeBuffers = new ImperativeBuffers(functions, bounds.length, bounds.length)
}

/** Rows to proto-sessions without generated code for the loop. */
private[gpuwin] final class RowsToProtoSessions(plan: ProtoSessionPlan, input: Seq[Attribute], startAt: Int, endAt: Int,
    partition: Int, dropped: SQLMetric) {

  private val keyOf = UnsafeProjection.create(plan.grouping, input)
  private val update = MutableProjection.create(plan.ofRecord(plan.bounds, plan.updates), plan.record ++ input)
  private val code = new ImperativeUpdates(plan.aggregates, plan.bounds.length, input)
  Seq(keyOf, update).foreach(_.initialize(partition))
  private val sessions = new ProtoSessions(plan, dropped)
  private val joined = new JoinedRow

  def of(rows: Iterator[InternalRow]): Iterator[InternalRow] = new Iterator[InternalRow] {
    private var allRowsCame = false

    override def hasNext: Boolean = {
      while (!sessions.ready && rows.hasNext) add(rows.next())
      if (!allRowsCame && !sessions.ready) { allRowsCame = true; sessions.emitAll() }
      sessions.ready
    }

    override def next(): InternalRow = sessions.next()
  }

  private def add(row: InternalRow): Unit = {
    val end = row.getLong(endAt)
    if (!sessions.isLate(end)) {
      val buffer = sessions.target(sessions.joining(keyOf(row), row.getLong(startAt), end))
      update.target(buffer)(joined(buffer, row))
      code.update(buffer, row)
      sessions.settle()
    }
  }
}

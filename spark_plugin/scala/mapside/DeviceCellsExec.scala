package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{WindowSpec => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.expressions.codegen._
import org.apache.spark.sql.catalyst.plans.physical.{Partitioning, UnknownPartitioning}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.types.IntegerType

/**
 * The map side on the device service: the columns of the child are appended to Arrow buffers, the service makes cells
 * of the rows, or proto-sessions, and one row for each partition of the shuffle leaves with those that are for it
 * ([[Payload]]). It replaces Spark's partial aggregate, or [[ProtoSessionsExec]], and keeps nothing between batches.
 *
 * It takes part in whole-stage code generation: the loop over the rows writes into the buffers. [[RowsToCells]] is what
 * a task does with them.
 */
case class DeviceCellsExec(work: CellsWork, override val output: Seq[Attribute], child: SparkPlan)
  extends EmitsBetweenRows with DropsLateRows {

  import work.{coded, late}

  override def nodeName: String = "DeviceCells"
  override def simpleString(maxFields: Int): String =
    s"DeviceCells ${work.spec.describe}, ${work.partitions} partitions" +
      late.fold("")(l => s", late=${l.upto / 1000}")
  override def outputPartitioning: Partitioning = UnknownPartitioning(child.outputPartitioning.numPartitions)
  override def outputOrdering: Seq[SortOrder] = Nil
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override protected def withNewChildInternal(newChild: SparkPlan): DeviceCellsExec = copy(child = newChild)

  override lazy val metrics: Map[String, SQLMetric] = DeviceCellsExec.Metrics.map { case (name, text) =>
    name -> SQLMetrics.createMetric(sparkContext, text)
  } ++ late.map(_ => droppedMetric)

  /** The columns of the rows that are sent. */
  private lazy val sent = WireType.schema(child.output.init.map(_.dataType) :+ IntegerType)

  override protected def doExecute(): RDD[InternalRow] = {
    val (work, sent, metrics) = (this.work, this.sent, this.metrics)
    child.execute().mapPartitionsInternal(rows => new RowsToCells(work, sent, metrics).of(rows))
  }

  /** False: each row has memory of its own. */
  override def needCopyResult: Boolean = false

  private var cells: String = _

  override protected def doProduce(ctx: CodegenContext): String = {
    val given = Seq(ctx.addReferenceObj("work", work), ctx.addReferenceObj("sent", sent),
      ctx.addReferenceObj("metrics", metrics, classOf[Map[_, _]].getName)).mkString(", ")
    val kind = classOf[RowsToCells].getName
    cells = ctx.addMutableState(kind, "cells", v => s"$v = new $kind($given);", forceInline = true)
    loop(ctx, cells, "finish", "")
  }

  /** None: the code of a coded key's string runs only where its id is new. */
  override def usedInputs: AttributeSet = AttributeSet.empty

  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String = {
    val others = input.zipWithIndex.filterNot { case (_, i) => coded.exists(_.at == i) }
    // All of a late row is computed, too, since Spark finds its errors before it drops it.
    s"""
       |${evaluateVariables(others.map(_._1))}
       |${late.fold("")(l => s"if (!$cells.isLate(${input(l.at).value})) {")}
       |${others.init.map { case (value, i) => appended(ctx, value, i) }.mkString("\n")}
       |${coded.fold(appended(ctx, input.last, input.length - 1))(appendedByDictionary(ctx, input, _))}
       |$cells.rowCame();
       |while ($cells.ready() && !shouldStop()) $emit();
       |${late.fold("")(_ => "}")}
     """.stripMargin
  }

  /** Code that appends a value. */
  private def appended(ctx: CodegenContext, value: ExprCode, at: Int): String = {
    val attribute = child.output(at)
    val column = columnAt(ctx, RowColumn.classOf(WireType.of(attribute.dataType).get), at)
    val put = s"$column.put(${value.value});"
    if (attribute.nullable) s"if (${value.isNull}) { $column.putNull(); } else { $put }" else put
  }

  /** The key and the partition, which are known of an id that was met. */
  private def appendedByDictionary(ctx: CodegenContext, input: Seq[ExprCode], key: CodedKey): String = {
    val (text, ids) = (input(key.at), input.last)
    val keys = columnAt(ctx, classOf[CodedColumn], key.at)
    val partitions = columnAt(ctx, classOf[IntColumn], input.length - 1)
    val string = evaluateVariables(Seq(text))
    ctx.INPUT_ROW = null
    ctx.currentVars = input
    val partition = key.partition.genCode(ctx)
    s"""
       |if (!${ids.isNull} && $keys.has(${ids.value})) {
       |  $keys.put(${ids.value});
       |  $partitions.put($keys.partition(${ids.value}));
       |} else {
       |  $string
       |  ${partition.code}
       |  if (${text.isNull}) $keys.putNull();
       |  else $keys.put(${ids.value}, ${text.value}, ${partition.value});
       |  $partitions.put(${partition.value});
       |}
     """.stripMargin
  }

  private def columnAt(ctx: CodegenContext, kind: Class[_ <: RowColumn], at: Int): String = {
    val name = kind.getName
    ctx.addMutableState(name, s"column$at", v => s"$v = ($name) $cells.column($at);", forceInline = true)
  }
}

object DeviceCellsExec {
  val Metrics: Map[String, String] = Map(
    "numOutputRows" -> "number of output rows",
    "gpuwinRowsIn" -> "rows sent to the device service",
    "gpuwinCellsOut" -> "cells received from the device service",
    "gpuwinParts" -> "parts in which rows were aggregated",
    "gpuwinPartsOnCuda" -> "parts that were aggregated on a GPU",
    "gpuwinDeviceTimeMs" -> "time in the device service",
    "gpuwinBytesToDevice" -> "bytes sent to the device service",
    "gpuwinServiceRestarts" -> "times the service died under a task")
}

/**
 * The test of rows whose own session is late: it ends at or before the late watermark.
 *
 * @param at   the column with its end
 * @param upto the late watermark in microseconds
 */
final case class LateEnds(at: Int, upto: Long)

/**
 * A key of strings whose partition, which is of no other column, and whose place in a dictionary that is sent are found
 * once for each string of a Parquet file's dictionary.
 *
 * @param at        its column
 * @param ids       the last column of the child, by [[DictionaryIdsExec]]
 * @param partition the partition of a row, over the columns of the child
 */
final case class CodedKey(at: Int, ids: ExprId, partition: Expression)

/**
 * What a [[DeviceCellsExec]] makes of its rows.
 *
 * @param spec      the cells
 * @param places    see [[SentColumns]]; the last column of the child is the partition of the row, unless a key is coded
 * @param constants see [[SentColumns]]
 * @param coded     the key that is sent with a dictionary
 * @param late      the test of sessions, each by the row that it would be by itself; cells are tested above the shuffle
 * @param tags      see [[PartitionTags]]
 */
final case class CellsWork(spec: WindowSpec, places: Seq[Int], constants: Seq[Literal], coded: Option[CodedKey],
    late: Option[LateEnds], partitions: Int, tags: Array[Int], functions: Seq[AggregateFunction],
    settings: TaskSettings)

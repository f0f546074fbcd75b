package org.apache.spark.sql.gpuwin

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeProjection
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.json4s._

/**
 * A deduplication of Spark whose keys are remembered in the device service. It takes keyed rows ([[KeyedRowsExec]]),
 * and emits those whose key is not remembered, as bytes ([[RowsOfBytesExec]]).
 *
 * @param spec where its rows and keys come from, and for how long these are remembered
 */
case class GpuDeduplicateExec(
    spec: DeduplicationSpec,
    output: Seq[Attribute],
    settings: TaskSettings,
    stateInfo: Option[StatefulOperatorStateInfo],
    storeName: String,
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    @transient child: SparkPlan)
  extends DeviceOperator {

  override def nodeName: String = "GpuWindowDeduplicate"
  override def simpleString(maxFields: Int): String =
    s"GpuWindowDeduplicate [${spec.keys.mkString(", ")}], ${spec.remembers}, device=$device"

  override protected def withNewChildInternal(newChild: SparkPlan): GpuDeduplicateExec = copy(child = newChild)

  override def wireSchema: StructType = KeyedRowsExec.Schema
  override def takesPayloads: Boolean = false
  override def request: JObject = spec.json
  override def paneAt: Option[Int] = None
  override def logsWhatCame: Boolean = false
  override def worksWithoutRows: Boolean = false
  override def mergesSegments: Boolean = true
  override def batch: (Long, Boolean) = (0L, true)
  override def functions: Seq[AggregateFunction] = Nil
  override def reader(allocator: BufferAllocator): ArrowChunkReader = new ArrowChunkReader(allocator, identity)

  /** The late and the evicting watermark, where rows have an event time, and where keys have one. */
  override def watermarks: (Option[Long], Option[Long]) =
    (eventTimeWatermarkForLateEvents.filter(_ => spec.hasTime), eventTimeWatermarkForEviction.filter(_ => spec.evicts))

  override def shouldRunAnotherBatch(newInputWatermark: Long): Boolean =
    eventTimeWatermarkForEviction.exists(newInputWatermark > _)

  override protected def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    super.customStatefulOperatorMetrics :+
      StatefulOperatorCustomSumMetric(GpuDeduplicateExec.Duplicates, "number of duplicates dropped")

  override private[gpuwin] def customMetrics(done: BatchReport, rows: Long): Map[String, Long] =
    Map(GpuDeduplicateExec.Duplicates -> (rows - done.dropped - done.updated))
}

object GpuDeduplicateExec {
  /** The metric, under Spark's name. */
  private val Duplicates = "numDroppedDuplicateRows"

  /** The plan in the place of a deduplication of Spark: the operator, and the rows that its answer holds. */
  def in(found: Deduplication, rows: SparkPlan, conf: SQLConf): SparkPlan = {
    val keyed = ApplyColumnarRulesAndInsertTransitions(Nil, outputsColumnar = false)(
      KeyedRowsExec(found.keys, found.time, rows))
    val bytes = AttributeReference("row", BinaryType, nullable = false)()
    RowsOfBytesExec(found.output, rows.outputPartitioning, GpuDeduplicateExec(found.spec, Seq(bytes),
      TaskSettings.of(conf), found.info, found.storeName, found.late, found.eviction, keyed))
  }
}

/**
 * Rows for a deduplication: the bytes of the key, the event time in microseconds if there is one, and the bytes of the
 * row, each as Spark has them in memory. So the service compares keys as Spark does, whatever their types.
 */
case class KeyedRowsExec(keys: Seq[Expression], time: Option[Expression], child: SparkPlan) extends UnaryExecNode {
  override def output: Seq[Attribute] = KeyedRowsExec.Output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override protected def withNewChildInternal(newChild: SparkPlan): KeyedRowsExec = copy(child = newChild)

  override protected def doExecute(): RDD[InternalRow] = {
    val (keys, time, columns) = (this.keys.map(NormalizeFloatingNumbers.normalize), this.time, child.output)
    child.execute().mapPartitions { rows =>
      val key = GenerateUnsafeProjection.generate(keys, columns)
      val at = time.map(micros => GenerateUnsafeProjection.generate(Seq(micros), columns))
      val out = new GenericInternalRow(3)
      rows.map { row =>
        out.update(0, key(row).getBytes)
        out.setNullAt(1)
        at.foreach { project =>
          val found = project(row)
          if (!found.isNullAt(0)) out.setLong(1, found.getLong(0))
        }
        out.update(2, row.asInstanceOf[UnsafeRow].getBytes)
        out
      }
    }
  }
}

object KeyedRowsExec {
  private val Output: Seq[Attribute] = Seq(AttributeReference("key", BinaryType, nullable = false)(),
    AttributeReference("time", LongType)(), AttributeReference("row", BinaryType, nullable = false)())
  val Schema: StructType = StructType(Output.map(a => StructField(a.name, a.dataType, a.nullable)))
}

/** Rows of Spark that came as the bytes that they have in memory. */
case class RowsOfBytesExec(override val output: Seq[Attribute], override val outputPartitioning: Partitioning,
    child: SparkPlan) extends UnaryExecNode {
  override def producedAttributes: AttributeSet = outputSet
  override protected def withNewChildInternal(newChild: SparkPlan): RowsOfBytesExec = copy(child = newChild)

  override protected def doExecute(): RDD[InternalRow] = {
    val columns = output.length
    child.execute().mapPartitions { rows =>
      val out = new UnsafeRow(columns)
      rows.map { row =>
        val bytes = row.getBinary(0)
        out.pointTo(bytes, bytes.length)
        out
      }
    }
  }
}

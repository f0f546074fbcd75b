package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}
import org.apache.spark.sql.catalyst.util.DateTimeUtils
import org.apache.spark.sql.execution.{CodegenSupport, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec
import org.apache.spark.sql.gpuwin.shims.CompiledWatermarkExec
import org.apache.spark.sql.types.TimestampType

/**
 * Spark's node that notes the event time of each row for the next watermark, as a part of generated code.
 *
 * Spark's own has none: the scan below it writes each row into memory, an iterator reads its time through a projection,
 * and the code above it reads the row again. Between a scan and a [[DeviceCellsExec]] that is most of what a row costs.
 * It stays a node of Spark's class, by which Spark finds the times that it noted.
 */
trait CompiledWatermark extends CodegenSupport { self: EventTimeWatermarkExec =>
  override def nodeName: String = "EventTimeWatermark"

  // Spark keeps a child that equals the one that it is to be replaced by, so this equals no node of Spark's.
  override def canEqual(other: Any): Boolean = other.isInstanceOf[CompiledWatermark]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode

  private def below: CodegenSupport = child.asInstanceOf[CodegenSupport]

  override def inputRDDs(): Seq[RDD[InternalRow]] = below.inputRDDs()

  override protected def doProduce(ctx: CodegenContext): String = below.produce(ctx, this)

  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String = {
    val stats = ctx.addReferenceObj("eventTimeStats", eventTimeStats)
    val at = child.output.indexWhere(_.exprId == eventTime.exprId)
    val time = input(at)
    // A null time counts as the time 0 in Spark, which reads the zero that a row has in its place.
    val micros = if (child.output(at).nullable) s"(${time.isNull} ? 0L : ${time.value})" else s"${time.value}"
    val millis = s"${DateTimeUtils.getClass.getName.stripSuffix("$")}.microsToMillis($micros)"
    s"""
       |$stats.add($millis);
       |${consume(ctx, input)}
     """.stripMargin
  }
}

object CompiledWatermark {
  /** The plan with its watermarks as generated code, where their event time is a timestamp of microseconds. */
  def in(plan: SparkPlan): SparkPlan = plan.transformUp {
    case w: EventTimeWatermarkExec if !w.isInstanceOf[CompiledWatermark] && isMicros(w) => CompiledWatermarkExec.of(w)
  }

  private def isMicros(w: EventTimeWatermarkExec): Boolean =
    w.eventTime.dataType == TimestampType && w.child.output.exists(_.exprId == w.eventTime.exprId)
}

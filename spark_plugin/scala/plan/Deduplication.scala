package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression, GetStructField, PreciseTimestampConversion}
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.types._
import org.json4s._

/**
 * A deduplication for the service.
 *
 * @param keys    names of its keys in the query
 * @param delayMs of `dropDuplicatesWithinWatermark`, how long after its event time a key is remembered
 * @param hasTime whether rows have an event time, by which they may be late
 * @param evicts  whether the watermark evicts keys
 */
final case class DeduplicationSpec(keys: Seq[String], delayMs: Option[Long], hasTime: Boolean, evicts: Boolean) {
  def json: JObject = JObject(
    "window" -> JString("duplicates"),
    "delay" -> delayMs.fold[JValue](JNull)(ms => JLong(Math.multiplyExact(ms, 1000L))),
    "evicts" -> JBool(evicts))

  /** For how long a key is remembered, in words. */
  def remembers: String = delayMs.fold(if (evicts) "until the watermark passes its time" else "for ever")(ms =>
    s"for $ms ms after its time")
}

/**
 * A deduplication of Spark that was recognised: `dropDuplicates` or `dropDuplicatesWithinWatermark` of a stream.
 *
 * @param output               as Spark's node has it, which may say of more columns that they may be null
 * @param originalPartitioning the partitioning of the result in Spark's plan, where the rows have another
 * @param storeName            name of its state stores
 */
final case class Deduplication(spec: DeduplicationSpec, keys: Seq[Attribute], time: Option[Expression], rows: SparkPlan,
    output: Seq[Attribute], info: Option[StatefulOperatorStateInfo], late: Option[Long], eviction: Option[Long],
    originalPartitioning: Option[Partitioning] = None, storeName: String = DeviceOperator.StoreName) {
  /** The place of the event time among the keys, if it is one of them, by which they are then evicted. */
  def timeAt: Option[Int] = Some(keys.indexWhere(_.metadata.contains(EventTimeWatermark.delayKey)))
    .filter(_ >= 0).filter(_ => spec.delayMs.isEmpty)

  /** The types of its keys, as rows of Spark have them; those of a user are what they are stored as. */
  def keyTypes: Seq[DataType] = keys.map(_.dataType).map {
    case own: UserDefinedType[_] => own.sqlType
    case other => other
  }

  /** The type of the event time. */
  def timeType: DataType = rows.output.find(Deduplication.isTime).map(_.dataType).getOrElse(TimestampType)

  /** The state, as the file beside it has it. */
  def describe: String = SavedDeduplication.text(SavedDeduplication.of(this))
}

object Deduplication {
  def isOne(node: StateStoreWriter): Boolean = node match {
    case _: StreamingDeduplicateExec | _: StreamingDeduplicateWithinWatermarkExec => true
    case _ => false
  }

  /** The deduplication that a node of Spark's is, or the reason why it is left to Spark. */
  def from(node: StateStoreWriter, withoutTime: Boolean): Either[String, Deduplication] = node match {
    case d: StreamingDeduplicateExec =>
      val evicts = d.keyExpressions.exists(isTime)
      if (!evicts && !withoutTime) Left("no event time is among its keys, so none is ever evicted, and " +
        s"${GpuWindowConf.WithoutWindow.key} is false")
      else of(d.keyExpressions, d, d.child, None, evicts, d.eventTimeWatermarkForLateEvents,
        d.eventTimeWatermarkForEviction)
    case d: StreamingDeduplicateWithinWatermarkExec =>
      val delay = d.child.output.find(isTime).map(_.metadata.getLong(EventTimeWatermark.delayKey))
      of(d.keyExpressions, d, d.child, delay, evicts = true, d.eventTimeWatermarkForLateEvents,
        d.eventTimeWatermarkForEviction)
  }

  private def of(keys: Seq[Attribute], node: StateStoreWriter, rows: SparkPlan, delay: Option[Long], evicts: Boolean,
      late: Option[Long], eviction: Option[Long]): Either[String, Deduplication] = {
    def one(time: Option[Expression]) = Deduplication(
      DeduplicationSpec(keys.map(_.name), delay, hasTime = time.isDefined, evicts), keys, time, rows, node.output,
      node.stateInfo, late, eviction)
    val interval = keys.find(_.dataType.existsRecursively(_ == CalendarIntervalType))
    if (interval.isDefined) Left(s"its key ${interval.get.name} has intervals of months and days, which Spark keeps " +
      "in bytes that differ where they are null")
    else rows.output.filter(isTime) match {
      case Seq() => Right(one(None))
      case Seq(time) => micros(time).filter(_ => delay.isEmpty || !isWindow(time)).map(at => one(Some(at))).toRight(
        s"its event time is a ${time.dataType.simpleString}")
      case several => Left(s"several columns carry the watermark: ${several.map(_.name).mkString(", ")}")
    }
  }

  private def isTime(column: Attribute): Boolean = column.metadata.contains(EventTimeWatermark.delayKey)

  private def isWindow(time: Attribute): Boolean = time.dataType.isInstanceOf[StructType]

  /** The event time in microseconds; of a window its end, as Spark compares it with the watermark. */
  private def micros(time: Attribute): Option[Expression] = (time.dataType, time) match {
    case (TimestampType | TimestampNTZType, _) => Some(PreciseTimestampConversion(time, time.dataType, LongType))
    case (StructType(Array(_, end)), _) if end.dataType == TimestampType || end.dataType == TimestampNTZType =>
      Some(PreciseTimestampConversion(GetStructField(time, 1), end.dataType, LongType))
    case _ => None
  }
}

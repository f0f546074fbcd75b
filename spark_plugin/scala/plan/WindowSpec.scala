package org.apache.spark.sql.gpuwin

import java.util.Locale

import org.apache.spark.sql.catalyst.expressions.{Expression, GetStructField, Literal, PreciseTimestampConversion,
  Subtract}
import org.apache.spark.sql.types.{DataType, LongType, StructType}
import org.json4s._

/** The windows of an operator. */
sealed trait WindowShape {
  /** The text in a plan. */
  def describe: String
  /** What `explain` says besides, where windows cost more than they need to. */
  def cost: String = ""
  /** The text in a checkpoint: state of one window must not be read as state of another. */
  def identity: String
  /** Fields of the request that describe it. */
  def fields: List[JField]
  /** The number of columns of a cell that give its place in time. */
  def placeColumns: Int
  /** Whether each window is one pane, so that the cells of a window need not meet. */
  def isOnePane: Boolean
  /** Whether the state log keeps the cells as they came; else it keeps what the service makes of them. */
  def logsWhatCame: Boolean
  /** Whether Spark drops late rows of such windows in complete mode too, where nothing is evicted. */
  def dropsInCompleteMode: Boolean
}

/** Windows `[origin + k*slide, origin + k*slide + size)`; a cell lies in a pane, of which it has the start. */
final case class GridShape(sizeUs: Long, slideUs: Long, originUs: Long) extends WindowShape {
  override def describe: String =
    if (sizeUs == slideUs) s"tumbling ${GridShape.duration(sizeUs)}"
    else s"sliding ${GridShape.duration(sizeUs)} every ${GridShape.duration(slideUs)}"
  override def identity: String = s"window of $sizeUs us every $slideUs us from $originUs us"
  override def fields: List[JField] = GridShape.fields(sizeUs, slideUs, originUs)
  override def placeColumns: Int = 1
  override def isOnePane: Boolean = sizeUs == slideUs
  override def logsWhatCame: Boolean = true
  override def dropsInCompleteMode: Boolean = false

  /** The start of the oldest window that holds an instant. */
  def oldestWith(instant: Long): Long = {
    val before = Math.subtractExact(instant, sizeUs)
    before - Math.floorMod(Math.subtractExact(before, originUs), slideUs) + slideUs
  }

  /** The starts of the windows that hold an instant, from the oldest on. */
  def windowsWith(instant: Long): Iterator[Long] =
    Iterator.iterate(oldestWith(instant))(_ + slideUs).takeWhile(_ <= instant)
}

object GridShape {
  private[gpuwin] def fields(sizeUs: Long, slideUs: Long, originUs: Long): List[JField] =
    List("window" -> JString("grid"), "size" -> JLong(sizeUs), "slide" -> JLong(slideUs), "origin" -> JLong(originUs))

  private def duration(us: Long): String =
    if (us % 86400000000L == 0) s"${us / 86400000000L} d" else if (us % 3600000000L == 0) s"${us / 3600000000L} h"
    else if (us % 60000000L == 0) s"${us / 60000000L} min" else if (us % 1000000L == 0) s"${us / 1000000L} s"
    else s"$us us"
}

/**
 * Windows of a sliding grid that were computed before: each row has one of them. A window is one pane, of the width of
 * a slide, that ends where the window does, so the watermark drops and evicts it at the right time.
 */
final case class GivenShape(sizeUs: Long, slideUs: Long, originUs: Long) extends WindowShape {
  private val grid = GridShape(sizeUs, slideUs, originUs)

  override def describe: String = s"one window of ${grid.describe}"
  override def cost: String = "; each row is copied into its windows, as on Spark, because a condition, an aggregate " +
    "or a step before the grouping needs its window"
  override def identity: String = GivenShape.Mark + grid.identity
  override def fields: List[JField] =
    GridShape.fields(slideUs, slideUs, Math.floorMod(originUs + sizeUs, slideUs)) :+ ("length" -> JLong(sizeUs))
  override def placeColumns: Int = 1
  override def isOnePane: Boolean = true
  override def logsWhatCame: Boolean = true
  override def dropsInCompleteMode: Boolean = false

  /** The start of the pane of a window, in microseconds. */
  def paneOf(window: Expression): Expression = {
    val end = GetStructField(window, 1)
    Subtract(PreciseTimestampConversion(end, end.dataType, LongType), Literal(slideUs))
  }
}

object GivenShape {
  /** The beginning of the identity, before that of the grid. */
  val Mark = "one "

  /** Whether two texts of a checkpoint differ in this alone: whether rows are copied into their windows. */
  def tellsApart(one: String, other: String): Boolean =
    one != other && one.replace(s"; ${Mark}window of ", "; window of ") ==
      other.replace(s"; ${Mark}window of ", "; window of ")
}

/** The event time itself: each instant is a window, the microsecond that ends with it; see [[EventTimeColumn]]. */
case object InstantShape extends WindowShape {
  override def describe: String = "each event time"
  override def identity: String = "event time itself"
  override def fields: List[JField] = GridShape.fields(sizeUs = 1, slideUs = 1, originUs = 0)
  override def placeColumns: Int = 1
  override def isOnePane: Boolean = true
  override def logsWhatCame: Boolean = true
  override def dropsInCompleteMode: Boolean = false
}

/**
 * No window: all rows of a key are one group, whatever their time. It is a grid of one pane, which no watermark
 * reaches.
 */
case object WholeShape extends WindowShape {
  /** The start of the pane. */
  val Pane: Long = 0L

  override def describe: String = "no window"
  override def identity: String = "no window"
  override def fields: List[JField] = GridShape.fields(sizeUs = 1, slideUs = 1, originUs = Pane)
  override def placeColumns: Int = 1
  override def isOnePane: Boolean = true
  override def logsWhatCame: Boolean = true
  override def dropsInCompleteMode: Boolean = false
}

/** Sessions. The gap is in the cells, which have the start and the end of theirs, so a query may change it. */
case object SessionShape extends WindowShape {
  override def describe: String = "sessions"
  override def identity: String = "session windows"
  override def fields: List[JField] = List("window" -> JString("session"))
  override def placeColumns: Int = 2
  override def isOnePane: Boolean = false
  override def logsWhatCame: Boolean = false
  override def dropsInCompleteMode: Boolean = true
}

/** The part of an operator that travels to the device service in the request. */
final case class WindowSpec(window: WindowShape, watermarked: Boolean, mode: String, types: Seq[DataType],
    keyCount: Int, merges: Seq[MergeSpec]) {

  /** The number of columns of a cell that are no buffers of Spark's, and come last: arrivals, as longs. */
  private def hidden: Int = merges.count(_.arrival >= 0)

  /** Types of the columns of a cell: keys, place in time, buffers, and the hidden ones. */
  def wireSchema: StructType = WireType.schema(types)

  def describe: String = window.describe

  def json: JObject = JObject(window.fields ++ List(
    "mode" -> JString(mode),
    "types" -> JArray(wireSchema.fields.map(f => JString(f.dataType.simpleString)).toList),
    "keys" -> JInt(keyCount),
    "hidden" -> JInt(hidden),
    "merges" -> JArray(merges.map(_.json).toList)))
}

object WindowSpec {
  def of(found: WindowedAggregate): WindowSpec = {
    val buffers = found.save.output.drop(found.groupingColumns)
    val place = Seq.fill(found.window.placeColumns)(LongType)
    val arrivals = found.merges.filter(_.arrival >= 0).map(_ => LongType)
    WindowSpec(found.window, found.watermarked,
      found.save.outputMode.map(_.toString.toLowerCase(Locale.ROOT)).getOrElse("append"),
      found.keys.map(_.dataType) ++ place ++ buffers.map(_.dataType) ++ arrivals, found.keys.length, found.merges)
  }
}

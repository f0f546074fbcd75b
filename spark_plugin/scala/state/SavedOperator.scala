package org.apache.spark.sql.gpuwin

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.types._
import org.json4s._

/** What the log of an operator holds, as the file `_gpuwin` beside it says. */
trait SavedLog {
  /** Types of the columns of an entry. */
  def cellTypes: Seq[DataType]
  /** The column that says until when an entry matters. */
  def placeAt: Int
  /** Values by which entries are partitioned as the shuffle below the operator does, of the columns of one. */
  def partitioning(cell: Seq[Attribute]): Seq[Expression]
}

/**
 * An operator of gpuwin as the file `_gpuwin` beside its state describes it.
 *
 * @param keyNames names of the keys when the checkpoint was begun
 * @param results  what becomes of each function, under the names of then
 * @param timeType type of the bounds of a window
 * @param windowAt position of the window among the grouping columns, if there is one, as far as it was noted
 */
final case class SavedOperator(window: WindowShape, keyTypes: Seq[DataType], keyNames: Seq[String],
    functions: Seq[AggregateFunction], results: Seq[NamedResult], mode: String, timeType: DataType,
    windowAt: Option[Int]) extends SavedLog {

  private val merges = MergeSpec.ofAll(functions, pieces = true, pivots = true)
    .fold(reason => throw new GpuWindowException(reason), identity)
  private val buffers = functions.flatMap(_.aggBufferAttributes.map(_.dataType))
  private val places = Seq.fill(window.placeColumns)(LongType)
  private val arrivals = merges.filter(_.arrival >= 0).map(_ => LongType)

  /** Types of the columns of a cell in the log. */
  override def cellTypes: Seq[DataType] = keyTypes ++ places ++ buffers ++ arrivals

  /** Column of a cell that has the start of its pane, or the end of its session. */
  override def placeAt: Int = keyTypes.length + places.length - 1

  override def partitioning(cell: Seq[Attribute]): Seq[Expression] = WholeLogs.partitioning(window, keyTypes)(cell)

  /** Types of the columns of a merged cell: keys, start, end, buffers, and the newest segment that is in it. */
  def mergedTypes: Seq[DataType] = (keyTypes :+ LongType :+ LongType) ++ buffers :+ LongType

  /**
   * The specification by which cells are merged, as for the service. The segment of a cell is one buffer more, of which
   * the largest stays.
   */
  def request: JObject = {
    val segment = MergeSpec("max", Seq(buffers.length), nullable = false)
    val moved = merges.map(m => if (m.arrival >= 0) m.copy(arrival = m.arrival + 1) else m)
    WindowSpec(window, watermarked = false, "complete", (keyTypes ++ places ++ buffers :+ LongType) ++ arrivals,
      keyTypes.length, moved :+ segment).json
  }
}

object SavedOperator {
  /** The field of calls of functions; see [[SavedFunction.callOf]]. */
  val Calls = "calls"
  private val Line = raw"format 1; (.*); keys \((.*)\); aggregates \((.*)\); mode (append or update|complete)".r
  private val Grid = raw"(one )?window of (\d+) us every (\d+) us from (-?\d+) us".r
  private val Specified = raw"format 1; .*; withWatermark: -?\d+ ms".r

  /** All operators of gpuwin in a checkpoint, at its newest version. `aim`: what they are to, for an error. */
  def allIn(checkpoint: String, aim: String, conf: Configuration): Seq[(SavedVersion, SavedLog)] =
    SavedVersion.operatorsOf(checkpoint, conf).map { operator =>
      val (at, mark) = SavedVersion.find(checkpoint, Some(operator), None, conf)
      (at, logOf(mark).fold(reason => throw refusal(at, checkpoint, aim, reason), identity))
    }

  def refusal(at: SavedVersion, checkpoint: String, aim: String, reason: String): GpuWindowException =
    new GpuWindowException(s"The state of operator ${at.operator} in $checkpoint cannot $aim: $reason.")

  /** The operator that a file describes, in a few words. */
  def about(text: String): String = logOf(text) match {
    case Right(o: SavedOperator) => s"${o.window.describe} by ${o.keyNames.mkString(", ")}".stripSuffix(" by ")
    case Right(d: SavedDeduplication) => s"a deduplication by ${d.keyNames.mkString(", ")}"
    case _ if SavedDeduplication.parse(text).isDefined => "a deduplication"
    case _ => "of gw.spark.aggregate, or unreadable"
  }

  /** What a file describes, or the reason why its state cannot be read. */
  def logOf(text: String): Either[String, SavedLog] = SavedDeduplication.parse(text).getOrElse(parse(text))

  /** The aggregation that a file describes, or the reason why its state cannot be shown. */
  def parse(text: String): Either[String, SavedOperator] = {
    val lines = text.split('\n').toSeq
    lines.head match {
      case Line(window, keys, aggregates, mode) =>
        for {
          shape <- shapeOf(window)
          keyTypes <- all(split(keys).map(typeOf))
          names = CheckpointOwner.fieldsOf(text)
          functions <- all(split(aggregates).zipWithIndex.map { case (f, i) => functionOf(f, (names \ Calls)(i)) })
        } yield {
          SavedOperator(shape, keyTypes, keyNamesIn(text, keyTypes.length),
            functions,
            resultsIn(names, functions.length).getOrElse(functions.map(f => NamedResult(f.prettyName, None))),
            mode,
            timeTypeIn(text),
            (names \ CheckpointOwner.WindowAt) match {
              case JInt(at) => Some(at.toInt)
              case _ => if (keyTypes.isEmpty) Some(0) else None
            })
        }
      case Specified() => Left("it is one of gw.spark.aggregate, whose log has rows and snapshots in place of cells, " +
        "and whose specification is in the program and not in the checkpoint. The state of Spark's own windows and " +
        "sessions can be shown")
      case other => Left("its file _gpuwin is not one that this gpuwin can read: it begins with " +
        s"[${other.take(200)}]. Use the version of gpuwin that wrote the checkpoint, or restore the file from a copy")
    }
  }

  private def shapeOf(identity: String): Either[String, WindowShape] = identity match {
    case Grid(mark, size, slide, origin) =>
      val (length, step, from) = (size.toLong, slide.toLong, origin.toLong)
      Right(if (mark == null) GridShape(length, step, from) else GivenShape(length, step, from))
    case other => Seq(SessionShape, InstantShape, WholeShape).find(_.identity == other)
      .toRight(s"its window is one that this gpuwin does not know: $other")
  }

  private def functionOf(text: String, call: JValue): Either[String, AggregateFunction] = {
    val Seq(name, types) = split(text, ": ")
    all(split(types, "+").map(typeOf)).flatMap { buffers =>
      val found = call match {
        case JString(sql) => SavedFunction.ofCall(sql)
        case _ => SavedFunction.of(name, buffers)
      }
      found.toRight(s"this Spark has no function with the buffers of [$text]")
    }
  }

  /** A type as the file has it, which is read again. The names in a nested type are quoted. */
  def typeText(dataType: DataType): String =
    if (WireType.isNested(dataType)) dataType.asNullable.sql else dataType.simpleString

  /** The types in a list as `typeText` has them. */
  private[gpuwin] def types(list: String): Either[String, Seq[DataType]] = all(split(list).map(typeOf))

  private def typeOf(text: String): Either[String, DataType] =
    Try(DataType.fromDDL(text)).toOption.toRight(s"this Spark has no type $text")

  /** The names of the keys in a file. */
  private[gpuwin] def keyNamesIn(text: String, count: Int): Seq[String] =
    namesIn(CheckpointOwner.fieldsOf(text) \ "keys", count).orElse(listed(text.split('\n').toSeq, count))
      .getOrElse((0 until count).map(i => s"key$i"))

  /** The type of the times in a file. */
  private[gpuwin] def timeTypeIn(text: String): DataType =
    if ((CheckpointOwner.fieldsOf(text) \ "time") == JString(TimestampNTZType.simpleString)) TimestampNTZType
    else TimestampType

  /** The second line, which is for people: a name may have a comma in it. */
  private def listed(lines: Seq[String], count: Int): Option[Seq[String]] =
    lines.drop(1).headOption.map(_.stripPrefix("keys ").split(", ").toSeq).filter(_.length == count)

  private def namesIn(list: JValue, count: Int): Option[Seq[String]] = list match {
    case JArray(items) => Some(items.collect { case JString(name) => name }).filter(_.length == count)
    case _ => None
  }

  private def resultsIn(names: JValue, count: Int): Option[Seq[NamedResult]] =
    namesIn(names \ "aggregates", count).map { each =>
      val decimals = names \ "decimals" match {
        case JArray(items) => items.map {
          case JString(text) => typeOf(text).toOption.collect { case d: DecimalType => d }
          case _ => None
        }
        case _ => Nil
      }
      each.zipAll(decimals, "", None).take(count).map { case (name, decimal) => NamedResult(name, decimal) }
    }

  /** The parts of a list. The types in it may have the separator within brackets and quotes. */
  private[gpuwin] def split(text: String, separator: String = ", "): Seq[String] = {
    val parts = Seq.newBuilder[String]
    var (begin, at, depth, quoted) = (0, 0, 0, false)
    while (at < text.length) {
      text(at) match {
        case '`' => quoted = !quoted // one that is part of a name is doubled
        case '<' | '(' if !quoted => depth += 1
        case '>' | ')' if !quoted => depth -= 1
        case _ if depth == 0 && !quoted && text.startsWith(separator, at) =>
          parts += text.substring(begin, at)
          at += separator.length - 1
          begin = at + 1
        case _ =>
      }
      at += 1
    }
    if (text.isEmpty) Nil else (parts += text.substring(begin)).result()
  }

  private def all[A](found: Seq[Either[String, A]]): Either[String, Seq[A]] =
    found.collectFirst { case Left(reason) => Left(reason) }.getOrElse(Right(found.collect { case Right(a) => a }))
}

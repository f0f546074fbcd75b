package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.util.Locale

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateFunction, HyperLogLogPlusPlus}
import org.apache.spark.sql.catalyst.plans.logical.Project
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, Dataset, SparkSession}
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.util.SerializableConfiguration
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * The state of an operator in a checkpoint as a table, for `gw.spark.read_state`, which merges `cells` by `request` in
 * Python, with the code of the service, and hands the result to `finished`.
 */
trait ShownState {
  /** What is shown, for people and programs. */
  def about: String

  /** By what cells are merged; null where they are shown as they are. */
  def request: String

  /** Columns of what Python makes of the cells, as JSON; null where it makes nothing of them. */
  def mergedSchema: String

  /** The rows of [[LoggedCells]]. */
  def cells: ClassicDataFrame

  /**
   * The table: keys, times, results, segment, version, and what else is known.
   *
   * @param merged rows of `mergedSchema`, or `cells`
   * @param place  what they are: pane, window, session or key
   */
  def finished(merged: ClassicDataFrame, place: String): ClassicDataFrame
}

object ShownState {
  /** `mode`: the output mode, if it is known; `bounds`: how many columns after the keys are times of a row. */
  def about(at: SavedVersion, what: String, mode: Option[String], keys: Seq[String], bounds: Int): String =
    JsonMethods.compact(JObject(
      "operator" -> JLong(at.operator), "version" -> JLong(at.version), "batch" -> JLong(at.batch),
      "window" -> JString(what), "mode" -> mode.fold[JValue](JNull)(JString(_)), "partitions" -> JInt(at.partitions),
      "keys" -> JArray(keys.map(JString(_)).toList), "bounds" -> JInt(bounds)))
}

/** The cells of an aggregation. */
class StateTable(session: SparkSession, at: SavedVersion, operator: SavedOperator) extends ShownState {
  override def about: String = {
    val bounds = operator.window match {
      case WholeShape => 0
      case InstantShape => 1
      case _ => 2
    }
    ShownState.about(at, operator.window.describe, Some(operator.mode), operator.keyNames, bounds)
  }
  override def request: String = JsonMethods.compact(operator.request)
  override def mergedSchema: String = WireType.schema(operator.mergedTypes).json
  override def cells: ClassicDataFrame = LoggedCells.table(session, at, operator)

  /** Keys, bounds, results as Spark computes them of the buffers, segment, version, and the buffers. */
  override def finished(merged: ClassicDataFrame, place: String): ClassicDataFrame = {
    val fresh = new FreshNames
    val plan = merged.queryExecution.analyzed
    val keyCount = operator.keyTypes.length
    val (keys, Seq(start, end, rest @ _*)) = plan.output.splitAt(keyCount)
    val typedKeys = keys.zip(operator.keyTypes.zip(operator.keyNames)).map { case (column, (dataType, name)) =>
      Alias(AsType(column, dataType), fresh(name))()
    }
    val bounds =
      if (operator.window == WholeShape) Nil
      else if (operator.window == InstantShape) {
        val known = If(EqualTo(end, Literal(EventTimeColumn.NoTime)), Literal(null, LongType), end)
        Seq(Alias(AsType(known, operator.timeType), fresh("event_time"))())
      } else Seq(start -> s"${place}_start", end -> s"${place}_end").map { case (column, name) =>
        Alias(AsType(column, operator.timeType), fresh(name))()
      }
    val titles = operator.results.map(r => fresh(r.name))
    val segment = Alias(rest.last, fresh("segment"))()
    val version = Alias(Literal(at.version), fresh("version"))()
    val firsts = operator.functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    val aggregates = operator.functions.zip(titles.zip(firsts)).map { case (function, (title, first)) =>
      val buffers = function.aggBufferAttributes.zip(WireValue.read(function, rest.drop(first))).map {
        case (own, column) => Alias(column, own.name)()
      }
      (function, title, buffers)
    }
    val typed = Project((typedKeys ++ bounds :+ segment :+ version) ++ aggregates.flatMap(_._3), plan)
    val results = StateTable.withoutAnsi(session)(aggregates.zip(operator.results).map {
      case ((function, title, buffers), result) =>
        val own = WindowedAggregate.nullableAs(function, buffers.map(_.toAttribute))
        Alias(result.of(WindowedAggregate.resultOf(function, own)), title)()
    })
    val shown = aggregates.flatMap { case (function, title, buffers) =>
      shownBuffers(function, buffers.map(_.toAttribute)).map { case (name, column) =>
        Alias(column, fresh(s"${title}__$name"))()
      }
    }
    val kept = (typedKeys ++ bounds).map(_.toAttribute)
    Dataset.ofRows(session, Project(kept ++ results ++ Seq(segment.toAttribute, version.toAttribute) ++ shown, typed))
  }

  /** The buffers of a function under Spark's names; the registers of a sketch are one list. */
  private def shownBuffers(function: AggregateFunction, columns: Seq[Attribute]): Seq[(String, Expression)] =
    function match {
      case _: HyperLogLogPlusPlus => Seq("registers" -> CreateArray(columns))
      case _ => columns.map(c => c.name -> c)
    }
}

/** What was found for a caller in Python: a table, or the sentence that says why there is none. */
final case class StateTableAnswer(table: ShownState, error: String)

/** The entry from Python. */
object StateTable {
  /** Expressions made in `body` show a sum that overflowed as null; with ANSI it would fail the whole table. */
  private def withoutAnsi[A](session: SparkSession)(body: => A): A = {
    val lenient = session.sessionState.conf.clone()
    lenient.setConf(SQLConf.ANSI_ENABLED, false)
    SQLConf.withExistingConf(lenient)(body)
  }

  /** The state of an operator at a version; "" for the only operator, and for the newest version. */
  def find(session: SparkSession, checkpoint: String, operator: String, version: String): StateTableAnswer = {
    def number(text: String) = Some(text).filter(_.nonEmpty).map(_.toLong)
    try {
      val (at, mark) =
        SavedVersion.find(checkpoint, number(operator), number(version), session.sessionState.newHadoopConf())
      withoutAnsi(session)(SavedOperator.logOf(mark)) match {
        case Right(windows: SavedOperator) => StateTableAnswer(new StateTable(session, at, windows), "")
        case Right(keys: SavedDeduplication) => StateTableAnswer(new RememberedKeys(session, at, keys), "")
        case Left(reason) =>
          StateTableAnswer(null, s"The state of operator ${at.operator} in $checkpoint cannot be shown: $reason.")
      }
    } catch {
      case e: GpuWindowException => StateTableAnswer(null, e.getMessage)
      case e @ (_: IOException | _: IllegalArgumentException) =>
        StateTableAnswer(null, s"[$checkpoint] cannot be read: ${e.getMessage}".replace('\n', ' '))
    }
  }
}

/** Names of columns, each once, whatever their case: a name that is taken gets a number. */
private class FreshNames {
  private val taken = mutable.Set.empty[String]

  def apply(name: String): String = {
    val found = Iterator.from(1).map(n => if (n == 1) name else s"${name}_$n")
      .find(n => !taken(n.toLowerCase(Locale.ROOT))).get
    taken += found.toLowerCase(Locale.ROOT)
    found
  }
}

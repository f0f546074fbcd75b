package org.apache.spark.sql.gpuwin

import scala.util.control.NonFatal

import org.apache.spark.sql.ExtendedExplainGenerator
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.{Append, Update}
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, SparkSession}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.gpuwin.shims.UnstartedStream
import org.apache.spark.sql.streaming.{OutputMode, StreamingQuery}

/** The text of `gw.spark.explain`; called from Python. */
object Explain {

  /** The text for a query that has planned a batch. */
  def forQuery(query: StreamingQuery): String = {
    val execution = query match {
      case w: StreamingQueryWrapper => w.streamingQuery
      case s: StreamExecution => s
      case other => throw new GpuWindowException(s"A ${other.getClass.getName} cannot be explained.")
    }
    Option(execution.lastExecution) match {
      case Some(e) =>
        try text(e.executedPlan)
        catch { case NonFatal(again) => // an older Spark cannot plan a batch a second time
          val failed = execution.exception.flatMap(e => Option(e.cause)).getOrElse(again)
          s"The query's last batch has no plan. ${failed.getMessage}"
        }
      case None => "The query has not planned a batch yet. Explain it after its first batch, or explain its DataFrame."
    }
  }

  /**
   * The text for a DataFrame that was not started, as it would be planned in this output mode; a static one as it is
   * planned.
   *
   * @param mode its name, or null: append mode, or update mode where append mode has no windows to emit
   */
  def forDataFrame(frame: ClassicDataFrame, mode: String): String = {
    val session = frame.sparkSession
    if (!frame.isStreaming) text(frame.queryExecution.executedPlan)
    else if (mode != null) text(plan(frame, session, InternalOutputModes(mode)))
    else {
      val append = plan(frame, session, Append)
      val placements = Placement.of(append)
      if (placements.exists(_.sentence.contains("append mode"))) text(plan(frame, session, Update)) else text(append)
    }
  }

  private def plan(frame: ClassicDataFrame, session: SparkSession, mode: OutputMode): SparkPlan =
    session.withActive(UnstartedStream.plan(session, frame.queryExecution.logical, mode))

  /**
   * A line with the total and one line per stateful operator; the like for a plan's aggregations by window without
   * state. Then a line where the partitions are far more than the cores.
   */
  private[gpuwin] def text(plan: SparkPlan): String = {
    val stateful = Placement.of(plan)
    val batch = BatchPlacement.of(plan)
    val sections = Seq(
      section("stateful operators on gpuwin", stateful)(p => s"operator ${p.id}: "),
      section("aggregations by window in batch queries by panes or proto-sessions", batch)(_ => "")).flatten
    if (sections.isEmpty) "The query has no stateful operator, so there is nothing for gpuwin to do."
    else (sections ++ ShufflePartitions.advice(plan).map("! " + _)).mkString("\n")
  }

  private def section(what: String, placements: Seq[Placement])(name: Placement => String): Seq[String] =
    if (placements.isEmpty) Nil
    else s"${placements.count(_.onGpuwin)} of ${placements.length} $what" +:
      placements.map(p => s"${if (p.onGpuwin) "+" else "-"} ${name(p)}${p.sentence}")
}

/**
 * A section of every `explain()`: each stateful operator, whether it is offloaded, and why not. Spark loads it by
 * `spark.sql.extendedExplainProviders`, in front of whose value the plugin puts it. Spark prints the heading for
 * every plan, so a plan without stateful operators gets a sentence, too.
 */
class GpuWindowExplain extends ExtendedExplainGenerator {
  override def title: String = "gpuwin"
  override def generateExtendedInfo(plan: SparkPlan): String = Explain.text(plan)
}

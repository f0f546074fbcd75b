package org.apache.spark.sql.gpuwin

import java.util.{Collections, IdentityHashMap, Locale}
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LogicalPlan}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.adaptive.{AdaptiveSparkPlanHelper, LogicalQueryStage}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter

/** A stateful operator of a plan: where it runs and, if not on gpuwin, why. */
final case class Placement(id: String, name: String, onGpuwin: Boolean, sentence: String)

object Placement {
  /** Every stateful operator of the plan, in the order of their ids. */
  def of(plan: SparkPlan): Seq[Placement] = plan.collect {
    case g: GpuWindowExec =>
      Placement(id(g), g.nodeName, onGpuwin = true,
        s"${g.simpleString(25)} runs on gpuwin (${g.device}); ${g.mapSide.sentence}${g.spec.window.cost}")
    case g: DeviceOperator =>
      Placement(id(g), g.nodeName, onGpuwin = true, s"${g.simpleString(25)} runs on gpuwin (${g.device})")
    case w: StateStoreWriter =>
      val reason = w.getTagValue(OffloadRule.ReasonTag).getOrElse("gpuwin was not loaded when it was planned")
      Placement(id(w), w.nodeName, onGpuwin = false, s"${w.nodeName} runs on Spark, because $reason")
  }.sortBy(_.id)

  private def id(w: StateStoreWriter): String = w.stateInfo.map(i => f"${i.operatorId}%d").getOrElse("-")
}

/** The aggregations by window of a batch query: by gpuwin's nodes or Spark's. All of them run in Spark's tasks. */
object BatchPlacement extends AdaptiveSparkPlanHelper {
  def of(plan: SparkPlan): Seq[Placement] = {
    val seen = Collections.newSetFromMap(new IdentityHashMap[LogicalPlan, java.lang.Boolean])
    collectWithSubqueries(plan) {
      case p: PaneWindowsExec =>
        Some(Placement("-", p.nodeName, onGpuwin = true, s"${p.simpleString(25)}: each row is aggregated once"))
      case p: ProtoSessionsExec if p.held.inBatch =>
        Some(Placement("-", p.nodeName, onGpuwin = true,
          s"${p.simpleString(25)}: rows of a session are merged before the shuffle"))
      case a: BaseAggregateExec if a.requiredChildDistributionExpressions.isDefined =>
        a.logicalLink.flatMap(aggregation) match {
          case Some(link) if seen.add(link) => link.getTagValue(WindowsInBatch.ReasonTag).map(reason =>
            Placement("-", a.nodeName, onGpuwin = false, s"${a.nodeName} is as Spark plans it, because $reason"))
          case _ => None
        }
    }.flatten
  }

  /** Once an adaptive query has run, what was aggregated stands below the stages that ran. */
  private def aggregation(link: LogicalPlan): Option[Aggregate] = link match {
    case a: Aggregate => Some(a)
    case stage: LogicalQueryStage => aggregation(stage.logicalPlan)
    case _ => None
  }
}

/**
 * Lines of the driver's log, one per operator of a query run: whether it was offloaded and, if not, why. One more where
 * the partitions are far more than the cores.
 */
object PlanLog extends Logging {
  private val said = ConcurrentHashMap.newKeySet[String]()

  /** A line for an aggregation of a batch query that gpuwin planned. */
  def inBatch(plan: SparkPlan, level: String): Unit =
    if (level.equalsIgnoreCase("ALL")) {
      val panes = plan.exists(_.isInstanceOf[PaneWindowsExec])
      logInfo("gpuwin: a batch query " +
        (if (panes) "makes its windows of panes" else "merges rows of its sessions before the shuffle"))
    }

  def write(plan: SparkPlan, level: String): Unit = {
    val run = plan.collectFirst { case w: StateStoreWriter if w.stateInfo.isDefined => w.stateInfo.get }
    run.filter(_.checkpointLocation != CheckpointOwner.NoCheckpoint).foreach { info =>
      if (said.size > 8192) said.clear()
      Placement.of(plan).foreach { p =>
        val wanted = level.toUpperCase(Locale.ROOT) match {
          case "ALL" => true
          case "NOT_ON_DEVICE" => !p.onGpuwin
          case _ => false
        }
        if (wanted && said.add(s"${info.queryRunId}/${p.id}")) {
          if (p.onGpuwin) logInfo(s"gpuwin: operator ${p.id}: ${p.sentence}")
          else logWarning(s"gpuwin: operator ${p.id}: ${p.sentence}")
        }
      }
      if (!level.equalsIgnoreCase("NONE") && said.add(s"${info.queryRunId}/partitions"))
        ShufflePartitions.advice(plan).foreach(advice => logWarning(s"gpuwin: $advice"))
    }
  }
}

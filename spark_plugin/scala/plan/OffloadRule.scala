package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.physical.UnspecifiedDistribution
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan, UnionExec}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.exchange.{Exchange, REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.gpuwin.shims.{RealTimeMode, StateTools}

/**
 * The hooks by which gpuwin enters Spark. A columnar rule is the one public hook that sees the physical plan of each
 * micro-batch after Spark has filled in the state info, output mode and watermarks of its stateful operators, and
 * before whole-stage code generation. Everything else (offsets, watermarks, commits, no-data batches, progress) stays
 * Spark's.
 */
class GpuWindowExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectColumnar { session: SparkSession =>
      val rule = new OffloadRule(session.asInstanceOf[ClassicSession])
      new ColumnarRule { override def preColumnarTransitions: Rule[SparkPlan] = rule }
    }
    extensions.injectPostHocResolutionRule(_ => PlannedColumns)
    // Sliding windows with many copies of a row: one expression from the start of a query on, planned by gpuwin.
    extensions.injectPostHocResolutionRule(session => new CompactWindows(session.asInstanceOf[ClassicSession]))
    extensions.injectOptimizerRule(_ => FilterBelowWindows)
    extensions.injectPlannerStrategy(_ => OverlappingWindowsStrategy)
    extensions.injectPlannerStrategy(_ => SpecifiedAggregationStrategy)
    // Windows of batch queries: rows become panes or proto-sessions before the shuffle, which are merged after it.
    extensions.injectPlannerStrategy(_ => WindowsInBatch)
    StateTools.guard(extensions)
  }
}

/**
 * The rule that replaces each windowed aggregation of a streaming plan by [[GpuWindowExec]], or leaves the reason
 * against it on the node.
 *
 * A query whose checkpoint was written by gpuwin must go on with gpuwin: for such a checkpoint every reason against
 * is an error, since Spark would start from nothing.
 */
class OffloadRule(session: ClassicSession) extends Rule[SparkPlan] {
  import OffloadRule._

  override def apply(plan: SparkPlan): SparkPlan =
    if (!plan.exists(_.isInstanceOf[StateStoreWriter])) expanded(plan)
    else if (RealTimeMode.runs(plan)) leftToSpark(plan)
    else {
      if (enabled) GpuWindowConf.validate(conf)
      SpecifiedAggregation.refuseWaitingForItself(plan, conf)
      val offloaded = expanded(rewrite(plan, partitioningMatters = false))
      PlanLog.write(offloaded, GpuWindowConf.get(conf, GpuWindowConf.Explain))
      offloaded
    }

  /** A plan of Real-Time Mode, as it is. */
  private def leftToSpark(plan: SparkPlan): SparkPlan = {
    plan.foreach {
      case _: SpecifiedAggregationExec => throw new GpuWindowException(
        "gw.spark.aggregate works on micro-batches, and this query was started with a trigger of Real-Time Mode. " +
          "Start it with processingTime or availableNow.")
      case writer: StateStoreWriter =>
        CheckpointOwner.settle(writer.stateInfo.get, Left(RealTime), session)((_: Nothing) => "")
        writer.setTagValue(ReasonTag, RealTime)
      case _ =>
    }
    PlanLog.write(plan, GpuWindowConf.get(conf, GpuWindowConf.Explain))
    plan
  }

  /**
   * The plan with its aggregations offloaded.
   *
   * @param partitioningMatters whether an operator above, before the next shuffle, relies on how these rows are
   *                            partitioned (a join, a deduplication, another state store)
   */
  private def rewrite(plan: SparkPlan, partitioningMatters: Boolean): SparkPlan = plan match {
    case aggregate: BaseAggregateExec if saveBelow(aggregate).isDefined =>
      val save = saveBelow(aggregate).get
      decide(aggregate, save) match {
        case Right(decided) =>
          val found = StateStores.of(save.stateInfo.get, session).fold(decided)(_.under(decided))
          val rows = CompiledWatermark.in(rewrite(found.cells, partitioningMatters = true))
          val below = found.copy(cells = rows)
          val merged = FromJson.below(GpuWindowExec.from(below, conf), conf)
          // Below the results, which may have renamed the columns that Spark's plan is partitioned by.
          val placed = found.originalPartitioning.filter(_ => partitioningMatters)
            .fold[SparkPlan](merged)(ShuffleExchangeExec(_, merged, REQUIRED_BY_STATEFUL_OPERATOR))
          found.result(placed)
        case Left(reason) =>
          save.setTagValue(ReasonTag, reason)
          descend(aggregate, partitioningMatters)
      }
    case planned @ SpecifiedAggregationExec(_, _, _, _, _, carrier: StreamingDeduplicateExec) =>
      val rows = CompiledWatermark.in(rewrite(carrier.child, partitioningMatters = true))
      val operator = FromJson.below(GpuWindowOperatorExec.from(planned, carrier, rows, conf), conf)
      val allowed =
        if (enabled) Right(operator) else Left(s"${GpuWindowConf.Enabled.key} is false, and nothing else runs it")
      CheckpointOwner.settle(carrier.stateInfo.get, allowed, session)(_ => "format 1; " + planned.work.identity)
        .fold(reason => throw new GpuWindowException(s"gw.spark.aggregate cannot run: $reason."), identity)
    case node: StateStoreWriter if Deduplication.isOne(node) =>
      decide(node) match {
        case Right(decided) =>
          val found = StateStores.of(decided.info.get, session).fold(decided)(_.under(decided))
          val rows = CompiledWatermark.in(rewrite(found.rows, partitioningMatters = true))
          val once = GpuDeduplicateExec.in(found, rows, conf)
          found.originalPartitioning.filter(_ => partitioningMatters)
            .fold(once)(ShuffleExchangeExec(_, once, REQUIRED_BY_STATEFUL_OPERATOR))
        case Left(reason) =>
          node.setTagValue(ReasonTag, reason)
          descend(plan, partitioningMatters)
      }
    case other => descend(other, partitioningMatters)
  }

  private def decide(deduplication: StateStoreWriter): Either[String, Deduplication] = {
    val found =
      if (!enabled) Left(s"${GpuWindowConf.Enabled.key} is false")
      else if (!GpuWindowConf.get(conf, GpuWindowConf.Deduplicate).toBoolean)
        Left(s"${GpuWindowConf.Deduplicate.key} is false")
      else Deduplication.from(deduplication, GpuWindowConf.get(conf, GpuWindowConf.WithoutWindow).toBoolean)
    val adopted =
      if (GpuWindowConf.get(conf, GpuWindowConf.Adopt).toBoolean) Adoption.into(found, session, deduplication)
      else found
    CheckpointOwner.settle(deduplication.stateInfo.get, adopted, session)(_.describe)
  }

  private def enabled: Boolean = GpuWindowConf.get(conf, GpuWindowConf.Enabled).toBoolean

  private def descend(plan: SparkPlan, partitioningMatters: Boolean): SparkPlan = {
    if (plan.isInstanceOf[StateStoreWriter] && plan.getTagValue(ReasonTag).isEmpty)
      plan.setTagValue(ReasonTag, OtherOperator)
    val matters = plan match {
      case _: Exchange => false
      case _: UnionExec => partitioningMatters // it is partitioned as its children are
      case p if p.children.length > 1 => true
      case p if p.requiredChildDistribution.exists(_ != UnspecifiedDistribution) => true
      case _ => partitioningMatters
    }
    plan.mapChildren(rewrite(_, matters))
  }

  /** The plan with the copies of each row, where the aggregation stayed with Spark. */
  private def expanded(plan: SparkPlan): SparkPlan = plan.transform { case w: OverlappingWindowsExec => w.expanded }

  private def saveBelow(aggregate: BaseAggregateExec): Option[StateStoreWriter] =
    WindowedAggregate.unsorted(aggregate.child) match {
      case s: StateStoreSaveExec => Some(s)
      case s: SessionWindowStateStoreSaveExec => Some(s)
      case _ => None
    }

  private def decide(aggregate: BaseAggregateExec, save: StateStoreWriter): Either[String, WindowedAggregate] = {
    val found =
      if (!enabled) Left(s"${GpuWindowConf.Enabled.key} is false")
      else save match {
        case s: StateStoreSaveExec =>
          WindowedAggregate.from(aggregate, s, GpuWindowConf.get(conf, GpuWindowConf.WithoutWindow).toBoolean)
        case s: SessionWindowStateStoreSaveExec =>
          val held = SessionsHeld(GpuWindowConf.get(conf, GpuWindowConf.SessionsHeld).toLong, inBatch = false)
          SessionAggregate.from(aggregate, s, held)
      }
    val adopted =
      if (GpuWindowConf.get(conf, GpuWindowConf.Adopt).toBoolean) Adoption.into(found, save, session) else found
    CheckpointOwner.settle(save.stateInfo.get, adopted, session)(CheckpointOwner.describe)
  }
}

object OffloadRule {
  /** The reason, on a stateful operator that was left to Spark. */
  val ReasonTag: TreeNodeTag[String] = TreeNodeTag("gpuwin.reason")

  private val RealTime = "Real-Time Mode processes rows one by one, and gpuwin works on batches"
  private val OtherOperator = "gpuwin offloads aggregations by window, and this is another stateful operator"
}

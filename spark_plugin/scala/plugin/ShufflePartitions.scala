package org.apache.spark.sql.gpuwin

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.internal.SQLConf

/**
 * Shuffle partitions far above the cores: what they cost a stream, as `explain()` and the log say it of a plan.
 * [[spark_plugin/gpuwin_spark/shuffle_partitions.py]] says it before there is one.
 */
object ShufflePartitions {
  /** Partitions for each core from which on it is said. */
  private val FarAbove = 4

  /** Of the stateful operators of a plan; nothing where there is none. */
  def advice(plan: SparkPlan): Option[String] = {
    val partitions = plan.collect { case w: StateStoreWriter if w.stateInfo.isDefined => w.stateInfo.get.numPartitions }
    for {
      most <- partitions.maxOption
      said <- advice(most, cores(plan.session.sparkContext))
    } yield said
  }

  /** @param cores tasks that run at once; 0 where no executor is there yet */
  def advice(partitions: Int, cores: Int): Option[String] =
    if (cores == 0 || partitions <= FarAbove * cores) None
    else Some(s"$partitions shuffle partitions on $cores core${if (cores == 1) "" else "s"}: every batch runs $partitions " +
      s"tasks and commits $partitions state stores, however few rows it has. Set ${SQLConf.SHUFFLE_PARTITIONS.key} to $cores " +
      "before the first start of a query, whose checkpoint keeps the number.")

  private def cores(sc: SparkContext): Int = sc.statusStore.executorList(true).map(_.totalCores).sum
}

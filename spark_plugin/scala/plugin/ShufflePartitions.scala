package org.apache.spark.sql.gpuwin

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.internal.SQLConf

/**
 * Advice on shuffle partitions far above the cores, for `explain()` and the log.
 * [[spark_plugin/gpuwin_spark/shuffle_partitions.py]] gives it before there is a plan.
 */
object ShufflePartitions {
  /** The most partitions for each core without advice. */
  private val FarAbove = 4

  /** Advice on the stateful operators of a plan; none where there is no such operator. */
  def advice(plan: SparkPlan): Option[String] = {
    val partitions = plan.collect { case w: StateStoreWriter if w.stateInfo.isDefined => w.stateInfo.get.numPartitions }
    for {
      most <- partitions.reduceOption(_ max _)
      said <- advice(most, cores(plan.session.sparkContext))
    } yield said
  }

  /**
   * Advice on a number of partitions.
   *
   * @param cores tasks that run at once; 0 where no executor is there yet
   */
  def advice(partitions: Int, cores: Int): Option[String] =
    if (cores == 0 || partitions <= FarAbove * cores) None
    else Some(s"$partitions shuffle partitions on $cores core${if (cores == 1) "" else "s"}: every batch runs " +
      s"$partitions tasks and commits $partitions state stores, however few rows it has. Set " +
      s"${SQLConf.SHUFFLE_PARTITIONS.key} to $cores before the first start of a query, whose checkpoint keeps the " +
      "number.")

  private def cores(sc: SparkContext): Int = sc.statusStore.executorList(true).map(_.totalCores).sum
}

package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.classic.SparkSession

/** State of Spark's own operators, written anew for another number of partitions: this Spark cannot. */
object SparksPartitions {
  def reasonAgainst(providerClass: String): Option[String] = Some("Spark before 4.2 cannot change it")

  def write(session: SparkSession, checkpoint: String, aside: String, batch: Long, partitions: Int): Unit =
    throw new UnsupportedOperationException("Spark before 4.2 has no StateRewriter")
}

package org.apache.spark.sql.gpuwin.shims

/** The class that sees to the files of a checkpoint where Spark can repartition one: this Spark cannot. */
object CheckpointGuard {
  val ClassName: Option[String] = None
}

package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.gpuwin.GuardedCheckpointFiles

/** The class that sees to the files of a checkpoint where Spark can repartition one. */
object CheckpointGuard {
  val ClassName: Option[String] = Some(classOf[GuardedCheckpointFiles].getName)
}

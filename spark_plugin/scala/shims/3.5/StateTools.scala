package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.SparkSessionExtensions

/** What Spark's tools for state must know of gpuwin's: this Spark has no such tools. */
object StateTools {
  def guard(extensions: SparkSessionExtensions): Unit = ()
}

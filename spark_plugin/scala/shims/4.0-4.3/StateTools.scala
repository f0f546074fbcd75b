package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.gpuwin.{NamedStateMetadata, StateOfGpuwinIsNotSparks}

/** What Spark's tools for state must know of gpuwin's: they refuse, before they begin, what they cannot do with it. */
object StateTools {
  def guard(extensions: SparkSessionExtensions): Unit = {
    extensions.injectPostHocResolutionRule(_ => NamedStateMetadata)
    extensions.injectCheckRule(session => new StateOfGpuwinIsNotSparks(session.asInstanceOf[SparkSession]))
  }
}

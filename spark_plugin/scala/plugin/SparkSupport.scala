package org.apache.spark.sql.gpuwin

/** The versions of Spark whose internals this jar was compiled against and tested with. */
object SparkSupport {
  val Supported: Seq[String] = Seq("4.3")

  /** The reason why gpuwin cannot work on this version of Spark, or None where it can. */
  def reasonAgainst(version: String): Option[String] =
    if (Supported.exists(s => version == s || version.startsWith(s + "."))) None
    else Some(s"it supports Spark ${Supported.mkString(", ")} and this is Spark $version; every query runs on Spark. " +
      "Install pyspark==4.3.*, or remove spark.plugins=io.gpuwin.GpuWindowPlugin.")
}

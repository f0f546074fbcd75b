package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.UTF_8

/** The version of Spark whose internals this jar was compiled against. `jar.py` wrote it beside this class. */
object SparkSupport {
  private val Seq(compiledFor, supported) = {
    val in = getClass.getResourceAsStream("compiled-for")
    try new String(in.readAllBytes(), UTF_8).linesIterator.toSeq finally in.close()
  }

  /** The reason why this jar cannot work on this version of Spark, or None where it can. */
  def reasonAgainst(version: String): Option[String] =
    if (line(version) == line(compiledFor)) None
    else Some(s"its jar is for Spark ${line(compiledFor)} and this is Spark $version; every query runs on Spark. " +
      s"gpuwin supports Spark $supported. Name the jar that 'gpuwin jar' names where this application's Spark is " +
      "installed, or remove spark.plugins=io.gpuwin.GpuWindowPlugin.")

  private def line(version: String): String = version.split('.').take(2).mkString(".")
}

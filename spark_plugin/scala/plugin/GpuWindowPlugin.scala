package io.gpuwin

import java.util.{Collections, Map => JMap}

import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}
import org.apache.spark.sql.gpuwin.{DeviceService, GpuWindowConf, SparkSupport}
import org.apache.spark.sql.gpuwin.shims.CheckpointGuard
import org.slf4j.LoggerFactory

/**
 * The one class that a user names: `spark.plugins=io.gpuwin.GpuWindowPlugin`.
 *
 * On the driver it adds [[org.apache.spark.sql.gpuwin.GpuWindowExtensions]] to `spark.sql.extensions`, so that no
 * second line of configuration is needed. On each executor it starts the device service in the background, and ends
 * it with the executor.
 *
 * Nothing here touches a class whose shape differs between versions of Spark: on a version that the jar was not built
 * for, or where its classes do not fit, the plugin logs one sentence and leaves every query to Spark.
 */
class GpuWindowPlugin extends SparkPlugin {
  override def driverPlugin(): DriverPlugin = new GpuWindowDriverPlugin
  override def executorPlugin(): ExecutorPlugin = new GpuWindowExecutorPlugin
}

class GpuWindowDriverPlugin extends DriverPlugin {
  private val log = LoggerFactory.getLogger(classOf[GpuWindowPlugin])

  override def init(sc: SparkContext, context: PluginContext): JMap[String, String] = {
    GpuWindowConf.leaveToThisSession(classOf[GpuWindowPlugin].getName)
    GpuWindowConf.validate(sc)
    val version = org.apache.spark.SPARK_VERSION
    SparkSupport.reasonAgainst(version).orElse(SparkSupport.reasonAgainstClasses(version)) match {
      case Some(reason) => log.warn(s"gpuwin stands aside: $reason")
      case None =>
        // First, so that an aggregation is offloaded before another accelerator replaces the shuffle in its middle.
        GpuWindowConf.putFirst(sc, "spark.sql.extensions", "org.apache.spark.sql.gpuwin.GpuWindowExtensions")
        GpuWindowConf.putFirst(sc, "spark.sql.extendedExplainProviders", "org.apache.spark.sql.gpuwin.GpuWindowExplain")
        CheckpointGuard.ClassName.foreach(
          GpuWindowConf.setDefault(sc, "spark.sql.streaming.checkpointFileManagerClass", _))
        log.info(s"gpuwin runs on Spark $version")
    }
    Collections.emptyMap()
  }
}

class GpuWindowExecutorPlugin extends ExecutorPlugin {
  override def init(context: PluginContext, extraConf: JMap[String, String]): Unit = {
    if (SparkSupport.reasonAgainst(org.apache.spark.SPARK_VERSION).isEmpty) {
      DeviceService.configure(context.conf, Option(context.resources().get("gpu")).toSeq.flatMap(_.addresses))
      DeviceService.warmUp()
    }
  }
  override def shutdown(): Unit = DeviceService.stop()
}

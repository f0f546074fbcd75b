package org.apache.spark.sql.gpuwin

import scala.annotation.tailrec

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.json4s._

/**
 * Steps of one task that are run again when the service is lost in them. Between, the service is started again.
 *
 * @param functions aggregate functions in the order of their buffers, for the error that an overflow raises
 */
class ServiceRetries(settings: TaskSettings, gpu: String, functions: Seq[AggregateFunction]) extends Logging {
  private implicit val formats: Formats = DefaultFormats
  private var lost = 0

  /** How often the service was lost under this task. */
  def restarts: Int = lost

  /** The value of a step that can be run again. */
  @tailrec final def apply[A](step: => A): A = {
    val outcome =
      try Right(step)
      catch {
        case e: ServiceErrorException if e.kind == "overflow" => raiseOverflow(e)
        case e: ServiceTimeoutException => DeviceService.killIfHung(settings, gpu); throw e
        case lost: ServiceLostException if restarts < settings.retries => Left(lost)
        case lost: ServiceLostException => throw gone(lost)
      }
    outcome match {
      case Right(value) => value
      case Left(e) =>
        lost += 1
        logWarning(s"The gpuwin device service was lost (${e.getMessage}); trying again.")
        DeviceService.settle(e.refused, gpu)
        apply(step)
    }
  }

  /** The error of a service that is lost where nothing can be run again. */
  def gone(lost: ServiceLostException): GpuWindowException =
    new GpuWindowException("The gpuwin device service was lost in the middle of a batch " +
      s"(${lost.getMessage}), after $restarts restarts in this task. The batch was not committed and can be run " +
      "again: restart the query from its " +
      "checkpoint. The executor's log holds what the service said, and the code that it ended with: 137 is a kill, " +
      "as by a kernel that is out of memory (raise spark.executor.memoryOverhead). " +
      s"${GpuWindowConf.Retries.key} sets how often a task tries.", lost)

  /** Spark's own error for the aggregate whose sum overflowed. */
  private def raiseOverflow(e: ServiceErrorException): Nothing = {
    val column = (e.detail \ "column").extractOrElse[Int](-1)
    val firsts = functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    functions.zip(firsts).filter(_._2 <= column).lastOption.foreach(f => MergeSpec.raiseOverflow(f._1))
    throw e
  }
}

package org.apache.spark.sql.gpuwin

import scala.util.control.NonFatal

/** What a command on the state of a checkpoint did, for Python; or the sentence that says why it did nothing. */
final case class CommandAnswer(done: String, error: String)

object CommandAnswer {
  /** `aim`: what became of the checkpoint not, where Spark fails ("be rescaled"). */
  def of(checkpoint: String, aim: String)(body: => String): CommandAnswer =
    try CommandAnswer(body, "")
    catch {
      case e: GpuWindowException => CommandAnswer("", e.getMessage)
      case NonFatal(e) =>
        val said = causes(e)
        val own = said.collectFirst { case g: GpuWindowException => g.getMessage }
          .orElse(said.map(_.getMessage).filter(_ != null)
            .flatMap("GpuWindowException: (.*)".r.findFirstMatchIn(_)).headOption.map(_.group(1)))
        CommandAnswer("", own.getOrElse(s"$checkpoint could not $aim, and nothing was changed: ${reason(e)}"))
    }

  /** Does what remains once the state was moved. An error says what is done and what is not, and what to do then. */
  def afterSwitch(done: String, mend: String)(remains: => Unit): Unit =
    try remains
    catch { case NonFatal(e) => throw new GpuWindowException(s"$done: ${reason(e).stripSuffix(".")}. $mend", e) }

  private def reason(e: Throwable): String =
    tersely(causes(e).map(_.getMessage).filter(_ != null).lastOption.getOrElse(e.toString))

  private def causes(e: Throwable): Seq[Throwable] = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).toSeq

  /** The first line of a message; of one with a traceback of Python's the last, which has the error. */
  private def tersely(message: String): String = {
    val lines = message.linesIterator.filter(_.trim.nonEmpty).toSeq
    if (lines.exists(_.contains("Traceback (most recent call last)"))) {
      val error = lines.filterNot(_.startsWith(" ")).last
      val hint = if (error.startsWith("ModuleNotFoundError")) ". The Python of the executors must have gpuwin" else ""
      error + hint
    } else lines.headOption.getOrElse("")
  }
}

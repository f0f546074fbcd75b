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
        val said = Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).toSeq
        val own = said.collectFirst { case g: GpuWindowException => g.getMessage }
          .orElse(said.map(_.getMessage).filter(_ != null)
            .flatMap("GpuWindowException: (.*)".r.findFirstMatchIn(_)).headOption.map(_.group(1)))
        CommandAnswer("", own.getOrElse(s"$checkpoint could not $aim, and nothing was changed: " +
          tersely(said.map(_.getMessage).filter(_ != null).lastOption.getOrElse(e.toString))))
    }

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

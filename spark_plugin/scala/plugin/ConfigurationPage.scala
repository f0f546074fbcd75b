package org.apache.spark.sql.gpuwin

/** The page docs/configuration.md: every key, as the code has it. For `python -m gpuwin_spark.configuration_page`. */
object ConfigurationPage {
  def main(arguments: Array[String]): Unit = print(text)

  private def text: String = {
    val rows = GpuWindowConf.all.map { e =>
      val default = if (e.default.isEmpty) "(empty)" else s"`${e.default}`"
      s"| `${e.key}` | $default | ${cell(e.accepts)} | ${cell(e.doc)} |"
    }
    (Head ++ rows ++ Tail).mkString("", "\n", "\n")
  }

  private val Head = Seq(
    "# Configuration",
    "",
    "Written by `python -m gpuwin_spark.configuration_page docs/configuration.md` from `GpuWindowConf.scala`; a test " +
      "fails where",
    "the two differ. A key that does not exist, or a value that is not accepted, is an error when the application or " +
      "the query",
    "starts.",
    "",
    "| key | default | accepts | meaning |",
    "|---|---|---|---|")

  private val Tail = Seq(
    "",
    "Beside them, `spark.plugins=io.gpuwin.GpuWindowPlugin` switches gpuwin on. The plugin puts a class of its own " +
      "in front of",
    "`spark.sql.extensions` and of `spark.sql.extendedExplainProviders`, and sets " +
      "`spark.sql.streaming.checkpointFileManagerClass`",
    "where nothing is set.")

  private def cell(text: String): String = text.replace("|", "\\|")
}

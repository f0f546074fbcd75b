package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.UTF_8
import java.util.jar.JarFile

import scala.util.Try
import scala.util.control.NonFatal

/** The version of Spark whose internals this jar was compiled against. `jar.py` wrote it beside this class. */
object SparkSupport {
  private val Seq(compiledFor, supported, leastPatch) = {
    val in = getClass.getResourceAsStream("compiled-for")
    try new String(in.readAllBytes(), UTF_8).linesIterator.toSeq finally in.close()
  }

  /** The reason why this jar cannot work on this version of Spark, or None where it can. */
  def reasonAgainst(version: String): Option[String] =
    if (line(version) != line(compiledFor)) Some(s"its jar is for Spark ${line(compiledFor)} and this is Spark " +
      s"$version; every query runs on Spark. gpuwin supports Spark $supported. $Mend")
    else if (patch(version).exists(_ < leastPatch.toInt))
      Some(s"its jar is for Spark ${line(version)}.$leastPatch and later patches, and this is Spark $version; every " +
        s"query runs on Spark. Update Spark, or $Remove")
    else None

  /**
   * The reason why the classes of this jar do not fit the Spark that runs, whatever its version says, or None where
   * they do: a patch that nobody has seen, or a vendor's, may lack a class, or have another one of its name. Each class
   * is loaded, and with it those that it extends; a method that is missing is found when it is called only.
   */
  def reasonAgainstClasses(version: String): Option[String] =
    classes.iterator.map(misfit).collectFirst { case Some(said) =>
      s"its jar was compiled for Spark $compiledFor, and on this Spark $version $said; every query runs on Spark. $Mend"
    }

  /** Why a class cannot be loaded, if it cannot. */
  def misfit(name: String): Option[String] =
    try { Class.forName(name, false, getClass.getClassLoader); None }
    catch { case e: LinkageError => Some(s"its class ${name.split('.').last} cannot be loaded ($e)") }

  private val Remove = "remove spark.plugins=io.gpuwin.GpuWindowPlugin."
  private val Mend = s"Name the jar that 'gpuwin jar' names where this application's Spark is installed, or $Remove"

  /** Names of this jar's classes, but for those of code inside others; none where they are in no jar. */
  private def classes: Seq[String] =
    try {
      val jar = new JarFile(new java.io.File(getClass.getProtectionDomain.getCodeSource.getLocation.toURI))
      try {
        jar.stream().toArray.toSeq.map(_.toString).filter(name => name.endsWith(".class") && !name.contains("$"))
          .map(_.stripSuffix(".class").replace('/', '.'))
      } finally jar.close()
    } catch { case NonFatal(_) => Nil }

  private def line(version: String): String = version.split('.').take(2).mkString(".")

  private def patch(version: String): Option[Int] =
    version.split('.').drop(2).headOption.flatMap(text => Try(text.takeWhile(_.isDigit).toInt).toOption)
}

package org.apache.spark.sql.gpuwin

import java.io.IOException

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.internal.SQLConf
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * One version of an operator's state, as the logs of a checkpoint know it. Version 1 is what batch 0 left.
 *
 * @param state         the folder with the states of all operators
 * @param partitions    how many state stores there are
 * @param storeName     their name
 * @param conf          settings of the batch on which the files of its state depend
 * @param checkpointIds the id of each partition's version, where the commit has one
 */
final case class SavedVersion(state: String, operator: Long, version: Long, partitions: Int, storeName: String,
    conf: Map[String, String], checkpointIds: Option[Seq[String]]) {
  def batch: Long = version - 1

  /** Settings of a session, with those of the batch. */
  def settings(session: SparkSession): SQLConf = {
    val own = session.sessionState.conf.clone()
    conf.foreach { case (key, value) => own.setConfString(key, value) }
    own
  }

  /** How many partitions Spark's own state has, whatever gpuwin's was rescaled to. */
  def sparksPartitions: Int = SavedVersion.partitionsIn(conf).getOrElse(partitions)

  /** The form of the rows in the state of Spark's aggregations. */
  def aggregationFormat: Int = conf.getOrElse("spark.sql.streaming.aggregation.stateFormatVersion", "1").toInt
}

/** The search for one in a folder. Nothing is written there. */
object SavedVersion {
  private[gpuwin] val Partitions =
    Seq("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")
  /** Spark's key that says whether the names of the files have ids. */
  private val Ids = "spark.sql.streaming.stateStore.checkpointFormatVersion"

  /** The version, and the text of the operator's file. None for the only operator, and for the newest version. */
  def find(checkpoint: String, operator: Option[Long], version: Option[Long], conf: Configuration)
      : (SavedVersion, String) = {
    val (files, root) = open(checkpoint, conf)
    val state = new Path(root, "state")
    val chosen = operatorIn(files, root, state, operator, conf)
    val committed = numbers(files, new Path(root, "commits")).map(_ + 1)
    if (committed.isEmpty) throw wrong(s"No batch of $root is committed yet, so there is no state to show.")
    val wanted = version.getOrElse(committed.last)
    if (!committed.contains(wanted)) throw wrong(
      s"There is no version $wanted of the state in $root: it is gone, or not there yet. There are " +
        s"${ranges(committed)}; version N is what batch N - 1 left.")
    val settings = settingsOf(files, root, wanted - 1)
    val folder = new Path(state, chosen.toString)
    val there = numbers(files, folder)
    val stores = StateStores.at(StateStores.read(state.toString, conf).stores, wanted).getOrElse(StateStores(0,
      DeviceOperator.StoreName, partitionsIn(settings).getOrElse(there.length)))
    val partitions = stores.partitions
    (0 until partitions).find(p => !files.exists(new Path(folder, s"$p/${stores.name}"))).foreach(p =>
      throw wrong(s"The checkpoint $root is damaged: operator $chosen has $partitions partitions, and the state of " +
        s"partition $p is not there. Restore it from a copy."))
    val ids = json(files, new Path(root, s"commits/${wanted - 1}"), 1) \ "stateUniqueIds" \ chosen.toString match {
      case JArray(each) => Some(each.collect { case JArray(JString(id) :: _) => id }).filter(_.length == partitions)
      case _ => None
    }
    val names = Ids -> (if (ids.isDefined) "2" else "1") // which the offset log does not keep
    (SavedVersion(state.toString, chosen, wanted, partitions, stores.name, settings + names, ids),
      text(files, new Path(folder, CheckpointOwner.Mark)))
  }

  /** The settings of a batch, as the log of offsets has them. */
  private[gpuwin] def settingsOf(files: FileSystem, root: Path, batch: Long): Map[String, String] =
    json(files, new Path(root, s"offsets/$batch"), 1) \ "conf" match {
      case JObject(fields) => fields.collect { case (key, JString(value)) => key -> value }.toMap
      case _ => Map.empty
    }

  private[gpuwin] def partitionsIn(settings: Map[String, String]): Option[Int] =
    Partitions.flatMap(settings.get).headOption.map(_.toInt)

  private[gpuwin] def open(checkpoint: String, conf: Configuration): (FileSystem, Path) = {
    val given = new Path(checkpoint)
    val files =
      try given.getFileSystem(conf)
      catch { case NonFatal(e) => throw wrong(s"Spark has no access to $checkpoint here: ${e.getMessage}") }
    val root = files.makeQualified(given)
    if (!files.exists(root)) throw wrong(s"There is no folder $root.")
    if (!Seq("offsets", "commits").forall(log => files.exists(new Path(root, log)))) throw wrong(
      s"$root is no checkpoint of a streaming query: it has no offsets and commits. Give the folder that the query " +
        "has as its checkpointLocation.")
    (files, root)
  }

  /** The operators whose state gpuwin wrote; an error where `checkpoint` is no checkpoint, or has none. */
  def operatorsOf(checkpoint: String, conf: Configuration): Seq[Long] = {
    val (files, root) = open(checkpoint, conf)
    val ours = CheckpointOwner.operators(root.toString, conf)
    if (ours.isEmpty) { operatorIn(files, root, new Path(root, "state"), None, conf) } // says why
    ours
  }

  /** The operators of Spark's own in a query that has some of gpuwin's. */
  def sparksOperators(checkpoint: String, conf: Configuration): Seq[Long] = {
    val (files, root) = open(checkpoint, conf)
    numbers(files, new Path(root, "state")).diff(CheckpointOwner.operators(root.toString, conf))
  }

  /** The newest batch that was begun, and the newest that is committed; -1 for none. */
  def newestEntries(checkpoint: String, conf: Configuration): (Long, Long) = {
    val (files, root) = open(checkpoint, conf)
    def newest(log: String) = numbers(files, new Path(root, log)).lastOption.getOrElse(-1L)
    (newest("offsets"), newest("commits"))
  }

  private def operatorIn(files: FileSystem, root: Path, state: Path, operator: Option[Long], conf: Configuration)
      : Long = {
    val all = if (files.exists(state)) numbers(files, state) else Nil
    val ours = CheckpointOwner.operators(root.toString, conf)
    val sparks = "Spark's own source, where it has one, reads it: spark.read.format(\"statestore\").option(" +
      "\"operatorId\", N).load(path)"
    if (all.isEmpty)
      throw wrong(s"The query of $root keeps no state: it has no stateful operator, or has run no batch.")
    if (ours.isEmpty) throw wrong(s"The state in $root was written by Spark without gpuwin, so there is nothing for " +
      s"gpuwin to show, rescale or give back. $sparks.")
    def named = s"gpuwin's are: ${ours.map(o => s"$o (${about(files, state, o)})").mkString(", ")}"
    operator match {
      case None if ours.length == 1 => ours.head
      case None => throw wrong(
        s"$root has ${ours.length} operators of gpuwin, so say which one (--operator, operator=); $named.")
      case Some(o) if ours.contains(o) => o
      case Some(o) if all.contains(o) =>
        throw wrong(s"The state of operator $o in $root was written by Spark without gpuwin. $sparks; $named.")
      case Some(o) => throw wrong(s"There is no operator $o in $root; $named.")
    }
  }

  private[gpuwin] def about(files: FileSystem, state: Path, operator: Long): String =
    SavedOperator.about(text(files, new Path(state, s"$operator/${CheckpointOwner.Mark}")))

  private[gpuwin] def numbers(files: FileSystem, folder: Path): Seq[Long] =
    files.listStatus(folder).toSeq.map(_.getPath.getName).filter(n => n.nonEmpty && n.forall(_.isDigit)).map(_.toLong)
      .sorted

  /** Numbers in words: "versions 3 to 7, 9". */
  private def ranges(numbers: Seq[Long]): String = {
    val runs = numbers.foldLeft(List.empty[(Long, Long)]) {
      case ((first, last) :: before, n) if n == last + 1 => (first, n) :: before
      case (before, n) => (n, n) :: before
    }
    val said = runs.reverse.map { case (first, last) => if (first == last) s"$first" else s"$first to $last" }
    s"version${if (numbers.length > 1) "s" else ""} ${said.mkString(", ")}"
  }

  /** A line of a file of Spark's logs, as JSON. */
  private[gpuwin] def json(files: FileSystem, file: Path, line: Int): JValue = {
    val read = text(files, file)
    try read.split('\n').lift(line).fold[JValue](JNothing)(JsonMethods.parse(_))
    catch { case NonFatal(_) => throw wrong(s"$file is damaged: it is no entry of a log of Spark.") }
  }

  private def text(files: FileSystem, file: Path): String =
    try CheckpointText.read(files.open(file))
    catch { case e: IOException => throw wrong(s"$file cannot be read: ${e.getMessage}") }

  private def wrong(message: String): GpuWindowException = new GpuWindowException(message.replace('\n', ' '))
}

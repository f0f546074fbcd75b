package org.apache.spark.sql.gpuwin

import java.util.concurrent.ConcurrentHashMap

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.Complete
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.runtime.StreamingCheckpointConstants
import org.apache.spark.sql.types.{DataType, StructType, TimestampType}
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * The owner of a checkpoint: Spark or gpuwin, whichever wrote it. gpuwin leaves a small file beside the state of each
 * operator that it runs, with the window, keys and aggregates of the state; Spark's own files have none of that.
 *
 *  - No such file, and batches were committed: the state is Spark's. gpuwin stands aside.
 *  - The file fits the query: go on. Its first line decides, which has types and no names: Spark lets a query that is
 *    started again name its columns otherwise, and change between append and update mode.
 *  - The file does not fit, or this query cannot be offloaded: an error, before any data is read.
 */
object CheckpointOwner extends Logging {
  /** Of each run's operators, what is decisive of the state, or the reason why it is Spark's. */
  private val settled = new ConcurrentHashMap[(String, String, Long), Either[String, String]]()
  /** Spark's name for the checkpoint of a query that is only explained. */
  val NoCheckpoint = "<unknown>"
  /** The file beside the state of an operator that gpuwin runs. */
  private[gpuwin] val Mark = "_gpuwin"
  /** The field of it that says where the window is among the grouping columns. */
  private[gpuwin] val WindowAt = "windowAt"
  /** The field of it that says whether the query has panes that outlive windows which the watermark evicts. */
  private val Evicts = "evictsOverlapping"
  /** Names of the files of a version in a state store, of either provider; some have an id. */
  private val VersionFile = raw"(\d+)(_[^.]+)?\.(delta|snapshot|zip|changelog)".r

  /** The operator that was found, or the reason against it. `describe` gives the first line of its file. */
  def settle[A](info: StatefulOperatorStateInfo, found: Either[String, A], session: SparkSession)(
      describe: A => String): Either[String, A] = {
    if (info.checkpointLocation == NoCheckpoint) found
    else {
      val key = (info.checkpointLocation, info.queryRunId.toString, info.operatorId)
      val says = found.map(describe)
      var verdict = settled.get(key)
      if (verdict == null) {
        verdict = judge(info, says, session).flatMap(_ => says.map(decisive))
        if (settled.size > 4096) settled.clear()
        settled.put(key, verdict)
      }
      verdict.flatMap(begun => found match {
        case Right(_) if says.exists(decisive(_) != begun) =>
          throw new GpuWindowException(s"The state of a query is gpuwin's and holds [$begun], and a batch of it " +
            s"computes [${says.map(decisive).getOrElse("")}]. Nothing of this batch was done.")
        case Left(reason) => throw new GpuWindowException(s"A batch of a query whose state is gpuwin's cannot run on " +
          s"gpuwin: $reason. Nothing of this batch was done. Mend that, and start the query again.")
        case ours => ours
      })
    }
  }

  /** Whether Spark wrote the state of this operator, as far as is known before `settle` has looked. */
  def isSparks(info: StatefulOperatorStateInfo, session: SparkSession): Boolean =
    info.checkpointLocation != NoCheckpoint && info.storeVersion > 0 &&
      !settled.containsKey((info.checkpointLocation, info.queryRunId.toString, info.operatorId)) && {
        val operator = new Path(info.checkpointLocation, info.operatorId.toString)
        val conf = session.sessionState.newHadoopConf()
        val files = operator.getFileSystem(conf)
        !files.exists(new Path(operator, Mark)) || isGiven(info.checkpointLocation, conf) ||
          sparkWentOn(operator, info.storeVersion, conf)
      }

  /** Makes the state of an operator gpuwin's, whose logs have been written. */
  def adopt(info: StatefulOperatorStateInfo, says: String, session: SparkSession): Unit = {
    val operator = new Path(info.checkpointLocation, info.operatorId.toString)
    writePage(info, session)
    FailPoint.reach(FailPoint.AdoptedState, info.operatorId)
    CheckpointText.write(new Path(operator, Mark), says, session.sessionState.newHadoopConf())
  }

  /** Removes the files of the operators, void since the state was given back, and the page for people. */
  def removeMarks(state: String, conf: Configuration): Unit = {
    val folder = new Path(state)
    val files = folder.getFileSystem(conf)
    marks(folder, conf).foreach { mark =>
      if (!files.delete(mark, false)) throw new GpuWindowException(s"$mark could not be removed.")
    }
    files.delete(pageOf(folder), false)
  }

  /** Ends a giving back that was interrupted, before the state is adopted again. */
  def clearGiven(state: String, conf: Configuration): Unit =
    if (StateStores.read(state, conf).given.isDefined) {
      removeMarks(state, conf)
      val file = new Path(state, StateStores.File)
      file.getFileSystem(conf).delete(file, false)
    }

  private def marks(state: Path, conf: Configuration): Seq[Path] = {
    val files = state.getFileSystem(conf)
    if (!files.exists(state)) Nil
    else files.listStatus(state).toSeq.map(_.getPath).filter(_.getName.forall(_.isDigit)).map(new Path(_, Mark))
      .filter(files.exists(_))
  }

  private def isGiven(state: String, conf: Configuration): Boolean = StateStores.read(state, conf).given.isDefined

  /** The page for people in the checkpoint of a state folder. */
  def pageOf(state: Path): Path = new Path(state.getParent, "README-gpuwin.txt")

  private def judge(info: StatefulOperatorStateInfo, found: Either[String, String],
      session: SparkSession): Either[String, Unit] = {
    val operator = new Path(info.checkpointLocation, info.operatorId.toString)
    val file = new Path(operator, Mark)
    val conf = session.sessionState.newHadoopConf()
    val files = operator.getFileSystem(conf)
    val committed = info.storeVersion > 0
    val ours = files.exists(file) && !isGiven(info.checkpointLocation, conf) &&
      !(committed && sparkWentOn(operator, info.storeVersion, conf))
    val written = if (ours) Some(CheckpointText.read(files.open(file))) else None

    (written, found) match {
      case (None, _) if committed =>
        found.flatMap(_ => Left("its checkpoint was written by Spark without gpuwin. " +
          s"To offload this query, set ${GpuWindowConf.Adopt.key}=true, or start it with a new checkpointLocation"))
      case (Some(before), Left(reason)) if committed =>
        throw new GpuWindowException(s"The state in $operator was written by gpuwin (${decisive(before)}), and this " +
          s"query cannot run on gpuwin now: $reason. Nothing was read or changed. Start the query as it was before, " +
          "or with a new checkpointLocation.")
      case (Some(before), Right(says)) if committed =>
        val Seq(held, computed) = Seq(before, says).map(text => SavedFunction.underOneName(decisive(text)))
        if (held != computed) {
          val copies = if (!GivenShape.tellsApart(held, computed)) "" else "What differs is a condition on the " +
            "window, or an aggregate or a step before the grouping that needs it, which was added or taken away. "
          throw new GpuWindowException(s"The state in $operator belongs to another query. It holds " +
            s"[${decisive(before)}], and this query computes [${decisive(says)}]. ${copies}Nothing was read or " +
            "changed. Start the query as it was before, or with a new checkpointLocation.")
        }
        if (evicts(before) && !evicts(says))
          throw new GpuWindowException(s"The state in $operator holds panes of windows that the watermark has " +
            "evicted, and this query has no watermark: it would count their rows again. Nothing was read or changed. " +
            "Start the query with its withWatermark, or with a new checkpointLocation.")
        if (!before.linesIterator.zip(says.linesIterator).forall { case (then, now) => then == now })
          logWarning(s"The state in $operator goes on under other names: it was written as [$before], and this query " +
            s"says [$says].")
        val isEarlier = Seq(WindowAt, Evicts).exists(field => says.contains(field) && !before.contains(field))
        if (isEarlier || evicts(before) != evicts(says)) CheckpointText.write(file, says, conf)
        Right(())
      case (before, Right(says)) =>
        if (!before.contains(says)) CheckpointText.write(file, says, conf)
        writePage(info, session)
        Right(())
      case (Some(_), Left(reason)) => files.delete(file, false); Left(reason)
      case (None, Left(reason)) => Left(reason)
    }
  }

  /**
   * A page in the checkpoint itself. Spark without the plugin cannot read the state and fails with an error that does
   * not know gpuwin, but names the folder, and so leads to this page.
   */
  private def writePage(info: StatefulOperatorStateInfo, session: SparkSession): Unit = {
    val page = pageOf(new Path(info.checkpointLocation))
    val conf = session.sessionState.newHadoopConf()
    if (!page.getFileSystem(conf).exists(page)) CheckpointText.write(page, Page, conf)
  }

  private val Page =
    """The state of this streaming query was written by gpuwin (the Spark plugin io.gpuwin.GpuWindowPlugin).
      |
      |Each folder state/<operator> that contains a file _gpuwin holds columnar segments that Spark alone cannot read.
      |A query that is resumed from here without the plugin fails when it loads its state: with the HDFS-backed
      |provider it misses <version>.delta in state/<operator>/<partition>, with RocksDB <version>.zip or
      |<version>.changelog. Nothing is lost by that failure.
      |
      |Spark's repartition of a checkpoint cannot read this state either. The plugin refuses it; without the plugin it
      |fails, and leaves a checkpoint from which no query starts (STREAMING_UNFINISHED_REPARTITION_DETECTED). Then run
      |"gpuwin state repair" on this folder.
      |
      |To look:    run "gpuwin state show" on this folder.
      |To rescale: stop the query, and run "gpuwin state rescale" on this folder.
      |To go on:   start the query with the plugin (spark.plugins=io.gpuwin.GpuWindowPlugin and its jar).
      |To go back: stop the query, and run "gpuwin state give-back" on this folder; then start it without the plugin.
      |""".stripMargin

  /** The operators of a checkpoint whose state gpuwin wrote; none where the folder is no checkpoint. */
  def operators(checkpoint: String, conf: Configuration): Seq[Long] = {
    val state = new Path(checkpoint, StreamingCheckpointConstants.DIR_NAME_STATE)
    val ours = marks(state, conf)
    if (ours.isEmpty || isGiven(state.toString, conf)) Nil
    else {
      val commits = new Path(checkpoint, StreamingCheckpointConstants.DIR_NAME_COMMITS)
      val files = state.getFileSystem(conf)
      val committed = if (files.exists(commits)) SavedVersion.numbers(files, commits).lastOption else None
      ours.map(_.getParent).filterNot(o => committed.exists(batch => sparkWentOn(o, batch + 1, conf)))
        .map(_.getName.toLong).sorted
    }
  }

  /**
   * Whether Spark wrote this version of an operator's state, though gpuwin left its file: a first batch on gpuwin that
   * failed leaves it, and Spark without the plugin goes on. Then it is Spark's stores that have the version. Where both
   * have the first one, the later was committed, unless a giving back left it there ([[StoresFile.placed]]).
   */
  private def sparkWentOn(operator: Path, version: Long, conf: Configuration): Boolean = {
    val files = operator.getFileSystem(conf)
    val says = StateStores.read(operator.getParent.toString, conf)
    val name = StateStores.at(says.stores, version).fold(DeviceOperator.StoreName)(_.name)
    def newest(store: String): (Long, Long) = {
      val folder = new Path(operator, store)
      val found = if (files.exists(folder)) files.listStatus(folder).toSeq else Nil
      val versions = found.map(f => (f.getPath.getName, f.getModificationTime)).collect {
        case (VersionFile(version, _, _), time) => (version.toLong, time)
      }
      if (versions.isEmpty) (0L, 0L) else versions.max
    }
    val (own, at) = newest(s"0/$name")
    (own < version || (version == 1 && !says.placed.contains(version))) && {
      val (sparks, sparksAt) = newest("0")
      sparks >= version && (own < version || sparksAt > at)
    }
  }

  /** Whether a query of overlapping windows evicts, by the file of its state. */
  private def evicts(text: String): Boolean = (fieldsOf(text) \ Evicts) == JBool(true)

  /** The third line of an operator's file; nothing where an earlier gpuwin wrote none. */
  private[gpuwin] def fieldsOf(text: String): JValue = {
    val third = text.linesIterator.slice(2, 3).toList.headOption
    third.flatMap(line => Try(JsonMethods.parse(line)).toOption).getOrElse(JNothing)
  }

  private def decisive(text: String): String = text.takeWhile(_ != '\n')

  def describe(a: WindowedAggregate): String = {
    val keys = a.keys.map(k => SavedOperator.typeText(k.dataType)).mkString(", ")
    val functions = a.functions.map { f =>
      s"${SavedFunction.nameOf(f)}: ${f.aggBufferAttributes.map(b => SavedOperator.typeText(b.dataType)).mkString("+")}"
    }.mkString(", ")
    val complete = a.save.outputMode.contains(Complete)
    val overlapping = a.window match { case grid: GridShape => !grid.isOnePane; case _ => false }
    val mode = if (complete) "complete" else "append or update"
    val time = a.windowAt.map(a.save.output(_).dataType).fold[DataType](TimestampType) {
      case StructType(Array(start, _)) => start.dataType
      case instant => instant
    }
    def list(names: Seq[String]) = JArray(names.map(JString(_)).toList)
    val decimals = a.named.results.map(_.decimal.fold[JValue](JNull)(d => JString(d.simpleString)))
    val names = JsonMethods.compact(JObject("keys" -> list(a.named.keys),
      "aggregates" -> list(a.named.results.map(_.name)), "decimals" -> JArray(decimals.toList),
      SavedOperator.Calls -> JArray(a.functions.map(SavedFunction.callOf(_).fold[JValue](JNull)(JString(_))).toList),
      "time" -> JString(time.simpleString), WindowAt -> a.windowAt.fold[JValue](JNull)(JInt(_)),
      Evicts -> JBool(a.watermarked && overlapping && !complete)))
    s"format 1; ${a.window.identity}; keys ($keys); aggregates ($functions); mode $mode\n" +
      s"keys ${a.keys.map(_.name).mkString(", ")}\n$names"
  }
}

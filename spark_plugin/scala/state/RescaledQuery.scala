package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileStatus, FileSystem, FileUtil, Path}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.gpuwin.shims.{CheckpointGuard, SparksPartitions}
import org.apache.spark.sql.internal.SQLConf
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * A batch without rows, by which a whole query changes its number of partitions: operators of gpuwin's and of Spark's.
 *
 * Spark reads the number from the offsets of the newest batch, so its own operators can only change it with a batch, as
 * Spark's `repartition` does. All that the batch leaves is written into the folder `_gpuwin_rescaled` of the
 * checkpoint, in files of the same names as theirs in the checkpoint. The file `_ready` is the switch: until it is
 * there nothing was changed; from then on [[RescaledBatch.finish]] puts everything in place, now or when the query
 * starts.
 *
 * @param batch the last committed batch
 */
class RescaledBatch(session: SparkSession, checkpoint: String, batch: Long, partitions: Int, conf: Configuration) {
  import RescaledBatch._
  private val files = new Path(checkpoint).getFileSystem(conf)
  private val root = files.makeQualified(new Path(checkpoint))
  private val aside = new Path(root, Folder)
  private val next = batch + 1

  /** Writes the state of Spark's operators. */
  def writeSparks(operators: Seq[Long]): Unit = {
    files.delete(aside, true) // of an attempt that failed or was killed
    copy(s"offsets/$batch")
    write(s"offsets/$next", withPartitions(text(files, new Path(root, s"offsets/$batch"))))
    operators.foreach { operator =>
      copy(s"state/$operator/_metadata")
      // Spark looks for the columns of a state store in the folder of the first partition.
      schemas(new Path(root, s"state/$operator/0")).foreach(copy)
    }
    val own = session.cloneSession()
    own.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1") // that of the checkpoint
    SparksPartitions.write(own, checkpoint, aside.toString, batch, partitions)
  }

  /** Makes this the query's next batch. `stores` says where the state of gpuwin's operators is from then on. */
  def switch(stores: StoresFile): Unit = {
    removeCopies()
    StateStores.write(new Path(aside, "state").toString, stores, conf)
    copy(s"commits/$batch", s"commits/$next")
    FailPoint.reach(FailPoint.RescaledState, stores.stores.length - 1)
    val ready = JObject("format" -> JInt(Format), "partitions" -> JInt(partitions))
    write(Ready, JsonMethods.compact(ready))
    FailPoint.reach(FailPoint.ReadyBatch, partitions)
    finish(checkpoint, conf)
  }

  private def withPartitions(entry: String): String = {
    val lines = entry.split("\n", -1)
    val changed = JsonMethods.parse(lines(1)).mapField {
      case ("conf", JObject(fields)) => "conf" -> JObject(fields.map {
        case (key, _) if SavedVersion.Partitions.contains(key) => key -> JString(partitions.toString)
        case other => other
      })
      case other => other
    }
    lines.updated(1, JsonMethods.compact(changed)).mkString("\n")
  }

  private def schemas(partition: Path): Seq[String] =
    all(files, partition).map(_.getPath).filter(_.getParent.getName == "_metadata").map(below(root, _))

  private def removeCopies(): Unit = {
    files.delete(new Path(aside, s"offsets/$batch"), false)
    files.delete(new Path(aside, "metadata"), false) // Spark may make one
    all(files, new Path(aside, "state")).map(_.getPath).filter(p => below(aside, p).contains("/_metadata/"))
      .filterNot(p => p.getParent.getName == "v2" && p.getName == next.toString)
      .foreach(files.delete(_, false))
  }

  private def copy(name: String): Unit = copy(name, name)

  private def copy(name: String, as: String): Unit = {
    val to = new Path(aside, as)
    files.mkdirs(to.getParent)
    if (!FileUtil.copy(files, new Path(root, name), files, to, false, conf))
      throw new IOException(s"$name of $checkpoint could not be copied")
  }

  private def write(name: String, text: String): Unit = {
    val file = new Path(aside, name)
    files.mkdirs(file.getParent)
    create(file, text, overwrite = true, conf)
  }
}

object RescaledBatch {
  private[gpuwin] val Folder = "_gpuwin_rescaled"
  private val Ready = "_ready"
  private val Format = 1

  /**
   * Puts what a rescaling wrote in the place where the query looks for it, if one got to its switch and no further.
   * Offsets come first: they take the number of the batch, unless the query took it meanwhile; then nothing is done.
   *
   * @return the number of partitions that the query has now, where there was something to do
   */
  def finish(checkpoint: String, conf: Configuration): Option[Int] = {
    val files = new Path(checkpoint).getFileSystem(conf)
    val root = files.makeQualified(new Path(checkpoint))
    val aside = new Path(root, Folder)
    if (!files.exists(new Path(aside, Ready))) None
    else {
      val partitions = SavedVersion.json(files, new Path(aside, Ready), 0) \ "partitions" match {
        case JInt(number) => number.toInt
        case _ => throw new GpuWindowException(s"${new Path(aside, Ready)} is damaged. Restore it from a copy.")
      }
      def entered(log: String) =
        all(files, new Path(aside, log)).forall(entry => enter(files, root, aside, entry.getPath, conf))
      val taken = entered("offsets")
      if (taken) {
        FailPoint.reach(FailPoint.EnteredBatch, partitions)
        if (!entered("commits")) throw new GpuWindowException(s"The log of commits in $root has another batch than " +
          s"the one by which the query was to get $partitions partitions. Restore the checkpoint from a copy.")
        all(files, new Path(aside, "state")).map(_.getPath).sortBy(p => (isOfVersion(p), p.toString))
          .foreach(move(files, root, aside, _))
      }
      files.delete(new Path(aside, Ready), false)
      files.delete(aside, true)
      if (taken) Some(partitions) else None
    }
  }

  /** Enters a batch into a log; false where the log has another one of this number. */
  private def enter(files: FileSystem, root: Path, aside: Path, entry: Path, conf: Configuration): Boolean = {
    val place = new Path(root, below(aside, entry))
    val wanted = text(files, entry)
    try { create(place, wanted, overwrite = false, conf); true }
    catch { case _: FileAlreadyExistsException => text(files, place) == wanted }
  }

  private def move(files: FileSystem, root: Path, aside: Path, file: Path): Unit = {
    val place = new Path(root, below(aside, file))
    files.mkdirs(place.getParent)
    files.delete(place, false) // of a batch that failed, or the stores before
    if (!files.rename(file, place)) throw new IOException(s"$file could not be renamed to $place")
  }

  /** The file that names the others of a version, or the one that names the state stores: they come last. */
  private def isOfVersion(file: Path): Boolean = file.getName.endsWith(".zip") || file.getName == StateStores.File

  private def all(files: FileSystem, folder: Path): Seq[FileStatus] =
    if (!files.exists(folder)) Nil
    else files.listStatus(folder).toSeq.flatMap(s => if (s.isDirectory) all(files, s.getPath) else Seq(s))

  private def below(folder: Path, file: Path): String = folder.toUri.relativize(file.toUri).getPath

  private def text(files: FileSystem, file: Path): String = {
    val in = files.open(file)
    try new String(in.readAllBytes(), UTF_8) finally in.close()
  }

  private def create(file: Path, text: String, overwrite: Boolean, conf: Configuration): Unit = {
    val out = CheckpointFileManager.create(file.getParent, unguarded(conf)).createAtomic(file, overwrite)
    try { out.write(text.getBytes(UTF_8)); out.close() } catch { case e: Throwable => out.cancel(); throw e }
  }

  /** Without the guard of a checkpoint's logs, which calls [[finish]]. */
  private def unguarded(conf: Configuration): Configuration = {
    val key = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
    if (!CheckpointGuard.ClassName.contains(conf.get(key, ""))) conf
    else {
      val others = new Configuration(conf)
      others.unset(key)
      others
    }
  }
}

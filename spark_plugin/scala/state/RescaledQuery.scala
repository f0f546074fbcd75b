package org.apache.spark.sql.gpuwin

import java.io.{FileNotFoundException, IOException}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileContext, FileStatus, FileSystem, FileUtil, Options, Path}
import org.apache.hadoop.fs.UnsupportedFileSystemException
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.gpuwin.shims.SparksPartitions
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * A query of which Spark's own operators, too, get another number of partitions. Many files change: those of their
 * newest state, the file of gpuwin's state stores, and the offsets, from which Spark takes the number.
 *
 * Spark's `repartition` adds a batch for this, which leaves a gap in the log of a file sink, and then Spark cannot read
 * what the sink wrote. Here the newest batch stays the newest. Its state is written into the folder `_gpuwin_rescaled`
 * of the checkpoint, in files of the same names as theirs in the checkpoint. The file `_ready` is the switch: until it
 * is there nothing was changed; from then on [[RescaledQuery.finish]] puts everything in place, now or when the query
 * starts. It can be interrupted, and done again.
 *
 * @param batch the last committed batch
 */
class RescaledQuery(session: SparkSession, checkpoint: String, batch: Long, partitions: Int, conf: Configuration) {
  import RescaledQuery._
  private val files = new Path(checkpoint).getFileSystem(conf)
  private val root = files.makeQualified(new Path(checkpoint))
  private val aside = new Path(root, Folder)

  /** Writes the state of Spark's operators. */
  def writeSparks(operators: Seq[Long]): Unit = {
    files.delete(aside, true) // of an attempt that failed or was killed
    val offsets = text(files, new Path(root, s"offsets/$batch"))
    CheckpointText.write(new Path(aside, s"offsets/$batch"), withPartitions(offsets, partitions), conf)
    operators.foreach { operator =>
      copy(s"state/$operator/_metadata")
      // Spark looks for the columns of a state store in the folder of the first partition.
      all(files, new Path(root, s"state/$operator/0")).map(_.getPath).filter(_.getParent.getName == Metadata)
        .foreach(schema => copy(below(root, schema)))
    }
    val own = session.cloneSession()
    own.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1") // that of the checkpoint
    SparksPartitions.write(own, checkpoint, aside.toString, batch, partitions)
  }

  /** Puts all of it into use, unless the query runs. `stores` says where the state of gpuwin's operators is then. */
  def switch(stores: StoresFile, query: StoppedQuery): Unit = {
    files.delete(new Path(aside, "offsets"), true) // those in the checkpoint are changed in their place
    files.delete(new Path(aside, "metadata"), false) // Spark may make one
    all(files, new Path(aside, "state")).map(_.getPath).filter(_.getParent.getName == Metadata)
      .foreach(files.delete(_, false))
    StateStores.write(new Path(aside, "state").toString, stores, conf)
    FailPoint.reach(FailPoint.RescaledState, stores.stores.length - 1)
    query.refuseStarted()
    val ready = JObject("format" -> JInt(Format), "batch" -> JInt(batch), "partitions" -> JInt(partitions))
    CheckpointText.write(new Path(aside, Ready), JsonMethods.compact(ready), conf)
    FailPoint.reach(FailPoint.ReadyRescaling, partitions)
    finish(checkpoint, conf)
  }

  private def copy(name: String): Unit = {
    val to = new Path(aside, name)
    files.mkdirs(to.getParent)
    if (!FileUtil.copy(files, new Path(root, name), files, to, false, conf))
      throw new IOException(s"$name of $checkpoint could not be copied")
  }
}

object RescaledQuery {
  private[gpuwin] val Folder = "_gpuwin_rescaled"
  private val Ready = "_ready"
  private val Metadata = "_metadata"
  private val Format = 1

  /**
   * Puts what a rescaling wrote in the place where the query looks for it, if one got to its switch and no further.
   *
   * @return the number of partitions that the query has now, where there was something to do
   */
  def finish(checkpoint: String, conf: Configuration): Option[Int] = {
    val files = new Path(checkpoint).getFileSystem(conf)
    val root = files.makeQualified(new Path(checkpoint))
    val aside = new Path(root, Folder)
    val ready = new Path(aside, Ready)
    if (!files.exists(ready)) None
    else {
      val said = SavedVersion.json(files, ready, 0)
      val (batch, partitions) = (said \ "batch", said \ "partitions") match {
        case (JInt(batch), JInt(partitions)) if (said \ "format") == JInt(Format) => (batch.toLong, partitions.toInt)
        case _ => throw new GpuWindowException(s"$ready is damaged, or of a later gpuwin. Use the version of gpuwin " +
          "that wrote it, or restore the checkpoint from a copy.")
      }
      CommandAnswer.afterSwitch(
          s"The query of $root is rescaled to $partitions partitions, and not all of its state is in its place",
          s"Mend that; then start the query, or run gpuwin state rescale $root --partitions $partitions: it does the " +
            "rest.") {
        all(files, new Path(aside, "state")).map(_.getPath).zipWithIndex.foreach { case (file, number) =>
          val place = new Path(root, below(aside, file))
          files.mkdirs(place.getParent)
          replace(files, file, place, conf)
          FailPoint.reach(FailPoint.PlacedFile, number)
        }
        FailPoint.reach(FailPoint.PlacedRescaling, partitions)
        // Also those of a batch that was begun and is not committed: it is done again, with the new number.
        renumber(root, SavedVersion.numbers(files, new Path(root, "offsets")).filter(_ >= batch), partitions, conf)
        files.delete(ready, false)
        files.delete(aside, true)
      }
      Some(partitions)
    }
  }

  /** Batches after the last committed one, which is of this number of partitions, that were begun with another. */
  def begunOtherwise(checkpoint: String, committed: Long, partitions: Int, conf: Configuration): Seq[Long] = {
    val (files, root) = SavedVersion.open(checkpoint, conf)
    def number(batch: Long) = SavedVersion.partitionsIn(SavedVersion.settingsOf(files, root, batch))
    val begun = SavedVersion.numbers(files, new Path(root, "offsets")).filter(_ > committed)
    if (begun.isEmpty || committed < 0 || !number(committed).contains(partitions)) Nil
    else begun.filter(number(_).exists(_ != partitions))
  }

  /**
   * Raises where a batch is planned with another number of partitions than the last committed one had: the query ran,
   * or waited for data, while it was rescaled. Its operators, Spark's own, too, would not find all of their state.
   */
  def refuseOtherPartitions(info: StatefulOperatorStateInfo, conf: Configuration): Unit = {
    val root = new Path(info.checkpointLocation).getParent
    val files = root.getFileSystem(conf)
    val last = info.storeVersion - 1
    if (last >= 0 && files.exists(new Path(root, s"offsets/$last")))
      SavedVersion.partitionsIn(SavedVersion.settingsOf(files, root, last)).filter(_ != info.numPartitions)
        .foreach { partitions =>
          throw new GpuWindowException(s"Batch ${info.storeVersion} of the query in $root is planned with " +
            s"${info.numPartitions} partitions, and its state has $partitions: it was rescaled while this query ran. " +
            s"Nothing of this batch was done. Run: gpuwin state rescale $root --partitions $partitions --stopped. " +
            "Then start the query again.")
        }
  }

  /** Writes the number into the offsets of batches, from which Spark takes it. */
  def renumber(root: Path, batches: Seq[Long], partitions: Int, conf: Configuration): Unit = batches.foreach { batch =>
    val entry = new Path(root, s"offsets/$batch")
    CheckpointText.write(entry, withPartitions(text(root.getFileSystem(conf), entry), partitions), conf)
  }

  private def withPartitions(entry: String, partitions: Int): String = {
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

  /**
   * Puts a file in the place of another, in one step where the store can: two that finish must not undo each other. An
   * object store would remove the other one first, so there the file is copied over it.
   */
  private def replace(files: FileSystem, file: Path, place: Path, conf: Configuration): Unit =
    try {
      if (ObjectStoreFiles.fits(files, place)) {
        FileUtil.copy(files, file, files, place, false, true, conf)
        files.delete(file, false)
      } else LocalFiles.of(files, conf) match {
        case Some(disk) => LocalFiles.replace(disk, file, place)
        case None => FileContext.getFileContext(file.toUri, conf).rename(file, place, Options.Rename.OVERWRITE)
      }
    } catch {
      case _: FileNotFoundException if !files.exists(file) => // another has done it
      case _: UnsupportedFileSystemException =>
        files.delete(place, false)
        if (!files.rename(file, place)) throw new IOException(s"$file could not be renamed to $place")
    }

  private def all(files: FileSystem, folder: Path): Seq[FileStatus] =
    if (!files.exists(folder)) Nil
    else files.listStatus(folder).toSeq.flatMap(s => if (s.isDirectory) all(files, s.getPath) else Seq(s))

  private def below(folder: Path, file: Path): String = folder.toUri.relativize(file.toUri).getPath

  private def text(files: FileSystem, file: Path): String = CheckpointText.read(files.open(file))
}

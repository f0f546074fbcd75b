package org.apache.spark.sql.gpuwin

import java.io.InputStream
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.gpuwin.shims.CheckpointGuard
import org.apache.spark.sql.internal.SQLConf

/** Small text files of a checkpoint, read and replaced as a whole. */
object CheckpointText {
  private val Manager = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key

  def read(in: InputStream): String = try new String(in.readAllBytes(), UTF_8) finally in.close()

  /**
   * Puts the text in the place of what is there: at every moment the file has one or the other. On a local disk a
   * manager of Spark's does not keep that, not even one that the user has set ([[LocalFiles.replace]]).
   */
  def write(file: Path, text: String, conf: Configuration): Unit = {
    val folder = file.getParent
    val there = folder.getFileSystem(conf)
    val bytes = text.getBytes(UTF_8)
    LocalFiles.of(there, conf) match {
      case Some(disk) => LocalFiles.write(disk, file, bytes)
      case None =>
        val files =
          if (ObjectStoreFiles.fits(there, folder)) new ObjectStoreFiles(folder, conf)
          else CheckpointFileManager.create(folder, unguarded(conf))
        files.mkdirs(folder)
        val out = files.createAtomic(file, overwriteIfPossible = true)
        try { out.write(bytes); out.close() } catch { case e: Throwable => out.cancel(); throw e }
    }
  }

  /** A configuration with the user's manager of a checkpoint's files, or Spark's, but not [[CheckpointGuard]]. */
  def unguarded(conf: Configuration): Configuration =
    if (!CheckpointGuard.ClassName.contains(conf.get(Manager, ""))) conf
    else {
      val others = new Configuration(conf)
      others.unset(Manager)
      others
    }
}

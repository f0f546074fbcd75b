package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
import org.apache.spark.sql.gpuwin.shims.CheckpointGuard
import org.apache.spark.sql.internal.SQLConf

/**
 * The Hadoop configuration of our state stores where the checkpoint is on a local disk.
 *
 * Spark's default there, FileContextBasedCheckpointFileManager, looks for symbolic links before it renames a file, and
 * Hadoop asks `readlink`, a process for each of four paths: eight for the file of a batch and that of its checksum. A
 * store of ours uses Spark's FileSystemBasedCheckpointFileManager in its place, which makes the same files and renames
 * them by one system call. A manager that the user has set stays; the one that the plugin sets for the logs of a query
 * ([[CheckpointGuard]]) is not the user's.
 */
object LocalCheckpoint {
  private val Manager = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
  /** The last configuration that came, and the one made of it: the tasks of a batch share one. */
  private var made: (Configuration, Configuration) = (null, null)

  def configuration(checkpoint: String, given: Configuration): Configuration =
    if (isUsers(given.get(Manager, "")) || new Path(checkpoint).getFileSystem(given).getScheme != "file") given
    else synchronized {
      if (made._1 ne given) {
        val changed = new Configuration(given)
        changed.set(Manager, classOf[FileSystemBasedCheckpointFileManager].getName)
        made = (given, changed)
      }
      made._2
    }

  private def isUsers(manager: String): Boolean =
    manager.nonEmpty && !CheckpointGuard.ClassName.contains(manager)
}

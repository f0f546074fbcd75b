package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
import org.apache.spark.sql.gpuwin.shims.CheckpointGuard
import org.apache.spark.sql.internal.SQLConf

/**
 * The Hadoop configuration of our state stores, which says how they write their files.
 *
 * Spark's default, FileContextBasedCheckpointFileManager, writes a file under another name and renames it.
 *
 *  - On a local disk it looks for symbolic links before that, and Hadoop asks `readlink`, a process for each of four
 *    paths: eight for the file of a batch and that of its checksum, and two more, `chmod`, for making them. A store of
 *    ours makes the same files without a process ([[LocalFiles]]), or, where `file:` is a file system of the user's,
 *    renames them by it. RocksDB's provider copies its files past the manager, by the file system, which is then
 *    [[LocalDisk]].
 *  - In an object store a rename is a copy and a removal, each with requests that look what is there. A store of ours
 *    writes each file under its own name ([[ObjectStoreFiles]]).
 *
 * A manager that the user has set stays, but for Spark's own that renames by the file system: on a local disk
 * [[LocalFiles]], which is one, makes its files. The manager that the plugin sets for the logs of a query
 * ([[CheckpointGuard]]) is not the user's.
 */
object StoreFiles {
  private[gpuwin] val Manager = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
  private val Renaming = classOf[FileSystemBasedCheckpointFileManager].getName
  /** The last configuration that came, the manager, and the one made of them: the tasks of a batch share one. */
  private var made: (Configuration, String, Configuration) = (null, null, null)

  def configuration(checkpoint: String, given: Configuration): Configuration = {
    val manager = given.get(Manager, "")
    val renames = manager == Renaming
    if (isUsers(manager) && !renames) given
    else {
      val path = new Path(checkpoint)
      val files = path.getFileSystem(given)
      if (LocalFiles.fits(files)) changed(given, classOf[LocalFiles].getName)
      else if (renames) given
      else if (files.getScheme == "file") changed(given, Renaming)
      else if (ObjectStoreFiles.fits(files, path)) changed(given, classOf[ObjectStoreFiles].getName)
      else given
    }
  }

  private def changed(given: Configuration, manager: String): Configuration = synchronized {
    if ((made._1 ne given) || made._2 != manager) {
      val own = new Configuration(given)
      own.set(Manager, manager)
      if (manager == classOf[LocalFiles].getName) {
        own.set("fs.file.impl", classOf[LocalDisk].getName)
        own.setBoolean("fs.file.impl.disable.cache", true)
      }
      made = (given, manager, own)
    }
    made._3
  }

  private def isUsers(manager: String): Boolean =
    manager.nonEmpty && !CheckpointGuard.ClassName.contains(manager)
}

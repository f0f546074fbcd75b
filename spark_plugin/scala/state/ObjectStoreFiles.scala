package org.apache.spark.sql.gpuwin

import java.io.IOException

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{CommonPathCapabilities, FileAlreadyExistsException, FileSystem, FSDataOutputStream, Path}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/**
 * The files of a checkpoint in an object store, each written under its own name by one request.
 *
 * A store whose streams can be aborted (S3, as `s3a`) shows an object when its stream is closed, whole, and not before.
 * It has no rename but a copy and a removal, and a rename over a file removes that first. So here no file is renamed,
 * and what is replaced is there at every moment, old or new.
 *
 * Spark's AbortableStreamBasedCheckpointFileManager does the same, but only warns of a close that fails: the batch is
 * committed without its file. Here that is an error, and the batch fails. Where a file must not be there yet, that is
 * for the store to decide, if it can (`If-None-Match`); else we look right before.
 *
 * It may be set for all files of a checkpoint (`spark.sql.streaming.checkpointFileManagerClass`). Spark then uses it
 * for the log of a file sink, too, wherever that is; in a store that is none of these, Spark's manager writes files.
 */
class ObjectStoreFiles(path: Path, conf: Configuration) extends FileSystemBasedCheckpointFileManager(path, conf) {
  import ObjectStoreFiles._

  private val isWhole = fits(fs, path)
  /** Spark's own, for files elsewhere, such as the log of a sink on another file system. */
  private lazy val sparks: CheckpointFileManager = {
    val others = new Configuration(conf)
    others.unset(StoreFiles.Manager)
    CheckpointFileManager.create(path, others)
  }

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream =
    if (isWhole) new WholeFile(fs, path, overwriteIfPossible, created(fs, path, overwriteIfPossible))
    else sparks.createAtomic(path, overwriteIfPossible)
}

object ObjectStoreFiles {
  /** Hadoop's name, where it knows that, for a file that the store is to refuse where there is one. */
  private val IfAbsent = "fs.option.create.conditional.overwrite"
  /** S3A looks for folders of the name and above it, unless it is told that this is no matter. */
  private val WithoutLooking = "fs.s3a.create.performance"

  /** Whether files appear whole when they are closed. */
  def fits(files: FileSystem, path: Path): Boolean =
    files.hasPathCapability(path, CommonPathCapabilities.ABORTABLE_STREAM)

  private def created(files: FileSystem, path: Path, replaces: Boolean): FSDataOutputStream = {
    val builder = files.createFile(path)
    builder.overwrite(true)
    builder.recursive()
    builder.opt(WithoutLooking, "true")
    if (!replaces && refuses(files, path)) builder.opt(IfAbsent, "true")
    builder.build().asInstanceOf[FSDataOutputStream]
  }

  private def refuses(files: FileSystem, path: Path): Boolean = files.hasPathCapability(path, IfAbsent)

  /** A file that is there when it is closed without an error. */
  private class WholeFile(files: FileSystem, path: Path, replaces: Boolean, out: FSDataOutputStream)
    extends CancellableFSDataOutputStream(out) {
    private var ended = false

    override def close(): Unit = synchronized {
      if (!ended) {
        ended = true
        if (!replaces && !refuses(files, path) && files.exists(path)) {
          out.abort()
          throw taken(null)
        }
        try out.close()
        catch { case NonFatal(e) if !replaces && files.exists(path) => throw taken(e) }
      }
    }

    override def cancel(): Unit = synchronized {
      if (!ended) {
        ended = true
        out.abort()
      }
    }

    /** Of a request that failed the store may have done what it asked for: its file is no other writer's then. */
    private def taken(cause: Throwable): IOException = {
      val by = if (cause == null) "" else s": another writer made it, or this one, whose request failed ($cause). If " +
        "nothing else works on this checkpoint, start the query again: it goes on from this file"
      val error = new FileAlreadyExistsException(s"$path is there already$by")
      error.initCause(cause)
      error
    }
  }
}

package org.apache.spark.sql.gpuwin

import java.lang.StackWalker.StackFrame

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, FSDataInputStream, Path, PathFilter}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.runtime.StreamingCheckpointConstants
import org.apache.spark.sql.execution.streaming.state.OfflineStateRepartitionRunner

/**
 * The files of a checkpoint as Spark sees to them, but closed to a repartition of state that gpuwin wrote. A rescaling
 * that was interrupted is ended before a log is read ([[RescaledQuery]]). On a local disk they are written without
 * processes ([[LocalFiles]]).
 *
 * Spark's `repartition` writes the offsets of its new batch first, and looks at the state after that. What it then
 * cannot read leaves a checkpoint from which no query starts any more (`gpuwin state repair` mends it). Of what it does
 * before, opening the logs of the checkpoint is all that goes through a class that can be configured.
 */
class GuardedCheckpointFiles(path: Path, conf: Configuration) extends CheckpointFileManager {
  import GuardedCheckpointFiles._

  private val sparks = LocalFiles.orSparks(path, CheckpointText.unguarded(conf))
  private val refusal: Option[String] =
    if (!Logs.contains(path.getName)) None
    else if (isCalledByRepartition) reasonAgainst(path.getParent, conf)
    else reasonUnfinished(path.getParent, conf)

  /** Spark makes this object by reflection, which would wrap an error; so it comes with the first use. */
  private def files: CheckpointFileManager = {
    refusal.foreach(reason => throw new GpuWindowException(reason))
    sparks
  }

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream =
    files.createAtomic(path, overwriteIfPossible)
  override def open(path: Path): FSDataInputStream = files.open(path)
  override def list(path: Path, filter: PathFilter): Array[FileStatus] = files.list(path, filter)
  override def mkdirs(path: Path): Unit = files.mkdirs(path)
  override def exists(path: Path): Boolean = files.exists(path)
  override def delete(path: Path): Unit = files.delete(path)
  override def isLocal: Boolean = files.isLocal
  override def createCheckpointDirectory(): Path = files.createCheckpointDirectory()
  override def close(): Unit = sparks.close()
}

object GuardedCheckpointFiles {
  private val Logs = Set(StreamingCheckpointConstants.DIR_NAME_OFFSETS, StreamingCheckpointConstants.DIR_NAME_COMMITS)
  private val Runner = classOf[OfflineStateRepartitionRunner].getName

  private def isCalledByRepartition: Boolean = StackWalker.getInstance()
    .walk[Boolean](frames => frames.anyMatch((frame: StackFrame) => frame.getClassName == Runner))

  private def reasonAgainst(checkpoint: Path, conf: Configuration): Option[String] =
    Some(CheckpointOwner.operators(checkpoint.toString, conf)).filter(_.nonEmpty).map { operators =>
      s"The state in $checkpoint was written by gpuwin (operator ${operators.mkString(", ")}), and Spark's " +
        "repartition cannot read it. Nothing was changed. For another number of partitions stop the query and run: " +
        s"gpuwin state rescale $checkpoint --partitions N. If an earlier attempt left this checkpoint " +
        s"unable to start (STREAMING_UNFINISHED_REPARTITION_DETECTED), run: gpuwin state repair $checkpoint"
    }

  private def reasonUnfinished(checkpoint: Path, conf: Configuration): Option[String] =
    try { RescaledQuery.finish(checkpoint.toString, conf); None }
    catch {
      case NonFatal(e) => Some(s"A rescaling of $checkpoint was interrupted, and cannot be ended: ${e.getMessage}")
    }
}

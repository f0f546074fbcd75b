package org.apache.spark.sql.gpuwin

import scala.collection.mutable.ArrayBuffer
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId

/**
 * Connections to one device service on which no task works: as many as tasks have run at once.
 *
 * A task gives its connection back when it has sent its commit, without waiting for the answer. The next task on that
 * state gets that connection, or another task has read the answer before: so it never asks for a state whose commit is
 * still on its way.
 */
class ServiceConnections extends Logging {
  private val idle = ArrayBuffer.empty[ServiceConnection]
  private var closed = false

  /** A connection that works: the one that committed this state last, where there is a state and it is here. */
  @scala.annotation.tailrec
  final def take(state: Option[StateStoreProviderId], timeoutMs: Long): Option[ServiceConnection] = {
    val found = synchronized {
      val at = idle.indexWhere(c => state.exists(c.committed.contains))
      if (idle.isEmpty) None else Some(idle.remove(math.max(at, 0)))
    }
    found match {
      case Some(connection) if works(connection, timeoutMs) => found
      case Some(_) => take(state, timeoutMs)
      case None => None
    }
  }

  /**
   * Whether a connection can be used. The state that it committed is durable, so a commit that failed costs no more
   * than reading it again.
   */
  private def works(connection: ServiceConnection, timeoutMs: Long): Boolean =
    try { connection.settle(timeoutMs); true }
    catch {
      case e: java.nio.channels.ClosedByInterruptException => throw e
      case e: ServiceTimeoutException => connection.close(); throw e // it may hang, and the next one would wait as long
      case NonFatal(e) =>
        connection.close()
        logWarning(s"The gpuwin device service was lost, or failed, after a commit: ${e.getMessage}")
        false
    }

  def give(connection: ServiceConnection): Unit =
    if (!synchronized { if (!closed) idle += connection; !closed }) connection.close()

  def close(): Unit = synchronized {
    closed = true
    idle.foreach(_.close())
    idle.clear()
  }
}

package org.apache.spark.sql.gpuwin

import java.util.{Collections, WeakHashMap}
import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.LockSupport

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.{SparkSession, StreamingCheckpointManager}
import org.apache.spark.sql.internal.SessionState

/**
 * A checkpoint manager that refuses to repartition the state of gpuwin, before anything is written.
 *
 * Spark's own writes the offsets of its new batch first, and looks at the state after that. What it then cannot read
 * leaves a checkpoint from which no query starts any more (`gpuwin state repair` mends it).
 */
class RepartitionGuard(session: SparkSession) extends StreamingCheckpointManager(session, session.sessionState.conf) {
  override def repartition(checkpointLocation: String, numPartitions: Int, enforceExactlyOnceSink: Boolean): Unit = {
    val ours =
      if (checkpointLocation == null || checkpointLocation.isEmpty) Nil // Spark's error says it
      else CheckpointOwner.operators(checkpointLocation, session.sessionState.newHadoopConf())
    if (ours.nonEmpty) throw new GpuWindowException(
      s"The state in $checkpointLocation was written by gpuwin (operator ${ours.mkString(", ")}), and Spark's " +
        "repartition cannot read it. Nothing was changed. For another number of partitions start the query with " +
        s"spark.sql.shuffle.partitions=$numPartitions and a new checkpointLocation. If an earlier attempt without " +
        "the plugin left this one unable to start (STREAMING_UNFINISHED_REPARTITION_DETECTED), run: " +
        s"gpuwin state repair $checkpointLocation")
    super.repartition(checkpointLocation, numPartitions, enforceExactlyOnceSink)
  }
}

/**
 * The installation of the guard in the place of Spark's manager. Spark has no place for others', and makes its own with
 * the state of a session. So the guard takes its place as soon as that state is there: from a thread, for the session
 * that an application begins with and for those made from it, and in any case when a session plans something. A session
 * made from another, whose very first act is to repartition, may be faster; it fails when Spark reads the state
 * ([[StateOfGpuwinIsNotSparks]]).
 */
object RepartitionGuard extends Logging {
  private val WatchNanos = TimeUnit.SECONDS.toNanos(10)
  private val PollNanos = TimeUnit.MICROSECONDS.toNanos(50)
  private val begun = Collections.synchronizedMap(new WeakHashMap[SparkSession, AnyRef]())

  /** A wait for an application's session, whose state it builds before anybody else does. */
  def watch(): Unit = inBackground {
    val end = System.nanoTime() + WatchNanos
    def current: Option[SparkSession] = SparkSession.getDefaultSession.filterNot(_.sparkContext.isStopped)
    while (current.isEmpty && System.nanoTime() < end) LockSupport.parkNanos(PollNanos)
    current.foreach(session => session.synchronized(install(session))) // the lock under which the state is built
  }

  /** An installation in a session whose state is being built. */
  def installSoon(session: SparkSession): Unit = if (begun.put(session, this) == null) inBackground(install(session))

  /** Puts the guard in the place of Spark's manager. */
  def install(session: SparkSession): Unit = try {
    val state = session.sessionState
    if (!state.streamingCheckpointManager.isInstanceOf[RepartitionGuard]) { // Spark's own is made by this, once
      val field = classOf[SessionState].getDeclaredField("streamingCheckpointManager")
      field.setAccessible(true)
      field.set(state, new RepartitionGuard(session))
    }
  } catch {
    case NonFatal(e) => logWarning("gpuwin cannot see to it that the state it writes is not repartitioned by Spark. " +
      "Do not call repartition on checkpoints of gpuwin.", e)
  }

  private def inBackground(work: => Unit): Unit = {
    val thread = new Thread(() => work, "gpuwin-repartition-guard")
    thread.setDaemon(true)
    thread.start()
  }
}

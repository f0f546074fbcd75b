package org.apache.spark.sql.gpuwin

import java.util.{Collections, WeakHashMap}

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
      s"The state in $checkpointLocation was written by gpuwin (operator ${ours.mkString(", ")}), and Spark's repartition " +
        "cannot read it. Nothing was changed. For another number of partitions start the query with " +
        s"spark.sql.shuffle.partitions=$numPartitions and a new checkpointLocation. If an earlier attempt without the plugin " +
        "left this one unable to start (STREAMING_UNFINISHED_REPARTITION_DETECTED), run: gpuwin state repair " +
        checkpointLocation)
    super.repartition(checkpointLocation, numPartitions, enforceExactlyOnceSink)
  }
}

object RepartitionGuard extends Logging {
  private val begun = Collections.synchronizedMap(new WeakHashMap[SparkSession, AnyRef]())

  /**
   * Called while Spark builds the state of a session, which has no place for a checkpoint manager of others. A thread
   * waits until the state is there; a session that plans anything has the guard by then in any case ([[install]]).
   */
  def installSoon(session: SparkSession): Unit = if (begun.put(session, this) == null) {
    val thread = new Thread(() => install(session), "gpuwin-repartition-guard")
    thread.setDaemon(true)
    thread.start()
  }

  /** Puts the guard in the place of Spark's manager. Only where the session's state has been built. */
  def install(session: SparkSession): Unit = try {
    val state = session.sessionState
    if (!state.streamingCheckpointManager.isInstanceOf[RepartitionGuard]) { // Spark's own is made by this, once
      val field = classOf[SessionState].getDeclaredField("streamingCheckpointManager")
      field.setAccessible(true)
      field.set(state, new RepartitionGuard(session))
    }
  } catch {
    case NonFatal(e) => logWarning("gpuwin cannot see to it that the state it writes is not repartitioned by Spark. Do not " +
      "call repartition on checkpoints of gpuwin.", e)
  }
}

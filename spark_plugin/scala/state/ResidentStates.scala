package org.apache.spark.sql.gpuwin

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProviderId}

/**
 * The states that the services of this executor hold, each no longer than its state store is loaded.
 *
 * Spark unloads a store in its maintenance, once the query has ended or another executor has the partition. Spark does
 * not tell the service, which would keep gigabytes for a query that is gone.
 */
object ResidentStates extends Logging {
  private val PeriodSeconds = 10L
  private val TimeoutMs = 60000L
  /** The address of the GPU whose service has the state, by state store. */
  private val held = new ConcurrentHashMap[StateStoreProviderId, String]

  private lazy val watch = {
    val pool = Executors.newSingleThreadScheduledExecutor { (r: Runnable) =>
      val t = new Thread(r, "gpuwin-resident-states")
      t.setDaemon(true)
      t
    }
    val work: Runnable = () =>
      try release() catch { case NonFatal(e) => logDebug("gpuwin: states were not released", e) }
    pool.scheduleWithFixedDelay(work, PeriodSeconds, PeriodSeconds, TimeUnit.SECONDS)
  }

  /** The number of states that the services hold for queries that run. */
  def size: Int = held.size

  /** Adds a state that a service has from now on. */
  def hold(id: StateStoreProviderId, gpu: String): Unit = {
    watch
    held.put(id, gpu)
  }

  /** Drops all: the services have ended. */
  def clear(): Unit = held.clear()

  /** Tells the services of states whose store is not loaded any more. If that fails it is tried again. */
  def release(): Unit =
    held.asScala.toSeq.filterNot { case (id, _) => StateStore.isLoaded(id) }.groupBy(_._2).foreach { case (gpu, gone) =>
      DeviceService.connectIfRunning(gpu, TimeoutMs).foreach { connection =>
        try gone.foreach { case (id, _) => connection.release(id) } finally connection.close()
      }
      gone.foreach { case (id, _) => held.remove(id, gpu) }
    }
}

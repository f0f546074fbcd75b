package org.apache.spark.sql.gpuwin

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProviderId}

/**
 * Which states the services of this executor hold, so that each is kept no longer than its state store.
 *
 * Spark unloads a store in its maintenance, once the query has ended or another executor has the partition. Nobody tells
 * the service, so it would keep what can be gigabytes for a query that is gone.
 */
object ResidentStates extends Logging {
  private val PeriodSeconds = 10L
  private val TimeoutMs = 60000L
  /** By state store, the address of the GPU whose service has its state. */
  private val held = new ConcurrentHashMap[StateStoreProviderId, String]

  private lazy val watch = {
    val pool = Executors.newSingleThreadScheduledExecutor { (r: Runnable) =>
      val t = new Thread(r, "gpuwin-resident-states")
      t.setDaemon(true)
      t
    }
    pool.scheduleWithFixedDelay(() => try release() catch { case NonFatal(e) => logDebug("gpuwin: states were not released", e) },
      PeriodSeconds, PeriodSeconds, TimeUnit.SECONDS)
  }

  /** How many states the services hold for queries that run. */
  def size: Int = held.size

  /** A service has this state from now on. */
  def hold(id: StateStoreProviderId, gpu: String): Unit = {
    watch
    held.put(id, gpu)
  }

  /** The services have ended. */
  def clear(): Unit = held.clear()

  /** Has the services let go of the states whose store is not loaded any more. What fails is tried again. */
  def release(): Unit =
    held.asScala.toSeq.filterNot { case (id, _) => StateStore.isLoaded(id) }.groupBy(_._2).foreach { case (gpu, gone) =>
      DeviceService.connectIfRunning(gpu, TimeoutMs).foreach { connection =>
        try gone.foreach { case (id, _) => connection.forget(id) } finally connection.close()
      }
      gone.foreach { case (id, _) => held.remove(id, gpu) }
    }
}

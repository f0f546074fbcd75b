package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration

/**
 * A query that must not run while its state is written anew, as far as the logs of its checkpoint tell.
 *
 * @param stopped whether the user says that nothing runs on it
 */
class StoppedQuery(checkpoint: String, conf: Configuration, stopped: Boolean) {
  private val logs = SavedVersion.newestEntries(checkpoint, conf)

  /** Raises where a batch was begun that is not committed. */
  def refuseUnfinished(): Unit = {
    val (begun, committed) = logs
    if (begun > committed && !stopped) throw new GpuWindowException(s"Batch $begun of the query in $checkpoint was " +
      "begun and is not committed, so the query runs, or was stopped in the middle of a batch. If it runs, stop it. " +
      "If nothing runs, say so by --stopped: the batch is done again when the query is started.")
  }

  /** Raises where a batch was begun or committed since this was made. */
  def refuseStarted(): Unit =
    if (SavedVersion.newestEntries(checkpoint, conf) != logs) throw new GpuWindowException(
      s"The query of $checkpoint has begun or committed a batch meanwhile, so it runs. Nothing was changed. Stop it, " +
        "and run this again.")
}

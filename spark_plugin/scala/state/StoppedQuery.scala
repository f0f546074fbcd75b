package org.apache.spark.sql.gpuwin

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

/**
 * A query that must not run while its state is written anew, as far as the logs of its checkpoint tell, and whose state
 * nobody else must move meanwhile.
 *
 * @param stopped whether the user says that nothing runs on it
 */
class StoppedQuery(checkpoint: String, conf: Configuration, stopped: Boolean) {
  private val logs = SavedVersion.newestEntries(checkpoint, conf)
  private val stores = said()

  /** Raises where a batch was begun that is not committed. */
  def refuseUnfinished(): Unit = {
    val (begun, committed) = logs
    if (begun > committed && !stopped) throw new GpuWindowException(s"Batch $begun of the query in $checkpoint was " +
      "begun and is not committed, so the query runs, or was stopped in the middle of a batch. If it runs, stop it. " +
      "If nothing runs, say so by --stopped: the batch is done again when the query is started.")
  }

  /** Raises where, since this was made, a batch was begun or committed, or the state was moved. */
  def refuseStarted(): Unit = {
    if (SavedVersion.newestEntries(checkpoint, conf) != logs) throw new GpuWindowException(
      s"The query of $checkpoint has begun or committed a batch meanwhile, so it runs. Nothing was changed. Stop it, " +
        "and run this again.")
    if (said() != stores) throw new GpuWindowException(s"Another command, or the query, has moved the state in " +
      s"$checkpoint meanwhile. This one changed nothing. Look with gpuwin state show, and run this again.")
  }

  /** Where the state is; without the note that a giving back makes before its switch. */
  private def said(): StoresFile = StateStores.read(new Path(checkpoint, "state").toString, conf).copy(placed = None)
}

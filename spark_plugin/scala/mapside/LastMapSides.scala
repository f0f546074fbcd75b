package org.apache.spark.sql.gpuwin

import java.util.UUID

import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo

/**
 * The size of a map side in one batch.
 *
 * @param cells      those that it handed to the shuffle
 * @param partitions of the shuffle
 */
final case class MapSideSize(cells: Long, tasks: Int, partitions: Int)

/**
 * The map sides of the last batches, of the queries that run in this application. By them `spark.gpuwin.mapside=auto`
 * chooses the side of the next batch: Spark plans each one anew, and nothing in a state says by which side cells came.
 * The first batch of a run goes to the service: it is the largest of many a run, which catches up, and costs two
 * milliseconds more where it is small. A query whose batches are large then compiles the code of one side, not of two.
 *
 * The service gains where the JVM's hash table is large, which its cells tell, and not its rows: of half a million rows
 * that become ten cells the JVM makes them as fast. And a payload has a head, which its cells should outweigh.
 */
object LastMapSides {
  /** The least cells of a payload, on average. */
  val LeastOfPayload = 64L
  /** Operators that are remembered. One that is forgotten starts in the service again. */
  private val Most = 1024

  private val sizes = new Remembered[(UUID, Long), MapSideSize](Most)

  /** Remembers the batch of an operator that has run; `shuffle` is below it. A batch without cells says nothing. */
  def ran(info: Option[StatefulOperatorStateInfo], shuffle: ShuffleExchangeExec, cells: Long): Unit =
    info.filter(_ => cells > 0).foreach { i =>
      val size = MapSideSize(cells, shuffle.inputRDD.getNumPartitions, shuffle.outputPartitioning.numPartitions)
      sizes.put((i.queryRunId, i.operatorId), size)
    }

  /** The reason why the next batch's rows should become cells in the JVM; none where they should in the service. */
  def reasonForJvm(info: Option[StatefulOperatorStateInfo], least: Long): Option[String] =
    info.flatMap(i => sizes.get((i.queryRunId, i.operatorId))).flatMap {
      case MapSideSize(cells, tasks, partitions) =>
        val ofTask = if (cells / tasks == 1) "1 cell" else s"${cells / tasks} cells"
        if (cells < least * tasks) Some(s"of the batch before a task had $ofTask, fewer than $least")
        else if (cells < LeastOfPayload * tasks * partitions)
          Some(s"of the batch before a task had $ofTask for $partitions partitions, fewer than " +
            s"$LeastOfPayload for each")
        else None
    }
}

package org.apache.spark.sql.gpuwin

import org.apache.hadoop.fs.Path
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.gpuwin.shims.SparksPartitions
import org.apache.spark.util.SerializableConfiguration

/**
 * The state of a stopped query, written anew for another number of partitions: `gpuwin state rescale`.
 *
 * The cells of the newest version are read from all logs, shuffled by their keys as a batch shuffles them, and written
 * into state stores of another name in the same folders. They come into use by one file ([[StateStores]]); until then
 * nothing refers to them. Commits and the sink's log stay as they are.
 *
 * Operators of Spark's own in the query change their number with it where Spark can do that ([[RescaledQuery]]).
 */
class Rescaling(session: SparkSession, checkpoint: String, partitions: Int, stopped: Boolean) {
  private val conf = session.sessionState.newHadoopConf()

  /** What was done, in a sentence for each operator. */
  def run(): Seq[String] = StateClaim.during(checkpoint, "gpuwin state rescale", conf) {
    RescaledQuery.finish(checkpoint, conf) match {
      case Some(`partitions`) => Seq(s"A rescaling to $partitions partitions had begun. It is done.")
      case _ => renumbered().getOrElse(begin())
    }
  }

  /**
   * What became of a batch that the query began in another number of partitions, since it ran while it was rescaled
   * with Spark's own operators. Spark starts no query from such offsets.
   */
  private def renumbered(): Option[Seq[String]] = {
    val (_, committed) = SavedVersion.newestEntries(checkpoint, conf)
    val begun = RescaledQuery.begunOtherwise(checkpoint, committed, partitions, conf)
    if (begun.isEmpty) None
    else {
      new StoppedQuery(checkpoint, conf, stopped).refuseUnfinished()
      RescaledQuery.renumber(SavedVersion.open(checkpoint, conf)._2, begun, partitions, conf)
      Some(begun.map(batch => s"Batch $batch, which was begun in another number of partitions, is done again in " +
        s"$partitions, as its state has."))
    }
  }

  private def begin(): Seq[String] = {
    val query = new StoppedQuery(checkpoint, conf, stopped)
    session.streams.stateStoreCoordinator // as in StateTable
    val found = SavedOperator.allIn(checkpoint, "be rescaled", conf)
    val at = found.head._1
    val sparks = SavedVersion.sparksOperators(checkpoint, conf)
    val reason = if (sparks.isEmpty) None else reasonAgainst(at, sparks)
    val together = sparks.nonEmpty && reason.isEmpty && at.sparksPartitions != partitions
    refuse(found.map(_._1), query, together)
    val said = StateStores.read(at.state, conf)
    val before = said.stores
    val next = StateStores(at.version, StateStores.nameAfter(before), partitions)
    val stores = said.copy(stores = before :+ next)
    val whole = new RescaledQuery(session, checkpoint, at.batch, partitions, conf)
    if (together) whole.writeSparks(sparks)
    val done = found.map { case (at, operator) => rewrite(at, operator, next) }
    if (together) whole.switch(stores, query)
    else {
      FailPoint.reach(FailPoint.RescaledState, before.length)
      query.refuseStarted()
      StateStores.write(at.state, stores, conf)
    }
    done ++ sparks.map { operator =>
      if (together) s"operator $operator, Spark's own: ${at.sparksPartitions} -> $partitions partitions, version " +
        at.version
      else s"operator $operator, Spark's own, has ${at.sparksPartitions} partitions as before" +
        reason.fold("")(": " + _)
    }
  }

  /** Why the operators of Spark's own keep their number. */
  private def reasonAgainst(at: SavedVersion, operators: Seq[Long]): Option[String] = {
    val files = new Path(at.state).getFileSystem(conf)
    SparksPartitions.reasonAgainst(at.conf.getOrElse("spark.sql.streaming.stateStore.providerClass", "")).orElse(
      operators.find(o => !files.exists(new Path(at.state, s"$o/_metadata"))).map(o =>
        s"the checkpoint has no metadata of operator $o, without which Spark cannot change it"))
  }

  private def refuse(all: Seq[SavedVersion], query: StoppedQuery, together: Boolean): Unit = {
    if (all.forall(_.partitions == partitions) && !together)
      throw wrong(s"The state of gpuwin in $checkpoint has $partitions partitions already.")
    all.find(_.checkpointIds.isDefined).foreach(_ => throw wrong(s"The state in $checkpoint is kept with " +
      "spark.sql.streaming.stateStore.checkpointFormatVersion=2, under which Spark's log of commits has the names of " +
      "its files. Such a checkpoint cannot be rescaled. Start the query with a new checkpointLocation."))
    query.refuseUnfinished()
  }

  private def rewrite(at: SavedVersion, operator: SavedLog, next: StateStores): String = {
    val sessionConf = at.settings(session)
    val reading = StateStoreConf(sessionConf)
    val shared = new SerializableConfiguration(conf)
    val old = session.sparkContext.parallelize(0 until at.partitions, at.partitions)
      .map(p => LoggedCells.reading(at, p, reading, shared)(log => (log.emittedThrough, log.segments.map(_.cells).sum)))
      .collect()
    val cells = session.internalCreateDataFrame(new LoggedCells(session.sparkContext, at, reading, shared),
      LoggedCells.schema(operator))
    val logs = new WholeLogs(at.state, at.operator, next, old.flatMap(_._1).reduceOption(_ max _),
      WireType.schema(operator.cellTypes), operator.placeAt, TaskSettings.of(sessionConf), sessionConf, shared)
    val written = logs.write(cells, operator.partitioning, sort = true)
    val read = old.map(_._2).sum
    if (written != read) throw wrong(s"Of $read cells of operator ${at.operator} $written arrived. Nothing was " +
      "changed. This is a fault of gpuwin: please report it.")
    s"operator ${at.operator}: ${at.partitions} -> $partitions partitions, $written cells, version ${at.version}"
  }

  private def wrong(message: String): GpuWindowException = new GpuWindowException(message)
}

/** The entry from Python. */
object Rescaling {
  def rescale(session: SparkSession, checkpoint: String, partitions: Int, stopped: Boolean): CommandAnswer =
    CommandAnswer.of(checkpoint, "be rescaled")(
      new Rescaling(session, checkpoint, partitions, stopped).run().mkString("\n"))
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Alias, Literal}
import org.apache.spark.sql.catalyst.plans.logical.Project
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, Dataset, SparkSession}

/** The keys that a deduplication remembers. Each is an entry of its log, so there is nothing to merge. */
class RememberedKeys(session: SparkSession, at: SavedVersion, saved: SavedDeduplication) extends ShownState {
  override def about: String =
    ShownState.about(at, saved.describe, None, saved.keyNames, bounds = if (saved.within) 1 else 0)
  override def request: String = null
  override def mergedSchema: String = null
  override def cells: ClassicDataFrame = LoggedCells.table(session, at, saved)

  /** Keys, the time at which each expires (where that is no key of theirs), segment and version. */
  override def finished(logged: ClassicDataFrame, place: String): ClassicDataFrame = {
    val fresh = new FreshNames
    val plan = SavedDeduplication.remembered(logged).queryExecution.analyzed
    val Seq(segment, _, _, key, until) = plan.output
    val keys = saved.keysIn(key).zip(saved.keyNames).map { case (column, name) => Alias(column, fresh(name))() }
    val expires = Option(until).filter(_ => saved.within).map(column =>
      Alias(AsType(column, saved.timeType), fresh("expires_at"))())
    Dataset.ofRows(session, Project((keys ++ expires) :+ Alias(segment, fresh("segment"))() :+
      Alias(Literal(at.version), fresh("version"))(), plan))
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.NamedExpression
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.aggregate._

/** Spark's partial aggregation of rows into cells, over other rows and groups than those that Spark planned it for. */
object PartialAggregate {
  /**
   * The aggregation of these rows; a [[PieceCellsExec]] where buffers stay in [[Pieces]].
   *
   * @param partial    Spark's own. One that sorts asks for rows in the order of its groups
   * @param aggregates its aggregates, and those that were added to them
   * @param result     columns of the groups and of the buffers
   */
  def over(partial: BaseAggregateExec, grouping: Seq[NamedExpression], aggregates: Seq[AggregateExpression],
      result: Seq[NamedExpression], rows: SparkPlan): SparkPlan = {
    val added = aggregates.drop(partial.aggregateExpressions.length).map(_.resultAttribute)
    val attributes = partial.aggregateAttributes ++ added
    partial match {
      case a: HashAggregateExec => a.copy(groupingExpressions = grouping, aggregateExpressions = aggregates,
        aggregateAttributes = attributes, resultExpressions = result, child = rows)
      case _: ObjectHashAggregateExec if aggregates.exists(a => Pieces.areOf(a.aggregateFunction)) =>
        PieceCellsExec(grouping, aggregates, result.map(_.toAttribute), rows)
      case a: ObjectHashAggregateExec => a.copy(groupingExpressions = grouping, aggregateExpressions = aggregates,
        aggregateAttributes = attributes, resultExpressions = result, child = rows)
      case a: SortAggregateExec => a.copy(groupingExpressions = grouping, aggregateExpressions = aggregates,
        aggregateAttributes = attributes, resultExpressions = result, child = rows)
    }
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._

/**
 * Buffers of the functions that are written as code, within rows that hold those of all functions: Spark's code changes
 * them there. The other functions, which are expressions, are passed over.
 *
 * @param at      the place of the first buffer in a row that is changed
 * @param otherAt the same in a row that is merged into it
 */
private[gpuwin] final class ImperativeBuffers(functions: Seq[AggregateFunction], at: Int, otherAt: Int) {
  import ImperativeBuffers._

  private val code = written(functions).map { case (f, _, place) =>
    f.withNewMutableAggBufferOffset(at + place).withNewInputAggBufferOffset(otherAt + place)
  }.toArray

  def initialize(row: InternalRow): Unit = {
    var i = 0
    while (i < code.length) { code(i).initialize(row); i += 1 }
  }

  def merge(into: InternalRow, from: InternalRow): Unit = {
    var i = 0
    while (i < code.length) { code(i).merge(into, from); i += 1 }
  }
}

private[gpuwin] object ImperativeBuffers {
  /** Functions written as code: each with its number among all, and the place of its first buffer. */
  def written(functions: Seq[AggregateFunction]): Seq[(ImperativeAggregate, Int, Int)] = {
    val places = functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    functions.zip(places).zipWithIndex.collect { case ((f: ImperativeAggregate, place), i) => (f, i, place) }
  }

  /** Expressions of all buffers: `of` of functions that are expressions; the others leave theirs to their code. */
  def expressions(functions: Seq[AggregateFunction])(of: DeclarativeAggregate => Seq[Expression]): Seq[Expression] =
    functions.flatMap {
      case f: DeclarativeAggregate => of(f)
      case f => Seq.fill(f.aggBufferAttributes.length)(NoOp)
    }

  /** Spark's update expressions of all buffers; a row that a function's FILTER leaves out changes nothing. */
  def updates(aggregates: Seq[AggregateExpression]): Seq[Expression] = aggregates.flatMap { a =>
    expressions(Seq(a.aggregateFunction)) { f =>
      a.filter.fold(f.updateExpressions)(condition =>
        f.updateExpressions.zip(f.aggBufferAttributes).map { case (update, buffer) => If(condition, update, buffer) })
    }
  }
}

/**
 * Updates of the same buffers by rows; one that a function's FILTER leaves out changes nothing.
 *
 * @param at    as in [[ImperativeBuffers]]
 * @param input the columns of a row
 */
private[gpuwin] final class ImperativeUpdates(aggregates: Seq[AggregateExpression], at: Int, input: Seq[Attribute]) {
  private val (code, filters) = {
    val written = ImperativeBuffers.written(aggregates.map(_.aggregateFunction))
    written.map { case (f, i, place) =>
      val bound = BindReferences.bindReference(f.withNewMutableAggBufferOffset(at + place), input)
      (bound, aggregates(i).filter.map(Predicate.create(_, input)))
    }.toArray.unzip
  }

  def update(buffer: InternalRow, row: InternalRow): Unit = {
    var i = 0
    while (i < code.length) {
      if (filters(i).forall(_.eval(row))) code(i).update(buffer, row)
      i += 1
    }
  }
}

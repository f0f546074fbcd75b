package org.apache.spark.sql.gpuwin

import scala.util.Try

import org.apache.spark.sql.catalyst.FunctionIdentifier
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry
import org.apache.spark.sql.catalyst.expressions.{AttributeReference, Expression, Literal, RuntimeReplaceable}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.types._

/**
 * An aggregate function of Spark, made anew from what a checkpoint says of it: its name and the types of its buffers.
 *
 * They decide how its buffers are merged and finished. The expressions that it was of are not known, and not needed.
 */
object SavedFunction {
  /** Registers of `approx_count_distinct` in one long. */
  private val RegistersPerWord = 10

  /** The function; none where this Spark has no such function with these buffers. */
  def of(name: String, buffers: Seq[DataType]): Option[AggregateFunction] =
    for {
      children <- Try(inputs(name, buffers).zipWithIndex.map(input)).toOption
      found <- Try(FunctionRegistry.builtin.lookupFunction(FunctionIdentifier(registered(name)), children)).toOption
      function <- aggregate(found)
      if function.aggBufferAttributes.map(_.dataType) == buffers
    } yield function

  private def registered(name: String): String = name match {
    case "try_sum" => "sum"
    case "try_avg" => "avg"
    case "regr_replacement" | "regrreplacement" => "regr_sxx" // what Spark puts in its place
    case other => other
  }

  private def aggregate(found: Expression): Option[AggregateFunction] = found match {
    case f: AggregateFunction if !f.isInstanceOf[RuntimeReplaceable] => Some(f)
    case r: RuntimeReplaceable => aggregate(r.replacement)
    case _ => None
  }

  /** Types that the function can have been of; numbers stand for themselves. */
  private def inputs(name: String, buffers: Seq[DataType]): Seq[Any] = name match {
    case "sum" | "try_sum" | "avg" | "try_avg" | "mean" => Seq(buffers.head match {
      case DecimalType.Fixed(precision, scale) => DecimalType(precision - 10, scale)
      case other => other
    })
    case "min_by" | "max_by" => buffers
    case "approx_count_distinct" =>
      val bits = (4 to 30).find(b => (1 << b) / RegistersPerWord + 1 == buffers.length).get
      Seq(LongType, 1.106 / math.pow(2, (bits - 0.5) / 2)) // an error for which Spark takes 2 to the bits registers
    case "corr" | "covar_pop" | "covar_samp" => Seq(DoubleType, DoubleType)
    case regression if regression.startsWith("regr") => Seq(DoubleType, DoubleType)
    case moments if buffers.length > 1 && buffers.forall(_ == DoubleType) => Seq(DoubleType)
    case _ => buffers.take(1)
  }

  private def input(typed: (Any, Int)): Expression = typed match {
    case (dataType: DataType, n) => AttributeReference(s"input$n", dataType)()
    case (number, _) => Literal(number)
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateFunction, HyperLogLogPlusPlus}
import org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types._

/**
 * The hash by which a value raises a register of `approx_count_distinct`: a row is sent with it in the place of the
 * registers that it would have by itself, of which one is not zero.
 *
 * It is the hash of Spark's `HyperLogLogPlusPlusHelper`, by Spark's own expression, so that of a value of any type the
 * service sees 64 bits.
 */
object DistinctHash {
  /** The hash of a row's value, and null where the row has none; or none where Spark's hash is of something else. */
  def of(function: HyperLogLogPlusPlus): Option[Expression] = {
    val value = function.child
    (value.dataType match {
      case FloatType | DoubleType => Some(NormalizeNaNAndZero(value))
      case s: StringType => Some(value).filter(_ => UnsafeRowUtils.isBinaryStable(s))
      case _: AtomicType | NullType => Some(value)
      case _ => None
    }).map(hashed => XxHash64(Seq(hashed), Seed)).filter(_.resolved) // a variant has no hash
      .map(If(IsNull(value), Literal(null, LongType), _))
  }

  /** Of each function whose rows are sent so, the first of its buffers among all, and how many there are. */
  def places(functions: Seq[AggregateFunction]): Seq[(Int, Int)] = {
    val firsts = functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    functions.zip(firsts).collect { case (h: HyperLogLogPlusPlus, first) => first -> h.aggBufferAttributes.length }
  }

  /** That of `HyperLogLogPlusPlusHelper`. */
  private val Seed = 42L
}

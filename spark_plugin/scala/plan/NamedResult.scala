package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.types.{DecimalType, DoubleType}

/**
 * The result of an aggregate function under the name that the query gives it; for people who look at the state.
 *
 * @param decimal the type of the result where Spark's optimizer has the function work on the digits of a short decimal,
 *                as whole numbers, and puts the point in afterwards
 */
final case class NamedResult(name: String, decimal: Option[DecimalType]) {

  /** The result with the point in it. */
  def of(value: Expression): Expression = decimal.fold(value) { d =>
    if (value.dataType == DoubleType) {
      // An average has four digits more behind the point than what it is of.
      val scaled = Divide(value, Literal(math.pow(10.0, d.scale - NamedResult.DigitsOfAverage)))
      Cast(scaled, d, Some("UTC"))
    } else MakeDecimal(value, d.precision, d.scale)
  }
}

object NamedResult {
  private val DigitsOfAverage = 4
}

/** The names that a query gives to the keys of an aggregation, and to the results of its functions. */
final case class NamedResults(keys: Seq[String], results: Seq[NamedResult])

object NamedResults {
  /** Those of the last aggregate of a plan; `merged` are the columns of its child, of which the keys are some. */
  def of(aggregate: BaseAggregateExec, keys: Seq[Attribute], merged: Seq[Attribute]): NamedResults = {
    val ids = aggregate.groupingExpressions.zip(merged).map { case (g, m) => m.exprId -> g.exprId }.toMap
    val keyNames = keys.map { key =>
      def isIt(e: Expression): Boolean = isOne(e, key.exprId) || ids.get(key.exprId).exists(isOne(e, _))
      aggregate.resultExpressions.collectFirst {
        case a: AttributeReference if isIt(a) => a.name
        case Alias(e, name) if isIt(e) => name
      }.getOrElse(key.name)
    }.zip(keys).map {
      case (SortedMap, key) => nameOfMap(aggregate, key).getOrElse(SortedMap)
      case (name, _) => name
    }
    val results = aggregate.aggregateExpressions.zip(aggregate.aggregateAttributes).map { case (function, attribute) =>
      def isIt(e: Expression): Boolean = isOne(e, attribute.exprId)
      aggregate.resultExpressions.collectFirst {
        case Alias(e, name) if isIt(e) => NamedResult(name, None)
        case Alias(m: MakeDecimal, name) if isIt(m.child) => NamedResult(name, Some(DecimalType(m.precision, m.scale)))
        case Alias(c: Cast, name) if isAverage(c, isIt) => NamedResult(name, Some(c.dataType.asInstanceOf[DecimalType]))
      }.getOrElse(NamedResult(function.aggregateFunction.sql, None)) // but a part of a result
    }
    NamedResults(keyNames, results)
  }

  /** Spark's name of a key that is a map, of which it sorts the entries first. */
  private val SortedMap = "_groupingmapsort"

  /** The name of the map that such a key is the sorted form of. */
  private def nameOfMap(aggregate: SparkPlan, key: Attribute): Option[String] =
    aggregate.collect { case p: ProjectExec => p.projectList.filter(_.exprId == key.exprId) }.flatten.collectFirst {
      case Alias(sorted: UnaryExpression, _) => sorted.child match {
        case column: Attribute => column.name
        case computed => computed.sql
      }
    }

  private def isOne(e: Expression, id: ExprId): Boolean = e match {
    case a: AttributeReference => a.exprId == id
    case _ => false
  }

  private def isAverage(cast: Cast, isIt: Expression => Boolean): Boolean = (cast.child, cast.dataType) match {
    case (Divide(sum, Literal(_, DoubleType), _), _: DecimalType) => isIt(sum)
    case _ => false
  }
}

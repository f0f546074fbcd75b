package org.apache.spark.sql.gpuwin

import scala.util.Try

import org.apache.spark.sql.catalyst.{FunctionIdentifier, InternalRow}
import org.apache.spark.sql.catalyst.analysis.{FunctionRegistry, UnresolvedAlias}
import org.apache.spark.sql.catalyst.expressions.{AttributeReference, Expression, LeafExpression, Literal,
  RuntimeReplaceable, SortOrder}
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, AggregateFunction, PivotFirst}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.catalyst.plans.logical.{OneRowRelation, Project}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.types._

/**
 * An aggregate function of Spark, made anew from what a checkpoint says of it: its name and the types of its buffers.
 *
 * They decide how its buffers are merged and finished. The expressions that it was of are not known, and not needed. Of
 * a function whose buffers are [[Pieces]] a checkpoint has the types of its arguments, too, and a call.
 */
object SavedFunction {
  /** Registers of `approx_count_distinct` in one long. */
  private val RegistersPerWord = 10

  /** The function; none where this Spark has no such function with these buffers. */
  def of(name: String, buffers: Seq[DataType]): Option[AggregateFunction] = {
    val found = if (name == Pivot) Try(pivot(buffers)).toOption else called(name, buffers)
    found.filter(_.aggBufferAttributes.map(_.dataType) == buffers)
  }

  private def called(name: String, buffers: Seq[DataType]): Option[AggregateFunction] =
    for {
      children <- Try(inputs(name, buffers).zipWithIndex.map(input)).toOption
      found <- Try(FunctionRegistry.builtin.lookupFunction(FunctionIdentifier(registered(name)), children)).toOption
      function <- aggregate(found)
    } yield function

  /** The function of pivots, which has no name in SQL. */
  private val Pivot = "pivotfirst"

  private def pivot(buffers: Seq[DataType]): PivotFirst =
    PivotFirst(Literal(0), AttributeReference("value", buffers.head)(), buffers.indices)

  /** The name of a function in a checkpoint, by which state of one is not read as state of another. */
  def nameOf(function: AggregateFunction): String =
    if (!Pieces.areOf(function)) function.prettyName
    else inPieces(function).map(c => SavedOperator.typeText(c.dataType))
      .mkString(s"${function.prettyName}(", ", ", ")")

  /** The arguments whose values are in the pieces of a function. An order by the values themselves is not kept. */
  private def inPieces(function: AggregateFunction): Seq[Expression] = {
    val (orders, arguments) = function.children.partition(_.isInstanceOf[SortOrder])
    val kept = orders match {
      case Seq(SortOrder(own, _, _, _)) if own.semanticEquals(arguments.head) => Nil
      case others => others
    }
    arguments.take(1) ++ arguments.drop(1).filterNot(_.foldable) ++ kept
  }

  /** The text of an operator with one name for each function. Spark has several for some, which mean the same state. */
  def underOneName(operator: String): String = Names.foldLeft(operator) { case (text, (other, name)) =>
    text.replaceAll(raw"(?<=\(|, )" + other + "(?=[:(])", name)
  }

  private val Names = Seq("mean" -> "avg", "std" -> "stddev_samp", "stddev" -> "stddev_samp", "variance" -> "var_samp",
    "first_value" -> "first", "last_value" -> "last", "approx_percentile" -> "percentile_approx",
    "string_agg" -> "listagg")

  /**
   * A call of a function whose buffers are pieces, in SQL, with nulls of their types in the place of its arguments;
   * none where its text makes another function.
   */
  def callOf(function: AggregateFunction): Option[String] =
    if (Pieces.areOf(function)) Try(textOf(withConstants(function))).toOption.flatten else None

  private def textOf(typed: Expression): Option[String] = {
    val (order, arguments) = typed.children.partition(_.isInstanceOf[SortOrder])
    def within(name: String, arguments: Seq[Expression], order: String): String =
      s"$name(${arguments.map(_.sql).mkString(", ")}) WITHIN GROUP (ORDER BY $order)"
    val byItself = for {
      (name, constants) <- Seq("percentile_cont", "percentile_disc").map(_ -> arguments.slice(1, 2)) :+ ("mode" -> Nil)
      direction <- Seq("ASC", "DESC")
    } yield within(name, constants, s"${arguments.head.sql} $direction")
    val texts = Seq(typed.sql, s"${typed.sql} RESPECT NULLS",
      within(typed.prettyName, arguments, order.map(_.sql).mkString(", "))) ++ byItself
    texts.find(ofCall(_).exists(withConstants(_).canonicalized == typed.canonicalized))
  }

  private def withConstants(function: AggregateFunction): Expression = {
    def constant(argument: Expression): Expression = argument match {
      case order: SortOrder =>
        val own = order.child.semanticEquals(function.children.head)
        val value = if (own) constant(order.child) else NullOf(plain(order.child.dataType), another = true)
        order.copy(child = value, sameOrderExpressions = Nil)
      case other =>
        val value = if (other.foldable) other.eval() else null
        if (value == null) NullOf(plain(other.dataType)) else Literal.create(value, other.dataType)
    }
    function.withNewChildren(function.children.map(constant))
  }

  /** A type as SQL can say it: without what in it is never null, and without metadata. */
  private def plain(dataType: DataType): DataType =
    if (WireType.isNested(dataType)) DataType.fromDDL(dataType.asNullable.sql) else dataType

  /** The function of such a call, where this Spark has it. */
  def ofCall(sql: String): Option[AggregateFunction] = Try {
    val state = SparkSession.active.sessionState
    val call = UnresolvedAlias(state.sqlParser.parseExpression(sql))
    val plan = state.analyzer.execute(Project(Seq(call), OneRowRelation()))
    val found = plan.expressions.flatMap(_.collect { case a: AggregateExpression => a.aggregateFunction })
    found.headOption.flatMap(aggregate)
  }.toOption.flatten

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

/** A null, whose SQL has its type; that of Spark's own leaves nested types out. `another` is not equal to the first. */
private[gpuwin] case class NullOf(dataType: DataType, another: Boolean = false)
  extends LeafExpression with CodegenFallback {
  override def nullable: Boolean = true
  override def foldable: Boolean = true
  override def eval(input: InternalRow): Any = null

  override def sql: String = {
    val one = if (dataType == NullType) "NULL" else s"CAST(NULL AS ${dataType.sql})"
    if (another) s"coalesce($one, $one)" else one
  }
}

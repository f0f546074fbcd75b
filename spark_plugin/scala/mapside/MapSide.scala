package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, WindowSpec => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.optimizer._
import org.apache.spark.sql.catalyst.plans.logical.{LocalRelation, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.plans.physical.{HashPartitioning, Partitioning}
import org.apache.spark.sql.catalyst.rules.RuleExecutor
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.exchange.{REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.DataType

/** The place where rows become cells, below the shuffle. */
sealed trait MapSide {
  /** The place in the words of `explain()`. */
  def sentence: String
}

/**
 * The device service ([[DevicePanesExec]]), from which cells come as payloads that the JVM does not read.
 *
 * @param partitioning the partitioning of the cells in them
 */
final case class OnService(partitioning: Partitioning) extends MapSide {
  override def sentence: String = "its rows become cells in the device service"
}

/** The JVM: Spark's partial aggregate, or [[ProtoSessionsExec]]. */
final case class InSpark(reason: String) extends MapSide {
  override def sentence: String = s"its rows become cells in the JVM, because $reason"
}

/**
 * The plan of a map side on the device service, in the place of Spark's partial aggregate:
 *
 * {{{
 *   Exchange(partition) <- DevicePanes <- Project(keys, pane, buffers of the row alone, partition)
 * }}}
 *
 * A row is sent as the cell that it would be by itself: its buffers are Spark's own update expressions on Spark's own
 * initial values. So FILTER, casts, errors and nulls are Spark's, and what is left to the service is to merge cells,
 * which is what it does above the shuffle. The partition is Spark's own expression, too, over the same keys.
 */
object MapSide {
  private type Found[A] = Either[String, A]

  /** The cells of an aggregation that was recognised, as they are planned, and where they are made. */
  def below(found: WindowedAggregate, conf: SQLConf): (SparkPlan, MapSide) = {
    val key = GpuWindowConf.MapSide.key
    val wanted = GpuWindowConf.get(conf, GpuWindowConf.MapSide).toLowerCase(java.util.Locale.ROOT) match {
      case "device" => Right(())
      case "auto" =>
        val least = GpuWindowConf.get(conf, GpuWindowConf.MapSideCells).toLong
        LastMapSides.reasonForJvm(found.save.info, least).map(why => s"$key is auto, and $why").toLeft(())
      case setting => Left(s"$key is $setting")
    }
    wanted.flatMap(_ => onService(found, TaskSettings.of(conf)))
      .fold(reason => (found.cells, InSpark(reason)), identity)
  }

  private def onService(found: WindowedAggregate, settings: TaskSettings): Found[(SparkPlan, MapSide)] =
    for {
      shuffle <- shuffleOf(found.cells)
      aggregate <- aggregateBelow(shuffle.child)
      units <- unitsOf(aggregate.aggregateExpressions)
    } yield {
      val HashPartitioning(by, partitions) = shuffle.outputPartitioning
      val grouped: Seq[(ExprId, Expression)] = aggregate.groupingExpressions.map {
        case g @ Alias(computed, _) => g.exprId -> computed
        case g => g.exprId -> g
      }
      val of = units ++ grouped
      val partition = HashPartitioning(by.map(_.transformUp {
        case a: AttributeReference if of.contains(a.exprId) => of(a.exprId)
      }), partitions).partitionIdExpression
      val rows = WindowedAggregate.unsorted(aggregate.child)
      val columns = simplified(shuffle.child.output.map(a => of(a.exprId)) :+ partition, rows)
      val sent = SentColumns(columns.init)
      val list = (sent.varying :+ columns.last).zipWithIndex.map { case (e, i) => Alias(e, s"c$i")() }
      val panes = DevicePanesExec(WindowSpec.of(found), sent.places, sent.constants, partitions,
        PartitionTags.of(partitions), found.functions, settings, Payload.output, ProjectExec(list, rows))
      val tag = HashPartitioning(Seq(panes.output(Payload.Tag)), partitions)
      (ShuffleExchangeExec(tag, panes, REQUIRED_BY_STATEFUL_OPERATOR), OnService(shuffle.outputPartitioning))
    }

  private def shuffleOf(cells: SparkPlan): Found[ShuffleExchangeExec] = cells match {
    case shuffle: ShuffleExchangeExec if shuffle.outputPartitioning.isInstanceOf[HashPartitioning] => Right(shuffle)
    case _ => Left("the cells of this plan are not shuffled")
  }

  private def aggregateBelow(plan: SparkPlan): Found[BaseAggregateExec] = plan match {
    case ProjectExec(wanted, a: BaseAggregateExec) if wanted.forall(_.isInstanceOf[AttributeReference]) => Right(a)
    case a: BaseAggregateExec => Right(a)
    case _: ProtoSessionsExec => Left("rows of sessions are put together there")
    case other => Left(s"its cells are made by a ${other.nodeName}")
  }

  /** The buffers of each function for one row alone, by the attributes that the partial aggregate yields. */
  private def unitsOf(aggregates: Seq[AggregateExpression]): Found[Map[ExprId, Expression]] = {
    val foreign = aggregates.map(_.aggregateFunction).find(!_.isInstanceOf[DeclarativeAggregate])
    foreign.map(f => s"only Spark's own code adds rows to the buffer of ${f.prettyName}")
      .toLeft(aggregates.flatMap(unitOf).toMap)
  }

  private def unitOf(aggregate: AggregateExpression): Seq[(ExprId, Expression)] = {
    val f = aggregate.aggregateFunction.asInstanceOf[DeclarativeAggregate]
    val initial = f.aggBufferAttributes.map(_.exprId).zip(f.initialValues).toMap
    f.inputAggBufferAttributes.zip(f.updateExpressions).zip(f.initialValues).map { case ((buffer, update), none) =>
      val alone = update.transformUp { case a: AttributeReference if initial.contains(a.exprId) => initial(a.exprId) }
      buffer.exprId -> aggregate.filter.fold(alone)(If(_, alone, none))
    }
  }

  /**
   * The expressions, without what is known of them: a sum that begins with null, say. What can be computed is a literal
   * then, unless computing it fails, which is for the rows to find.
   */
  private def simplified(expressions: Seq[Expression], rows: SparkPlan): Seq[Expression] = {
    val named = expressions.zipWithIndex.map { case (e, i) => Alias(e, s"c$i")() }
    Simplifier.execute(Project(named, LocalRelation(rows.output))) match {
      case Project(list, _) => list.map { case Alias(e, _) => e; case other => other }
      case other => throw new GpuWindowException(s"A projection became a ${other.nodeName}.")
    }
  }

  private object Simplifier extends RuleExecutor[LogicalPlan] {
    override protected def batches: Seq[Batch] = Seq(Batch("simplify", FixedPoint(20),
      NullPropagation, ConstantFolding, BooleanSimplification, SimplifyConditionals))
  }
}

/**
 * The columns of cells as they are sent: what is the same for all rows once, and what several columns have in common
 * once a row.
 *
 * @param varying   the expressions of a row
 * @param constants those that are the same for all rows
 * @param places    for each column of a cell its place among the first, or `-1 - place` among the second
 */
final case class SentColumns(varying: Seq[Expression], constants: Seq[Literal], places: Seq[Int])

object SentColumns {
  def apply(columns: Seq[Expression]): SentColumns = {
    val varying = mutable.ArrayBuffer.empty[Expression]
    val constants = mutable.ArrayBuffer.empty[Literal]
    val places = columns.map {
      case constant: Literal =>
        constants += constant
        -constants.length
      case e =>
        val known = varying.indexWhere(v => v.dataType == e.dataType && v.semanticEquals(e))
        if (known < 0) varying += e
        if (known < 0) varying.length - 1 else known
    }
    SentColumns(varying.toSeq, constants.toSeq, places)
  }
}

/** Numbers that Spark's shuffle sends to each of its partitions: rows that are for a partition carry its number. */
object PartitionTags {
  private val known = new java.util.concurrent.ConcurrentHashMap[Int, Array[Int]]()

  def of(partitions: Int): Array[Int] = known.computeIfAbsent(partitions, n => {
    val tags = Array.fill(n)(-1)
    var (left, tag) = (n, 0)
    while (left > 0) {
      val at = HashPartitioning(Seq(Literal(tag)), n).partitionIdExpression.eval().asInstanceOf[Int]
      if (tags(at) < 0) { tags(at) = tag; left -= 1 }
      tag += 1
    }
    tags
  })
}

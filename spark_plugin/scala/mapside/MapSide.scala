package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, WindowSpec => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.optimizer._
import org.apache.spark.sql.catalyst.plans.logical.{LocalRelation, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.plans.physical.{HashPartitioning, Partitioning}
import org.apache.spark.sql.catalyst.rules.RuleExecutor
import org.apache.spark.sql.execution.{ProjectExec, SortExec, SparkPlan}
import org.apache.spark.sql.execution.aggregate.{BaseAggregateExec, MergingSessionsExec}
import org.apache.spark.sql.execution.exchange.{REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{LongType, StringType}

/** The place where rows become cells, below the shuffle. */
sealed trait MapSide {
  /** The place in the words of `explain()`. */
  def sentence: String
}

/**
 * The device service ([[DeviceCellsExec]]), from which cells come as payloads that the JVM does not read.
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
 * The plan of a map side on the device service, in the place of Spark's partial aggregate, or of [[ProtoSessionsExec]]:
 *
 * {{{
 *   Exchange(partition) <- DeviceCells <- Project(keys, pane, buffers of the row alone, partition)
 *   Exchange(partition) <- DeviceCells <- Project(keys, start, end, buffers of the row alone, partition)
 * }}}
 *
 * A row is sent as the cell that it would be by itself: its buffers are Spark's own update expressions on Spark's own
 * initial values. So FILTER, casts, errors and nulls are Spark's, and what is left to the service is to merge cells,
 * which is what it does above the shuffle; of `approx_count_distinct` it gets a hash ([[DistinctHash]]). The partition
 * is Spark's own expression, too, over the same keys.
 */
object MapSide {
  private type Found[A] = Either[String, A]
  private val MostRegisters = 1500

  /** The cells of an aggregation that was recognised, as they are planned, and where they are made. */
  def below(found: WindowedAggregate, conf: SQLConf): (SparkPlan, MapSide) = {
    val key = GpuWindowConf.MapSide.key
    def bySize: Found[Unit] = {
      val least = GpuWindowConf.get(conf, GpuWindowConf.MapSideCells).toLong
      LastMapSides.reasonForJvm(found.save.info, least).map(why => s"$key is auto, and $why").toLeft(())
    }
    // Spark adds rows to registers by code that it interprets, so the service gains with few cells, too, but for those
    // of a small error, as large as many rows.
    val registers = found.functions.collect { case h: HyperLogLogPlusPlus => h.aggBufferAttributes.length }.sum
    def byRegisters: Found[Unit] =
      Either.cond(registers <= MostRegisters, (), s"$key is auto, and its registers are $registers words a cell")
    val planned = GpuWindowConf.get(conf, GpuWindowConf.MapSide).toLowerCase(java.util.Locale.ROOT) match {
      case "auto" if !GpuWindowConf.get(conf, GpuWindowConf.Device).equalsIgnoreCase("cuda") =>
        onService(found, TaskSettings.of(conf), if (registers > 0) byRegisters else bySize)
      case "auto" | "device" => onService(found, TaskSettings.of(conf), Right(()))
      case setting => Left(s"$key is $setting")
    }
    planned.fold(reason => (WireValue.sent(found.functions, found.cells), InSpark(reason)), identity)
  }

  /** The plan on the service, or why it cannot be; after that, why it should not be. */
  private def onService(found: WindowedAggregate, settings: TaskSettings, should: => Found[Unit])
      : Found[(SparkPlan, MapSide)] =
    for {
      shuffle <- shuffleOf(found.cells)
      rows <- rowsBelow(shuffle.child)
      _ <- should
    } yield {
      val HashPartitioning(by, partitions) = shuffle.outputPartitioning
      val partition = HashPartitioning(by.map(_.transformUp {
        case a: AttributeReference if rows.columns.contains(a.exprId) => rows.columns(a.exprId)
      }), partitions).partitionIdExpression
      val cell = WireValue.ofRow(found.functions, shuffle.child.output, rows.columns)
      val columns = simplified(cell :+ partition, rows.plan)
      val sent = SentColumns(columns.init)
      val (below, coded) = sentRows(sent, columns.last, found.keys.length, rows.plan)
      val late = rows.late.map(LateEnds(sent.places(found.keys.length + 1), _))
      val work = CellsWork(WindowSpec.of(found), sent.places, sent.constants, coded, late, partitions,
        PartitionTags.of(partitions), found.functions, settings)
      val cells = DeviceCellsExec(work, Payload.output, below)
      val tag = HashPartitioning(Seq(cells.output(Payload.Tag)), partitions)
      (ShuffleExchangeExec(tag, cells, REQUIRED_BY_STATEFUL_OPERATOR), OnService(shuffle.outputPartitioning))
    }

  /** The rows as they are sent, and their coded key, if they have one. */
  private def sentRows(
      sent: SentColumns, partition: Expression, keys: Int, rows: SparkPlan): (SparkPlan, Option[CodedKey]) = {
    def named(e: Expression, at: Int): NamedExpression = Alias(e, s"c$at")()
    val columns = sent.varying.zipWithIndex.map { case (e, i) => named(e, i) }
    val coded = for {
      (text: AttributeReference, at) <- sent.varying.zipWithIndex
      if WireType.of(text.dataType).contains(StringType) && sent.places.indexOf(at) < keys &&
        sent.places.count(_ == at) == 1 && partition.references == AttributeSet(text)
      (coded, ids) <- DictionaryIdsExec.above(rows, text)
    } yield {
      val own = partition.transform { case a: AttributeReference if a.exprId == text.exprId => columns(at).toAttribute }
      val bound = BindReferences.bindReference(own, AttributeSeq(columns.map(_.toAttribute)))
      (ProjectExec(columns :+ ids, coded), CodedKey(at, ids.exprId, bound))
    }
    coded.headOption.fold[(SparkPlan, Option[CodedKey])](
      (ProjectExec(columns :+ named(partition, columns.length), rows), None)) { case (plan, key) => (plan, Some(key)) }
  }

  private def shuffleOf(cells: SparkPlan): Found[ShuffleExchangeExec] = cells match {
    case shuffle: ShuffleExchangeExec if shuffle.outputPartitioning.isInstanceOf[HashPartitioning] => Right(shuffle)
    case _ => Left("the cells of this plan are not shuffled")
  }

  /**
   * Rows that become cells.
   *
   * @param columns expressions over a row, by the attributes of a cell that they are for the row alone
   * @param late    the late watermark in microseconds, by which sessions are tested row by row
   */
  private final case class Rows(plan: SparkPlan, columns: Map[ExprId, Expression], late: Option[Long])

  private def rowsBelow(cells: SparkPlan): Found[Rows] = cells match {
    case ProjectExec(wanted, a: BaseAggregateExec) if wanted.forall(_.isInstanceOf[AttributeReference]) => rowsOf(a)
    case a: BaseAggregateExec => rowsOf(a)
    case ProjectExec(_, s: ProtoSessionsExec) => rowsOf(s)
    case s: ProtoSessionsExec => rowsOf(s)
    case p: PieceCellsExec => unitsOf(p.aggregates).flatMap(_ => Left(s"its cells are made by a ${p.nodeName}"))
    case ProjectExec(_, p: PieceCellsExec) => rowsBelow(p)
    case ProjectExec(_, SortExec(_, _, p: PieceCellsExec, _)) => rowsBelow(p)
    case ProjectExec(_, _: MergingSessionsExec) =>
      Left(s"${SQLConf.STREAMING_SESSION_WINDOW_MERGE_SESSIONS_IN_LOCAL_PARTITION.key} is true")
    case ProjectExec(_, partial: BaseAggregateExec) => rowsOf(partial)
    case other => Left(s"its cells are made by a ${other.nodeName}")
  }

  private def rowsOf(aggregate: BaseAggregateExec): Found[Rows] = unitsOf(aggregate.aggregateExpressions).map(units =>
    Rows(WindowedAggregate.unsorted(aggregate.child), units ++ computed(aggregate.groupingExpressions), None))

  private def rowsOf(sessions: ProtoSessionsExec): Found[Rows] = unitsOf(sessions.aggregates).map { units =>
    val place = sessions.output.drop(sessions.grouping.length).map(_.exprId).zip(Seq(sessions.start, sessions.end))
    Rows(sessions.child, units ++ computed(sessions.grouping) ++ place, sessions.lateUs)
  }

  private def computed(grouping: Seq[NamedExpression]): Seq[(ExprId, Expression)] = grouping.map {
    case g @ Alias(of, _) => g.exprId -> of
    case g => g.exprId -> g
  }

  /** The buffers of each function for one row alone, by the attributes that the partial aggregate yields. */
  private def unitsOf(aggregates: Seq[AggregateExpression]): Found[Map[ExprId, Expression]] = {
    val units = aggregates.map(unitOf)
    units.collectFirst { case Left(f) => s"only Spark's own code adds rows to the buffer of ${f.prettyName}" }
      .toLeft(units.flatMap(_.getOrElse(Nil)).toMap)
  }

  /** The buffers of a function, or the function itself where no expressions say them. */
  private def unitOf(aggregate: AggregateExpression): Either[AggregateFunction, Seq[(ExprId, Expression)]] = {
    def counted(buffer: Attribute, alone: Expression, none: Expression): (ExprId, Expression) =
      buffer.exprId -> aggregate.filter.fold(alone)(If(_, alone, none))
    aggregate.aggregateFunction match {
      case f: DeclarativeAggregate =>
        Right(f.inputAggBufferAttributes.zip(ValueInTime.alone(f)).zip(f.initialValues).map {
          case ((buffer, alone), none) => counted(buffer, alone, none)
        })
      case h: HyperLogLogPlusPlus => DistinctHash.of(h).toRight(h).map(hash =>
        h.inputAggBufferAttributes.map(counted(_, hash, Literal(null, LongType))))
      case f => Left(f)
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

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark
import org.apache.spark.sql.catalyst.plans.physical.{HashPartitioning, Partitioning}
import org.apache.spark.sql.catalyst.streaming.InternalOutputModes.Append
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.aggregate.{BaseAggregateExec, SortAggregateExec}
import org.apache.spark.sql.execution.exchange.{REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.execution.streaming.operators.stateful.{StateStoreRestoreExec, StateStoreSaveExec}
import org.apache.spark.sql.types.{DataType, StructType, TimestampNTZType, TimestampType}

/**
 * A windowed aggregation found in a physical plan, with all that is needed to offload it.
 *
 * @param save      Spark's operator: state info, output mode, both watermarks
 * @param window    a grid, sessions, instants, or none
 * @param keys      the grouping attributes without the window, in their order
 * @param windowAt  position of the window, or of the event time, among the grouping attributes, if there is one
 * @param merges    the merge of each buffer
 * @param functions the aggregate functions, for the error that an overflow raises
 * @param named     names of the keys and of the functions' results in the query
 * @param cells     the plan that yields (keys, pane, buffers), or (keys, start, end, buffers), partitioned by the keys
 * @param watermarked whether the event time is the window, so that the watermark drops and evicts
 * @param originalPartitioning the partitioning of the result in Spark's plan, where the cells have another one
 * @param result    the plan above the operator: Spark's own result expressions over the merged buffers
 * @param storeName name of its state stores
 */
final case class WindowedAggregate(
    save: SavedState,
    window: WindowShape,
    keys: Seq[Attribute],
    windowAt: Option[Int],
    merges: Seq[MergeSpec],
    functions: Seq[AggregateFunction],
    named: NamedResults,
    cells: SparkPlan,
    watermarked: Boolean,
    originalPartitioning: Option[Partitioning],
    result: SparkPlan => SparkPlan,
    storeName: String = DeviceOperator.StoreName) {

  /** The number of grouping attributes, which come first in the output of Spark's operator. */
  def groupingColumns: Int = keys.length + windowAt.size
}

/**
 * The plan that Spark makes of `groupBy(keys, window(...)).agg(...)` on a stream (or with the event time itself in the
 * place of the window, see [[EventTimeColumn]], or with nothing there), recognised:
 *
 * {{{
 *   final Aggregate <- StateStoreSave <- merge Aggregate <- StateStoreRestore <- merge Aggregate
 *     <- Exchange(keys, window) <- partial Aggregate <- Expand (sliding) or Project (tumbling)
 * }}}
 *
 * with a Sort below each aggregate where the buffers do not fit a hash aggregate. The plan in its place:
 *
 * {{{
 *   Project(results) <- GpuWindow <- Exchange(keys) <- partial Aggregate(keys, pane) <- Project(pane)
 * }}}
 *
 * The partial aggregate keeps Spark's own expressions, filters and errors, and so does the projection, which evaluates
 * the result expressions of the final aggregate; only the merging of buffers and the state between are the service's.
 */
object WindowedAggregate {
  import PlannedColumns.{Mixed, Noted, PerhapsNull, Sliding}

  type Found[A] = Either[String, A]
  private[gpuwin] val UnknownShape = "its plan has a shape that gpuwin does not know"

  /** The aggregation, or why it stays with Spark. `whole`: whether one without a window is taken. */
  def from(finalAggregate: BaseAggregateExec, save: StateStoreSaveExec, whole: Boolean): Found[WindowedAggregate] =
    for {
      input <- inputOf(save)
      partial <- (input match { case exchange: ShuffleExchangeExec => exchange.child; case other => other }) match {
        case a: BaseAggregateExec if a.aggregateExpressions.forall(_.mode == Partial) => Right(a)
        case _ => Left("there is no partial aggregate below the shuffle")
      }
      windowAttr <- windowAmong(save.keyExpressions, whole, partial)
      keys = save.keyExpressions.filterNot(key => windowAttr.exists(_.exprId == key.exprId))
      named = NamedResults.of(finalAggregate, keys, save.output)
      _ <- keysTravel(keys, named.keys)
      watermarked <- eventTimeIsWindow(SavedState.of(save), windowAttr)
      functions <- functionsOf(partial.aggregateExpressions)
      merges <- MergeSpec.ofAll(functions, pieces = true, pivots = save.outputMode.forall(_ == Append))
      placed <- placedBy(partial, windowAttr)
    } yield {
      val (shape, lowered) = placed
      val partitions = save.stateInfo.get.numPartitions
      val cells = cellsPlan(partial, partitions, keys, windowAttr, lowered, shape.isOnePane)
      val windowAt = windowAttr.map(attribute => save.keyExpressions.indexWhere(_.exprId == attribute.exprId))
      WindowedAggregate(SavedState.of(save), shape, keys, windowAt, merges, functions, named, cells, watermarked,
        windowAttr.map(_ => HashPartitioning(save.keyExpressions, partitions)),
        resultProjection(finalAggregate, save.output, windowAt))
    }

  def unsorted(plan: SparkPlan): SparkPlan = plan match {
    case s: SortExec if !s.global => s.child
    case other => other
  }

  /** The shuffle by (keys, window), or the partial aggregate itself where the rows are partitioned so already. */
  private def inputOf(save: StateStoreSaveExec): Found[SparkPlan] = save.child match {
    case merge: BaseAggregateExec => unsorted(merge.child) match {
      case StateStoreRestoreExec(_, _, _, merge2: BaseAggregateExec) => Right(unsorted(merge2.child))
      case _ => Left(UnknownShape)
    }
    case _ => Left(UnknownShape)
  }

  /** The window, or the event time in the place of one, or none where that is allowed. */
  private def windowAmong(keys: Seq[Attribute], whole: Boolean, partial: SparkPlan): Found[Option[Attribute]] =
    keys.filter(k => isWindow(k.dataType)) match {
      case Seq(w) if w.metadata.contains("spark.sessionWindow") => Left("it groups by a session window")
      case Seq(w) => Right(Some(w))
      case Seq() if keys.exists(EventTimeColumn.isOne) => Right(keys.find(EventTimeColumn.isOne))
      case Seq() if keys.isEmpty => Left("it groups by nothing, so that its state is one row")
      case Seq() if whole => Right(None)
      case Seq() if keys.exists(isOfWindow(_, partial)) => Left("it groups by something computed from a window(...), " +
        s"and ${GpuWindowConf.WithoutWindow.key} is false; group by the window itself, and select its start and end")
      case Seq() => Left("it groups neither by a window(...) nor by the event time, and " +
        s"${GpuWindowConf.WithoutWindow.key} is false")
      case _ => Left("it groups by more than one window")
    }

  /** Whether a key is computed from a window, which Spark may have folded into it: only windows use that conversion. */
  private def isOfWindow(key: Attribute, partial: SparkPlan): Boolean =
    partial.collect { case p: ProjectExec => p.projectList.filter(_.exprId == key.exprId) }.flatten.exists(_.exists {
      case _: PreciseTimestampConversion => true
      case field: GetStructField => isWindow(field.child.dataType)
      case _ => false
    })

  /** The shape of the window, and the plan with panes in its place. */
  private def placedBy(partial: BaseAggregateExec, window: Option[Attribute]): Found[(WindowShape, Lowered)] =
    window match {
      case Some(column) if isWindow(column.dataType) => byPane(partial, column).map { lowered =>
        (lowered.given.getOrElse(lowered.grid), lowered)
      }
      case Some(time) => byInstant(partial, time).map((InstantShape, _))
      case None => Right((WholeShape, inOnePane(unsorted(partial.child))))
    }

  private def inOnePane(plan: SparkPlan): Lowered = {
    val pane = Alias(Literal(WholeShape.Pane), "pane")()
    Lowered(ProjectExec(plan.output :+ pane, plan), pane.toAttribute, WindowDefinition(pane.child, 1, 1, 0))
  }

  private def byPane(partial: BaseAggregateExec, window: Attribute): Found[Lowered] = {
    val rows = unsorted(partial.child)
    val noted = PlannedColumns.of(partial.groupingExpressions)
    val reader = partial.aggregateExpressions.find(_.references.exists(_.exprId == window.exprId))
    def computed(otherwise: String): Found[Lowered] =
      ComputedWindow(rows, window.exprId, noted.flatMap(_.grid), kept = reader.isDefined).toRight(otherwise)
    def inPlace: Found[Lowered] =
      reader.fold(LowerToPanes(rows, window.exprId))(a => Left(s"${a.sql} aggregates the window itself"))
    noted match {
      case Some(Noted(Some(Mixed), _)) =>
        Left("its window is a column of a union whose sides have sliding windows, or windows of different grids")
      case Some(Noted(Some(PerhapsNull), _)) => Left("an outer join may put a null in the place of the window")
      case Some(hidden @ Noted(known, true)) =>
        for {
          grid <- hidden.grid.toRight(OfOnePlan)
          found <- if (known.exists(_.isInstanceOf[Sliding])) computed(OfOnePlan) else inPlace.left.flatMap(computed)
          _ <- Either.cond(found.window.isGridOf(grid), (), OfOnePlan)
        } yield found
      case _ => inPlace.left.flatMap(computed)
    }
  }

  /** A query is offloaded in each of its batches, or in none. */
  private val OfOnePlan = "its window is computed below a watermark, a union or a join, in a way that gpuwin " +
    "does not know"

  private def byInstant(partial: BaseAggregateExec, time: Attribute): Found[Lowered] =
    partial.groupingExpressions.find(_.exprId == time.exprId).map {
      case Alias(computed, _) => EventTimeColumn.lowered(unsorted(partial.child), computed)
      case attribute => EventTimeColumn.lowered(unsorted(partial.child), attribute)
    }.toRight(UnknownShape)

  def isWindow(dataType: DataType): Boolean = dataType match {
    case s: StructType => s.fieldNames.sameElements(Array("start", "end")) &&
      s.fields.forall(f => f.dataType == TimestampType || f.dataType == TimestampNTZType)
    case _ => false
  }

  /** `names` are those of the query: of a key that is computed, Spark's plan has one of its own. */
  def keysTravel(keys: Seq[Attribute], names: Seq[String]): Found[Unit] =
    keys.map(_.dataType).zip(names).collectFirst { case (t, name) if WireType.ofKey(t).isEmpty =>
      s"the key $name is of type ${t.simpleString}, which cannot be a key on gpuwin"
    }.toLeft(())

  /** Whether the window carries the watermark. The watermark on another key column is Spark's to handle. */
  def eventTimeIsWindow(save: SavedState, window: Option[Attribute]): Found[Boolean] = {
    val marked = save.output.filter(_.metadata.contains(EventTimeWatermark.delayKey)).map(_.exprId).distinct
    if (marked.isEmpty && save.outputMode.contains(Append)) Left("append mode has no watermark on the window")
    else if (marked.isEmpty) Right(false)
    else if (marked == window.map(_.exprId).toSeq) Right(true)
    else Left("the watermark is on a grouping column other than the window")
  }

  def functionsOf(aggregates: Seq[AggregateExpression]): Found[Seq[AggregateFunction]] =
    aggregates.find(_.isDistinct).map(a => s"${a.sql} is DISTINCT").toLeft(aggregates.map(_.aggregateFunction))

  /** The partial aggregate over (keys, pane), and the shuffle by the keys alone. */
  private def cellsPlan(partial: BaseAggregateExec, partitions: Int, keys: Seq[Attribute], window: Option[Attribute],
      lowered: Lowered, isOnePane: Boolean): SparkPlan = {
    // The rows of a partial aggregate are its grouping values, in the order of the grouping expressions, and its
    // buffers.
    val grouping =
      partial.groupingExpressions.filterNot(g => window.exists(_.exprId == g.exprId)) :+ lowered.pane
    val buffers = partial.aggregateExpressions.flatMap(_.aggregateFunction.inputAggBufferAttributes)
    val (rows, arrivals) = Arrival.numbered(lowered.plan, partial.aggregateExpressions)
    val result = keys ++ (lowered.pane.toAttribute +: buffers) ++
      arrivals.flatMap(_.aggregateFunction.inputAggBufferAttributes)
    val aggregates = partial.aggregateExpressions ++ arrivals
    val inOrder = partial match {
      case _: SortAggregateExec =>
        // The grouping expressions may be computed (a normalised double): sort by what is computed.
        val order = grouping.map {
          case Alias(e, _) => SortOrder(e, Ascending)
          case attribute => SortOrder(attribute, Ascending)
        }
        SortExec(order, global = false, rows)
      case _ => rows
    }
    val aggregate = PartialAggregate.over(partial, grouping, aggregates, result, inOrder)
    val wanted = keys ++ (lowered.pane.toAttribute +: buffers) ++ arrivals.map(Arrival.column)
    val cells = if (wanted.length == result.length) aggregate else ProjectExec(wanted, aggregate)
    // Without a key all panes of a window must meet in one partition, unless every window is one pane.
    val by: Seq[Expression] =
      if (keys.nonEmpty) keys
      else if (isOnePane) Seq(lowered.pane.toAttribute)
      else Seq(Literal(0))
    ShuffleExchangeExec(HashPartitioning(by, partitions), cells, REQUIRED_BY_STATEFUL_OPERATOR)
  }

  /**
   * The projection of the final aggregate's result expressions over the merged buffers, as they come from the service.
   * It sees each group once, so it needs no hash table.
   */
  def resultProjection(finalAggregate: BaseAggregateExec, output: Seq[Attribute], windowAt: Option[Int])
      : SparkPlan => SparkPlan = {
    val came = WireValue.received(output, windowAt)
    val keys = output.zip(came).take(finalAggregate.groupingExpressions.length).map { case (own, key) =>
      own -> WireValue.read(key, own.dataType)
    }
    resultProjection(finalAggregate, keys, came.drop(keys.length))
  }

  /** The same over merged buffers of Spark's own. */
  def resultProjection(finalAggregate: BaseAggregateExec, merged: Seq[Attribute]): SparkPlan => SparkPlan = {
    val (keys, buffers) = merged.splitAt(finalAggregate.groupingExpressions.length)
    resultProjection(finalAggregate, keys.map(k => k -> k), buffers)
  }

  private def resultProjection(finalAggregate: BaseAggregateExec, keys: Seq[(Attribute, Expression)],
      buffers: Seq[Attribute]): SparkPlan => SparkPlan = {
    val aggregates = finalAggregate.aggregateExpressions
    val firsts = aggregates.scanLeft(0)(_ + _.aggregateFunction.aggBufferAttributes.length)
    val results: Map[ExprId, Expression] = aggregates.zip(finalAggregate.aggregateAttributes).zip(firsts).map {
      case ((aggregate, attribute), first) =>
        val function = aggregate.aggregateFunction
        attribute.exprId -> resultOf(function, WireValue.read(function, nullableAs(function, buffers.drop(first))))
    }.toMap
    val grouping: Map[ExprId, Expression] = finalAggregate.groupingExpressions.zip(keys).flatMap { case (g, (own, m)) =>
      Seq(g, own).filter(from => from.exprId != own.exprId || own != m).map(_.exprId -> m)
    }.toMap
    val known = results ++ grouping
    val projectList = finalAggregate.resultExpressions.map {
      case a: AttributeReference if known.contains(a.exprId) => Alias(known(a.exprId), a.name)(a.exprId, a.qualifier,
        Some(a.metadata))
      case e => e.transformUp { case a: AttributeReference if known.contains(a.exprId) => known(a.exprId) }
        .asInstanceOf[NamedExpression]
    }
    child => ProjectExec(projectList, child)
  }

  /** The columns of a function's own buffer, which are null exactly where it says. */
  def nullableAs(function: AggregateFunction, columns: Seq[Attribute]): Seq[Attribute] =
    function.aggBufferAttributes.zip(columns).map { case (own, column) => column.withNullability(own.nullable) }

  /** The result of a function over the columns of its merged buffer. */
  def resultOf(function: AggregateFunction, buffer: Seq[Expression]): Expression = function match {
    case d: DeclarativeAggregate =>
      val known = d.aggBufferAttributes.map(_.exprId).zip(buffer).toMap
      d.evaluateExpression.transform { case a: AttributeReference if known.contains(a.exprId) => known(a.exprId) }
    case i: ImperativeAggregate => ImperativeResult(i, buffer)
  }
}

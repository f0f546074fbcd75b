package org.apache.spark.sql.gpuwin

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, AnalysisHelper, CTERelationRef, EventTimeWatermark,
  Expand, Join, LogicalPlan, Project, Union, WithCTE}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag

/**
 * The window that each aggregation of a stream groups by, as its batch was before the optimizer folded it: sides of a
 * union that bring no rows are gone then, and so is all that is below a watermark of a batch without data. The rule
 * writes it on the grouping expression at the end of the analysis, which each batch has anew. Optimizer and planner
 * carry that expression to the operator; the aggregation itself they may replace.
 */
object PlannedColumns extends Rule[LogicalPlan] {
  /**
   * The window of an aggregation.
   *
   * @param window   what is known of it
   * @param isHidden whether a watermark, a union or a join stands between, so that the plan of a batch may not have it
   */
  final case class Noted(window: Option[Known], isHidden: Boolean) {
    def grid: Option[WindowDefinition] = window.flatMap {
      case Tumbling(grid) => Some(grid)
      case Sliding(grid) => grid
      case Mixed | PerhapsNull => None
    }
  }

  /** What is known of a column of windows. */
  sealed trait Known
  final case class Tumbling(grid: WindowDefinition) extends Known
  /** One of the windows of a row. */
  final case class Sliding(grid: Option[WindowDefinition]) extends Known
  /** Of a union whose sides have more than one grid, sliding windows, or something else in one of them. */
  case object Mixed extends Known
  /** Of the side of an outer join that has nulls where no row matched. */
  case object PerhapsNull extends Known

  private val Tag = TreeNodeTag[Noted]("gpuwin.window")

  /** What is noted of the only window among these grouping expressions. */
  def of(grouping: Seq[Expression]): Option[Noted] =
    grouping.flatMap(_.collectFirst { case e if e.getTagValue(Tag).isDefined => e.getTagValue(Tag).get }).headOption

  override def apply(plan: LogicalPlan): LogicalPlan =
    if (!plan.resolved || !plan.isStreaming) plan
    else {
      new Noting().below(plan)
      AnalysisHelper.allowInvokingTransformsInAnalyzer(plan.transformUp {
        case aggregate: Aggregate if aggregate.getTagValue(Tag).isDefined =>
          aggregate.copy(groupingExpressions = aggregate.groupingExpressions.map {
            case e if WindowedAggregate.isWindow(e.dataType) => tagged(e, aggregate.getTagValue(Tag).get)
            case e => e
          })
      })
    }

  /** The expression as an object of its own, since others may be other windows elsewhere in the plan. */
  private def tagged(expression: Expression, noted: Noted): Expression = {
    val own = expression match {
      case a: AttributeReference =>
        AttributeReference(a.name, a.dataType, a.nullable, a.metadata)(a.exprId, a.qualifier)
      case e => e.clone()
    }
    own.setTagValue(Tag, noted)
    own
  }

  /**
   * The columns of a node.
   *
   * @param known  those that are windows
   * @param hidden those that were computed below a watermark, a union or a join, or of such columns
   */
  private final case class Columns(known: Map[ExprId, Known], hidden: Set[ExprId]) {
    def of(expression: Expression): Noted = expression match {
      case a: Attribute => Noted(known.get(a.exprId), hidden(a.exprId))
      case struct: CreateNamedStruct => ComputedWindow.tumbling(struct).fold(unknown(struct))(grid =>
        Noted(Some(Tumbling(grid)), isHidden = false))
      case other => unknown(other)
    }

    private def unknown(expression: Expression): Noted =
      Noted(None, expression.references.exists(a => hidden(a.exprId)))

    def and(columns: Iterable[(ExprId, Noted)]): Columns = Columns(
      known -- columns.map(_._1) ++ columns.flatMap { case (id, noted) => noted.window.map(id -> _) },
      hidden -- columns.map(_._1) ++ columns.collect { case (id, noted) if noted.isHidden => id })
  }

  /** One walk over a plan, in which the plans of its common expressions are walked once. */
  private final class Noting {
    private val nothing = Columns(Map.empty, Set.empty)
    private val common = mutable.Map.empty[Long, (LogicalPlan, Columns)]

    def below(plan: LogicalPlan): Columns = plan match {
      case w: WithCTE =>
        w.cteDefs.foreach(d => common(d.id) = (d, below(d.child)))
        below(w.plan)
      case r: CTERelationRef => common.get(r.cteId).fold(nothing) { case (made, columns) =>
        nothing.and(r.output.zip(made.output).map { case (own, of) => own.exprId -> columns.of(of) })
      }
      case _ =>
        val children = plan.children.map(below)
        val came = children.foldLeft(nothing)((a, b) => Columns(a.known ++ b.known, a.hidden ++ b.hidden))
        val found = came.and(computed(plan, children, came))
        val all = plan.outputSet.map(_.exprId).toSet
        val hides = plan.children.length > 1 || plan.isInstanceOf[EventTimeWatermark]
        Columns(found.known.filter { case (id, _) => all(id) }, if (hides) all else found.hidden.filter(all))
    }

    /** The columns that a node computes, and those that it makes something else of. */
    private def computed(plan: LogicalPlan, children: Seq[Columns], came: Columns): Iterable[(ExprId, Noted)] =
      plan match {
        case union: Union =>
          val sides = union.children.zip(children).map { case (side, columns) => side.output.map(columns.of) }
          union.output.zip(sides.transpose).map { case (column, of) =>
            column.exprId -> Noted(united(of.map(_.window)), isHidden = true)
          }
        case join: Join => join.children.zip(Seq(true, false)).flatMap {
          case (side, first) if !ComputedWindow.keepsRows(join.joinType, first) =>
            side.output.map(c => c.exprId -> Noted(came.of(c).window.map(_ => PerhapsNull), isHidden = true))
          case _ => Nil
        }
        case Project(columns, _) => aliases(columns, came)
        case aggregate: Aggregate =>
          note(aggregate, came)
          aliases(aggregate.aggregateExpressions, came)
        case expand: Expand => expand.producedAttributes.map { made =>
          val copies = expand.projections.map(_(expand.output.indexWhere(_.exprId == made.exprId)))
          made.exprId -> (copies.distinct match {
            case Seq(one) => came.of(one)
            case _ => ComputedWindow.slidingOf(expand.output, expand.projections, made.exprId) match {
              case None => Noted(Some(Sliding(None)), copies.exists(came.of(_).isHidden))
              case grid => Noted(Some(Sliding(grid)), isHidden = false)
            }
          })
        }
        case windows: OverlappingWindows =>
          Seq(windows.window.exprId -> Noted(Some(Sliding(ComputedWindow.slidingOf(windows.newest))), isHidden = false))
        case other if other.references.exists(a => came.hidden(a.exprId)) =>
          other.producedAttributes.map(_.exprId -> Noted(None, isHidden = true))
        case _ => Nil
      }

    private def aliases(columns: Seq[NamedExpression], came: Columns): Seq[(ExprId, Noted)] =
      columns.collect { case a @ Alias(expression, _) => a.exprId -> came.of(expression) }

    private def note(aggregate: Aggregate, came: Columns): Unit =
      aggregate.groupingExpressions.filter(e => WindowedAggregate.isWindow(e.dataType)) match {
        case Seq(window) => aggregate.setTagValue(Tag, came.of(window))
        case _ => aggregate.unsetTagValue(Tag)
      }

    /** What a column of a union is, by what it is in each side. */
    private def united(sides: Seq[Option[Known]]): Option[Known] = {
      val grids = sides.collect { case Some(Tumbling(grid)) => grid }
      if (sides.flatten.isEmpty) None
      else if (grids.length == sides.length && grids.forall(_.isGridOf(grids.head))) Some(Tumbling(grids.head))
      else Some(Mixed)
    }
  }
}

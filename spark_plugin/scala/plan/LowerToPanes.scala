package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.execution.{ExpandExec, FilterExec, ProjectExec, SparkPlan}
import org.apache.spark.sql.execution.python.EvalPythonExec

/**
 * A plan that yields the start of each row's pane, as a long in microseconds, in place of its window.
 *
 * @param given the windows, where each row has one of them and not all that contain its time; see [[GivenShape]]
 * @param kept  the conditions that a window meets if it is to be a result; see [[KeptWindows]]
 */
final case class Lowered(plan: SparkPlan, pane: NamedExpression, window: WindowDefinition,
    given: Option[GivenShape] = None, kept: Seq[Expression] = Nil) {
  def grid: GridShape = GridShape(window.sizeUs, window.slideUs, window.originUs)
  def keptWindows: Option[KeptWindows] = kept.reduceOption(And).map(KeptWindows(grid, _))
}

/**
 * The plan below a partial aggregate with a pane column in the place of its window column. The Expand that copies each
 * row once per overlapping window goes, and with it the filter that removes the copies that do not contain the row.
 */
object LowerToPanes {
  /** The plan of an aggregation of all windows of its rows. */
  def apply(plan: SparkPlan, window: ExprId): Either[String, Lowered] = new LowerToPanes(false).of(plan, window)

  /** The plan of an aggregation of some windows of its rows. Those are read that lie in one of them. */
  def ofSome(plan: SparkPlan, window: ExprId): Either[String, Lowered] = new LowerToPanes(true).of(plan, window)
}

/** @param some whether conditions on the window may leave some of them */
private final class LowerToPanes(some: Boolean) extends PredicateHelper {
  private type Found = Either[String, Lowered]

  def of(plan: SparkPlan, window: ExprId): Found = plan match {
    case p: ProjectExec => throughProject(p, window)
    case f: FilterExec => throughFilter(f, window)
    case e: ExpandExec => atExpand(e, window)
    case w: OverlappingWindowsExec => atWindows(w, window)
    case e: EvalPythonExec => throughPython(e, window)
    case _ => Left(s"the window is computed below a ${plan.nodeName}, where gpuwin does not look")
  }

  private def throughProject(p: ProjectExec, window: ExprId): Found = {
    val at = p.projectList.indexWhere(_.exprId == window)
    val others = p.projectList.zipWithIndex.collect { case (e, i) if i != at => e }
    // The window here, and the name that it has below.
    val names = window +: p.projectList.lift(at).toSeq.collect { case Alias(a: AttributeReference, _) => a.exprId }
    if (at < 0) Left("the window column is renamed below the aggregate")
    else if (others.exists(_.references.exists(a => names.contains(a.exprId))))
      Left("another column is computed from the window below the aggregate")
    else p.projectList(at) match {
      case _: AttributeReference => each(of(p.child, window), others).map(projected(p, at, _))
      case Alias(renamed: AttributeReference, _) =>
        each(of(p.child, renamed.exprId), others).map(projected(p, at, _))
      case Alias(struct, _) =>
        WindowDefinition.parse(struct).flatMap {
          case (definition, 0) if definition.overlap == 1 =>
            Right(lowered(p.child, definition)(p.projectList.updated(at, _)))
          case _ => Left(WindowDefinition.Unreadable)
        }
      case _ => Left("the window column is computed in a way that gpuwin does not know")
    }
  }

  /** What is below, unless a row would get one value where each of its copies has its own. */
  private def each(below: Found, others: Seq[Expression]): Found = below.flatMap { found =>
    others.find(other => found.window.overlap > 1 && !other.deterministic) match {
      case Some(other) => Left(s"${other.sql} above the window is another one for each window of a row")
      case None => below
    }
  }

  /** The projection with a pane from below in the place of the window. */
  private def projected(p: ProjectExec, at: Int, below: Lowered): Lowered = {
    val pane = below.pane.toAttribute
    below.copy(plan = p.copy(projectList = p.projectList.updated(at, pane), child = below.plan), pane = pane)
  }

  /** Python functions above the window. They add columns, so they stay unless they take the window as argument. */
  private def throughPython(e: EvalPythonExec, window: ExprId): Found =
    if (e.udfs.exists(_.references.exists(_.exprId == window)))
      Left("a Python function takes the window as its argument")
    else each(of(e.child, window), e.udfs).map { below =>
      below.copy(plan = e.withNewChildren(Seq(below.plan)), pane = below.pane.toAttribute)
    }

  private def throughFilter(f: FilterExec, window: ExprId): Found = {
    val (onWindow, rest) = splitConjunctivePredicates(f.condition).partition(_.references.exists(_.exprId == window))
    each(of(f.child, window), rest).flatMap { below =>
      val pane = below.pane.toAttribute
      val tested = onWindow.filterNot(holdsOfEveryPane(_, window, below.window.time))
        .map(condition => condition -> KeptWindows.conditionOn(window, condition).filter(_ => some))
      tested.collectFirst { case (condition, None) => condition } match {
        case Some(condition) => Left(s"the condition ${condition.sql} on the window is tested before the aggregation")
        case None =>
          val found = below.copy(pane = pane, kept = below.kept ++ tested.flatMap(_._2))
          val onPane = if (tested.isEmpty) None else found.keptWindows.map(InKeptWindow(pane, _))
          Right(found.copy(plan = (onPane ++ rest).reduceOption(And).fold(below.plan)(FilterExec(_, below.plan))))
      }
    }
  }

  /** Whether a condition is `window.start <= time < window.end` in any spelling, or a null check. */
  private def holdsOfEveryPane(condition: Expression, window: ExprId, time: Expression): Boolean = {
    def bound(e: Expression, ordinal: Int): Boolean = e match {
      case GetStructField(a: AttributeReference, o, _) => a.exprId == window && o == ordinal
      case _ => false
    }
    def isSize(e: Expression): Boolean = e match {
      case Literal(us: Long, _) => us != 0
      case _ => false
    }
    // Spark derives it from the expressions above: null only where a bound of the window is, which it never is.
    def neverNull(e: Expression): Boolean = e.references.forall(_.exprId == window) && !e.transformUp {
      case field if bound(field, 0) || bound(field, 1) => KnownNotNull(field)
      case KnownNullable(child) => child // said of the time of a window, which is computed as any other
      case r: Remainder if !r.left.nullable && isSize(r.right) => KnownNotNull(r)
    }.nullable
    condition match {
      case IsNotNull(a: AttributeReference) => a.exprId == window
      case IsNotNull(e) => neverNull(e)
      case GreaterThanOrEqual(t, start) => bound(start, 0) && t.semanticEquals(time)
      case LessThanOrEqual(start, t) => bound(start, 0) && t.semanticEquals(time)
      case LessThan(t, end) => bound(end, 1) && t.semanticEquals(time)
      case GreaterThan(end, t) => bound(end, 1) && t.semanticEquals(time)
      case _ => false
    }
  }

  private def atExpand(e: ExpandExec, window: ExprId): Found = {
    val at = e.output.indexWhere(_.exprId == window)
    if (at < 0) return Left("the window is computed below an Expand that is not its own")
    val copies = e.projections.map(_(at))
    ComputedWindow.onlyOne(copies) match {
      case Some(below) => throughGroupingSets(e, at, below)
      case None => atItsOwn(e, at, copies)
    }
  }

  /** Copies of a row for grouping sets that all have its window: `GROUP BY window, CUBE(a, b)`. */
  private def throughGroupingSets(e: ExpandExec, at: Int, window: ExprId): Found = {
    val others = e.projections.flatMap(_.patch(at, Nil, 1))
    if (others.exists(_.references.exists(_.exprId == window)))
      Left("another column is computed from the window below the aggregate")
    else each(of(e.child, window), others).map { below =>
      val pane = below.pane.toAttribute
      val made = pane.newInstance()
      below.copy(plan = ExpandExec(e.projections.map(_.updated(at, pane)), e.output.updated(at, made), below.plan),
        pane = made)
    }
  }

  private def atItsOwn(e: ExpandExec, at: Int, copies: Seq[Expression]): Found = {
    val columns = e.output.indices.filter(_ != at)
    val passed = columns.map(i => e.projections.map(_(i)).distinct)
    if (copies.exists(isNull)) return Left("a grouping set leaves the window out, and its rows lie in none")
    if (passed.exists(_.length != 1)) return Left("rows are expanded by more than the window")
    WindowDefinition.ofCopies(copies).map { definition =>
      val list = columns.map { i =>
        passed(columns.indexOf(i)).head match {
          case a: AttributeReference if a.exprId == e.output(i).exprId => a
          case expression => Alias(expression, e.output(i).name)(e.output(i).exprId)
        }
      }
      lowered(e.child, definition)(list :+ _)
    }
  }

  private def isNull(e: Expression): Boolean = e match {
    case Literal(value, _) => value == null
    case _ => false
  }

  private def atWindows(w: OverlappingWindowsExec, window: ExprId): Found =
    if (w.window.exprId != window) Left("the window is computed below an Expand that is not its own")
    else WindowDefinition.parse(w.newest).flatMap {
      case (definition, 0) if definition.overlap == w.copies && definition.slideUs == w.slideUs =>
        Right(lowered(w.child, definition)(w.child.output :+ _))
      case _ => Left(WindowDefinition.Unreadable)
    }

  /** The columns that `list` makes with a pane among them, of the rows that have a time. */
  private def lowered(child: SparkPlan, definition: WindowDefinition)(
      list: NamedExpression => Seq[NamedExpression]): Lowered = {
    val pane = Alias(definition.paneStart, "pane")()
    Lowered(ProjectExec(list(pane), withTime(child, definition)), pane.toAttribute, definition)
  }

  /** The rows that have a time: others belong to no window. */
  private def withTime(child: SparkPlan, definition: WindowDefinition): SparkPlan = {
    val nullable = definition.time match {
      case a: AttributeReference => child.output.find(_.exprId == a.exprId).forall(_.nullable)
      case other => other.nullable
    }
    if (nullable) FilterExec(IsNotNull(definition.time), child) else child
  }
}

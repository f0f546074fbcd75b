package org.apache.spark.sql.gpuwin

import java.util

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}

/**
 * A partial aggregation of rows into cells, below the shuffle, some of whose buffers become [[Pieces]].
 *
 * It stands in the place of Spark's, which sorts its rows by key once it has met 128 of them
 * (`spark.sql.objectHashAggregate.sortBased.fallbackThreshold`), since a group must be in one row. Cells need not be:
 * when a task has many, it hands on those that it has, and begins anew.
 *
 * @param aggregates in mode Partial
 * @param output     columns of the grouping and of the buffers, in any order
 */
case class PieceCellsExec(grouping: Seq[NamedExpression], aggregates: Seq[AggregateExpression],
    override val output: Seq[Attribute], child: SparkPlan)
  extends UnaryExecNode {

  override def nodeName: String = "PieceCells"
  override def simpleString(maxFields: Int): String =
    s"PieceCells [${grouping.map(_.name).mkString(", ")}], [${aggregates.map(_.sql).mkString(", ")}]"
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def producedAttributes: AttributeSet = AttributeSet(output) -- AttributeSet(child.output)
  override protected def withNewChildInternal(newChild: SparkPlan): PieceCellsExec = copy(child = newChild)

  override lazy val metrics: Map[String, SQLMetric] =
    Map("numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"))

  override protected def doExecute(): RDD[InternalRow] = {
    val (keys, functions, input) = (grouping, aggregates, child.output)
    val cell = keys.map(_.toAttribute) ++ functions.flatMap(_.aggregateFunction.inputAggBufferAttributes)
    val columns = BindReferences.bindReferences(output: Seq[Expression], cell)
    val rowsOut = longMetric("numOutputRows")
    child.execute().mapPartitionsWithIndexInternal { (index, rows) =>
      new RowsToPieces(keys, functions, columns, input, index).of(rows).map { row => rowsOut += 1; row }
    }
  }
}

/** Rows of a task to cells: `columns` of a key and its buffers. */
private[gpuwin] final class RowsToPieces(grouping: Seq[NamedExpression], aggregates: Seq[AggregateExpression],
    columns: Seq[Expression], input: Seq[Attribute], partition: Int) {
  import RowsToPieces._

  private val functions = aggregates.map(_.aggregateFunction)
  private val buffers = functions.flatMap(_.aggBufferAttributes)
  private val keyOf = UnsafeProjection.create(grouping, input)
  private val types = buffers.map(_.dataType)
  private val initial = MutableProjection.create(ImperativeBuffers.expressions(functions)(_.initialValues), Nil)
  private val update = MutableProjection.create(ImperativeBuffers.updates(aggregates), buffers ++ input)
  private val cell = UnsafeProjection.create(columns)
  Seq(keyOf, initial, update, cell).foreach(_.initialize(partition))
  private val code = new ImperativeBuffers(functions, 0, 0)
  private val changes = new ImperativeUpdates(aggregates, 0, input)
  private val typed = ImperativeBuffers.written(functions).collect { case (f: TypedImperativeAggregate[_], _, place) =>
    f.withNewMutableAggBufferOffset(place).asInstanceOf[TypedImperativeAggregate[AnyRef]]
  }

  private val cells = new util.LinkedHashMap[UnsafeRow, InternalRow]
  private val (whole, joined) = (new JoinedRow, new JoinedRow)

  def of(rows: Iterator[InternalRow]): Iterator[InternalRow] = new Iterator[InternalRow] {
    private var ready: util.Iterator[util.Map.Entry[UnsafeRow, InternalRow]] = util.Collections.emptyIterator()
    // Rows, and the bytes of their cells: of a text that is computed a row that comes in says nothing.
    private var (taken, handedOn) = (0, 0L)
    private var most = FirstRows

    override def hasNext: Boolean = {
      if (!ready.hasNext && rows.hasNext) {
        cells.clear()
        if (taken > 0) most = (MostBytes * taken / handedOn.max(1)).max(LeastRows).min(MostRows).toInt
        taken = 0
        handedOn = 0
        var bytes = 0L
        while (rows.hasNext && taken < most && bytes < MostBytes && cells.size < MostCells) {
          val row = rows.next()
          add(row)
          taken += 1
          bytes += (row match { case unsafe: UnsafeRow => unsafe.getSizeInBytes; case _ => 0 })
        }
        ready = cells.entrySet().iterator()
      }
      ready.hasNext
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException
      val entry = ready.next()
      typed.foreach(_.serializeAggregateBufferInPlace(entry.getValue))
      val made = cell(joined(entry.getKey, entry.getValue))
      handedOn += made.getSizeInBytes
      made
    }
  }

  private def add(row: InternalRow): Unit = {
    val key = keyOf(row)
    var buffer = cells.get(key)
    if (buffer == null) {
      buffer = new SpecificInternalRow(types)
      initial.target(buffer)(InternalRow.empty)
      code.initialize(buffer)
      cells.put(key.copy(), buffer)
    }
    update.target(buffer)(whole(buffer, row))
    changes.update(buffer, row)
  }
}

private[gpuwin] object RowsToPieces {
  /** Rows of a task, their bytes, and cells, after which it hands its cells on. */
  val MostRows: Long = 1L << 18
  val MostBytes: Long = 1L << 26
  val MostCells = 1 << 15
  /** Rows of the first cells of a task, whose bytes say how many rows it takes for the next ones. */
  val FirstRows = 1 << 12
  val LeastRows = 1L << 10
}

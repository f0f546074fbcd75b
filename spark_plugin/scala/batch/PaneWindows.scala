package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction

/**
 * The plan by which a task makes windows of panes.
 *
 * @param cells  the columns of a cell: keys, pane, buffers
 * @param keysAt positions of the keys among them
 * @param paneAt position of the pane, whose place in the result is the window's
 * @param kept   the windows that are made; None for all that have a row
 */
final case class PaneWindowsPlan(grid: GridShape, functions: Seq[AggregateFunction], cells: Seq[Attribute],
    keysAt: Seq[Int], paneAt: Int, output: Seq[Attribute], kept: Option[KeptWindows])

/**
 * Windows of one partition, made of its cells, which come sorted by key and pane.
 *
 * It holds the panes of one window of one key, as a queue of two stacks: each pane of the front is merged with all the
 * later ones of the front, and `back` is the merge of the others. The next window takes panes in at the back and drops
 * panes at the front, and its value is the merge of two buffers. So a pane is merged three times, however many windows
 * it lies in (Tangwongsan, Hirzel, Schneider: Low-latency sliding-window aggregation in worst-case constant time, 2017,
 * where this is the simple one). Nothing is subtracted, so any buffer that can be merged will do, and an infinity goes
 * with its pane.
 */
class PaneWindows(plan: PaneWindowsPlan, partition: Int, cells: Iterator[InternalRow]) extends Iterator[InternalRow] {
  import plan.grid.{sizeUs, slideUs}

  private val buffers = new AggregateBuffers(plan.functions, plan.cells, partition)
  private val keyOf = UnsafeProjection.create(plan.keysAt.map(plan.cells), plan.cells)
  keyOf.initialize(partition)

  // The queue: a ring of panes [head, tail), of which those before `middle` are the front.
  private var starts = new Array[Long](16)
  private var values = new Array[InternalRow](16)
  private var (head, middle, tail) = (0L, 0L, 0L)
  private val (back, whole) = (buffers.fresh(), buffers.fresh())

  /** The cell that is read next; of the key whose panes are held, or the first of another one. */
  private var cell: InternalRow = _
  private var cellPane = 0L
  private var cellIsOfKey = false
  private var key: UnsafeRow = _
  private var start = 0L
  private var found = false

  private val bounds = new GenericInternalRow(2)
  private val window = new GenericInternalRow(Array[Any](bounds))
  private val keyAndWindow = new JoinedRow
  private val row = new JoinedRow
  private val result = {
    val n = plan.keysAt.length
    val places = plan.keysAt.zipWithIndex.toMap + (plan.paneAt -> n)
    val pieces = plan.functions.flatMap(f => f.aggBufferAttributes.map(_ => f.isInstanceOf[JoinedPieces]))
    UnsafeProjection.create(plan.output.zipWithIndex.map { case (a, i) =>
      val column = BoundReference(if (i <= n) places(i) else i, a.dataType, a.nullable)
      if (i > n && pieces(i - n - 1)) BytesOf(column) else column
    })
  }
  result.initialize(partition)

  read()

  override def hasNext: Boolean = { if (!found) found = find(); found }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    bounds.update(0, start)
    bounds.update(1, Math.addExact(start, sizeUs))
    found = false
    val made = result(row(keyAndWindow(key, window), value))
    start += slideUs
    made
  }

  private def read(): Unit =
    if (cells.hasNext) {
      cell = cells.next()
      cellPane = cell.getLong(plan.paneAt)
      cellIsOfKey = key != null && keyOf(cell) == key
    } else cell = null

  /**
   * Goes on to the next window that is kept and has a row, from `start`. Panes leave before others enter, so that none
   * are merged but those of a window that is kept: a merge may fail.
   */
  private def find(): Boolean = {
    while (true) {
      drop()
      if (head == tail) {
        if (cell == null) return false
        if (!cellIsOfKey) { key = keyOf(cell).copy(); cellIsOfKey = true; start = Long.MinValue }
        start = math.max(start, plan.grid.oldestWith(cellPane))
      }
      if (plan.kept.forall(_.has(start))) {
        while (cell != null && cellIsOfKey && cellPane - sizeUs < start) take()
        return true
      }
      start += slideUs
    }
    false
  }

  /** The next pane of the key, whose cells come from several partitions, enters at the back. */
  private def take(): Unit = {
    if (tail - head == starts.length) grow()
    val at = place(tail)
    if (values(at) == null) values(at) = buffers.fresh() else buffers.clear(values(at))
    val pane = cellPane
    starts(at) = pane
    do { buffers.addCell(values(at), cell); read() } while (cell != null && cellIsOfKey && cellPane == pane)
    buffers.add(back, values(at))
    tail += 1
  }

  /** Panes that begin before the window leave at the front. */
  private def drop(): Unit =
    if (head < tail && starts(place(tail - 1)) < start) empty()
    else while (head < tail && starts(place(head)) < start) {
      if (head == middle) turn()
      head += 1
    }

  private def empty(): Unit = { head = tail; middle = tail; buffers.clear(back) }

  /** The back becomes the front. */
  private def turn(): Unit = {
    var at = tail - 2
    while (at >= head) { buffers.add(values(place(at)), values(place(at + 1))); at -= 1 }
    middle = tail
    buffers.clear(back)
  }

  /** The buffer of the window that all panes held lie in. */
  private def value: InternalRow =
    if (head == middle) back
    else if (middle == tail) values(place(head))
    else {
      buffers.clear(whole)
      buffers.add(whole, values(place(head)))
      buffers.add(whole, back)
      whole
    }

  private def place(i: Long): Int = (i & (starts.length - 1)).toInt

  private def grow(): Unit = {
    val (oldStarts, oldValues) = (starts, values)
    starts = new Array[Long](2 * oldStarts.length)
    values = new Array[InternalRow](2 * oldStarts.length)
    oldStarts.indices.foreach { k =>
      val from = ((head + k) & (oldStarts.length - 1)).toInt
      starts(place(head + k)) = oldStarts(from)
      values(place(head + k)) = oldValues(from)
    }
  }
}

package org.apache.spark.sql.gpuwin

import java.util

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.metric.SQLMetric

/**
 * Proto-sessions of one partition, made of its rows in one pass and a hash lookup a row.
 *
 * For each row that is not late: `joining` finds the proto-session that the row becomes part of, the caller updates its
 * buffer (`target`), and `settle` follows. While `ready`, `next` emits a proto-session, before the next row comes.
 *
 * Memory is bounded: a key that has gathered `MaxOfKey` proto-sessions, or a partition that has gathered
 * `plan.held.most`, or `MostBytes` of them, emits all that it has and starts anew.
 *
 * A batch query leaves the rows that cannot be merged to Spark's merging above the shuffle: where of the first
 * `TrialRows` rows fewer than one in `WorthOneIn` met another, every later row is a proto-session by itself, which is
 * handed on at once and looked up nowhere.
 */
final class ProtoSessions(plan: ProtoSessionPlan, dropped: SQLMetric) {
  import ProtoSessions._

  private val keys = new SessionKeys
  private val records = new SessionRecords(plan, keys)
  private val merge = MutableProjection.create(plan.ofRecord(plan.bounds, plan.merges), plan.record ++ plan.other)
  private val joined = new JoinedRow
  private val code = plan.code
  private val most = math.min(plan.held.most, math.max(1, MostBytes / records.sizeOfEach))

  // By the number of the key: its last session (-1: none), and all of them by start. They neither overlap nor meet.
  private var last = new Array[Int](64)
  private var all = new Array[Ordinals](64)
  private var current = 0

  private val queue = new Ordinals // of keys that are emitted
  private var alone: UnsafeRow = _ // the key of a row that is handed on by itself
  private var passing = false
  private var (rows, begun) = (0, 0) // of the trial
  private var sweep = -1 // the next ordinal where everything is emitted; -1: not now

  /** Whether a row is late by its own session. It is then counted. */
  def isLate(end: Long): Boolean = end <= plan.late && { dropped += 1; true }

  /** The proto-session that covers [start, end], made of those that overlap or meet it, or a new one. */
  def joining(key: UnsafeRow, start: Long, end: Long): Int = if (passing) {
    alone = key
    records.add(0, start, end)
  } else {
    val known = keys.count
    val number = keys.numberOf(key)
    if (number == known) begin(number)
    current = number
    val latest = last(number)
    if (latest < 0 || records.end(latest) < start) append(number, add(number, start, end))
    else if (records.start(latest) <= start) {
      if (end > records.end(latest)) records.endsAt(latest, end)
      latest
    } else joiningEarlier(number, start, end)
  }

  def target(ordinal: Int): InternalRow = records.target(ordinal)

  def settle(): Unit = if (!passing) {
    if (all(current).n > MaxOfKey) emit(current)
    if (records.alive > most) emitAll()
    if (plan.held.inBatch && rows < TrialRows) { rows += 1; if (rows == TrialRows) judge() }
  }

  private def judge(): Unit = if (TrialRows - begun < TrialRows / WorthOneIn) { passing = true; emitAll() }

  /** Makes all proto-sessions ready: all rows have come, or memory is full. */
  def emitAll(): Unit = sweep = 0

  def ready: Boolean = alone != null || queue.n > 0 || sweep >= 0 && {
    while (sweep < records.count && records.keyOf(sweep) < 0) sweep += 1
    if (sweep == records.count) clear()
    sweep >= 0
  }

  /** A proto-session that is ready: (keys, start, end, buffers), valid until the next call. */
  def next(): UnsafeRow = {
    if (!ready) throw new NoSuchElementException
    if (alone != null) nextAlone()
    else {
      val ordinal = if (queue.n > 0) queue.removeLast() else sweep
      val row = records.output(ordinal)
      records.drop(ordinal)
      row
    }
  }

  private def nextAlone(): UnsafeRow = {
    val row = records.output(0, alone)
    records.clear()
    alone = null
    row
  }

  private def add(number: Int, start: Long, end: Long): Int = {
    begun += 1
    records.add(number, start, end)
  }

  private def begin(number: Int): Unit = {
    if (number == last.length) {
      last = util.Arrays.copyOf(last, 2 * number)
      all = util.Arrays.copyOf(all, 2 * number)
    }
    last(number) = -1
    all(number) = new Ordinals
  }

  private def append(number: Int, ordinal: Int): Int = {
    all(number).insert(all(number).n, ordinal)
    last(number) = ordinal
    ordinal
  }

  /** The proto-session of a row, where the key's last one starts after the row. */
  private def joiningEarlier(number: Int, start: Long, end: Long): Int = {
    val sessions = all(number)
    val after = firstAfter(sessions, start)
    val before = after - 1
    if (before >= 0 && records.end(sessions(before)) >= start) {
      val session = sessions(before)
      if (end > records.end(session)) { records.endsAt(session, end); absorb(number, before) }
      session
    } else if (records.start(sessions(after)) <= end) {
      val session = sessions(after)
      records.startsAt(session, start)
      if (end > records.end(session)) { records.endsAt(session, end); absorb(number, after) }
      session
    } else {
      val session = add(number, start, end)
      sessions.insert(after, session)
      session
    }
  }

  /**
   * The first session that starts after `time`, which the last one does. Rows come nearly in order, so the search
   * begins at the end.
   */
  private def firstAfter(sessions: Ordinals, time: Long): Int = {
    var high = sessions.n - 1
    var step = 1
    while (high > 0 && records.start(sessions(high - 1)) > time && step < 8) { high -= 1; step += 1 }
    if (high == 0 || records.start(sessions(high - 1)) <= time) high
    else {
      var low = 0
      while (low < high) {
        val middle = (low + high) >>> 1
        if (records.start(sessions(middle)) > time) high = middle else low = middle + 1
      }
      low
    }
  }

  /** Merges into a session that has grown those that it now overlaps or meets. */
  private def absorb(number: Int, at: Int): Unit = {
    val sessions = all(number)
    val session = sessions(at)
    while (at + 1 < sessions.n && records.start(sessions(at + 1)) <= records.end(session)) {
      val next = sessions(at + 1)
      val buffer = records.target(session)
      val other = records.source(next)
      merge.target(buffer)(joined(buffer, other))
      code.merge(buffer, other)
      records.endsAt(session, math.max(records.end(session), records.end(next)))
      records.drop(next)
      sessions.remove(at + 1)
      begun -= 1
    }
    last(number) = sessions(sessions.n - 1)
  }

  private def emit(number: Int): Unit = {
    val sessions = all(number)
    var i = 0
    while (i < sessions.n) { queue.insert(queue.n, sessions(i)); i += 1 }
    begin(number)
  }

  private def clear(): Unit = {
    sweep = -1
    records.clear()
    keys.clear()
    util.Arrays.fill(all.asInstanceOf[Array[AnyRef]], null)
  }
}

object ProtoSessions {
  /** The most proto-sessions of a key: with more, keeping them in order costs more than merging them saves. */
  val MaxOfKey = 1024

  /** Bytes of proto-sessions of a task: fewer of them are kept where a buffer is large, as a bitmap is. */
  val MostBytes: Long = 64L << 20

  /** Rows of a task after which a batch query decides whether merging goes on. */
  val TrialRows = 65536

  /** Merging goes on where one row in so many met another. With fewer, lookups cost more than a smaller sort saves. */
  val WorthOneIn = 20
}

/** A list of ordinals. */
private[gpuwin] final class Ordinals {
  private var values = new Array[Int](2)
  var n = 0

  def apply(at: Int): Int = values(at)

  def insert(at: Int, ordinal: Int): Unit = {
    if (n == values.length) values = util.Arrays.copyOf(values, 2 * n)
    System.arraycopy(values, at, values, at + 1, n - at)
    values(at) = ordinal
    n += 1
  }

  def remove(at: Int): Unit = { System.arraycopy(values, at + 1, values, at, n - at - 1); n -= 1 }

  def removeLast(): Int = { n -= 1; values(n) }
}

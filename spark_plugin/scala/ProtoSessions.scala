package org.apache.spark.sql.gpuwin

import java.util

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.metric.SQLMetric

/** Rows of one key that follow each other closely enough, and what was aggregated of them. Microseconds. */
private final class ProtoSession(var start: Long, var end: Long, val buffer: InternalRow)

/** The proto-sessions of one key, by start; `n` are in use. They neither overlap nor meet. */
private final class KeySessions(val key: UnsafeRow) {
  var all = new Array[ProtoSession](2)
  var n = 0

  /** The first that starts after `time`. Rows come nearly in order of time, so the search begins at the end. */
  def firstAfter(time: Long): Int = {
    var high = n
    var step = 1
    while (high > 0 && all(high - 1).start > time && step < 8) { high -= 1; step += 1 }
    if (high == 0 || all(high - 1).start <= time) high
    else {
      var low = 0
      while (low < high) {
        val middle = (low + high) >>> 1
        if (all(middle).start > time) high = middle else low = middle + 1
      }
      low
    }
  }

  def insert(at: Int, session: ProtoSession): Unit = {
    if (n == all.length) all = util.Arrays.copyOf(all, 2 * n)
    System.arraycopy(all, at, all, at + 1, n - at)
    all(at) = session
    n += 1
  }

  def remove(at: Int): Unit = {
    System.arraycopy(all, at + 1, all, at, n - at - 1)
    n -= 1
    all(n) = null
  }
}

/**
 * Merges the rows of one partition into proto-sessions, in one pass and a hash lookup a row.
 *
 * Memory is bounded: a key that has gathered `MaxOfKey` proto-sessions, or a partition that has gathered `MaxInAll`,
 * hands on what it has and starts anew.
 */
class ProtoSessions(plan: ProtoSessionPlan, partition: Int, dropped: SQLMetric) {
  import ProtoSessions._

  private val keyOf = UnsafeProjection.create(plan.grouping, plan.input)
  private val update = MutableProjection.create(plan.updates, plan.buffers ++ plan.input)
  private val merge = MutableProjection.create(plan.merges, plan.buffers ++ plan.incoming)
  private val initial = MutableProjection.create(plan.initials, Nil)
  Seq(keyOf, update, merge, initial).foreach(_.initialize(partition))
  private val result = UnsafeProjection.create(plan.output, plan.output)

  private val types = plan.buffers.map(_.dataType)
  private val flat = types.forall(UnsafeRow.isMutable)
  private val fresh: UnsafeRow =
    if (flat) UnsafeProjection.create(types.toArray).apply(new GenericInternalRow(types.length)).copy() else null
  if (flat) initial.target(fresh)(InternalRow.empty)

  private val joined = new JoinedRow
  private val keys = new util.HashMap[UnsafeRow, KeySessions]
  private val ready = new util.ArrayDeque[(UnsafeRow, ProtoSession)]
  private var held = 0

  def of(rows: Iterator[InternalRow]): Iterator[InternalRow] = new Iterator[InternalRow] {
    private val place = new GenericInternalRow(2)
    private val keyAndPlace = new JoinedRow
    private val whole = new JoinedRow

    override def hasNext: Boolean = {
      while (ready.isEmpty && rows.hasNext) add(rows.next())
      if (ready.isEmpty && held > 0) handOnAll()
      !ready.isEmpty
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException
      val (key, session) = ready.poll()
      place.update(0, session.start)
      place.update(1, session.end)
      result(whole(keyAndPlace(key, place), session.buffer))
    }
  }

  private def add(row: InternalRow): Unit = {
    val bounds = row.getStruct(plan.sessionAt, 2)
    val (start, end) = (bounds.getLong(0), bounds.getLong(1))
    if (end <= plan.late) dropped += 1
    else {
      val key = keyOf(row)
      var sessions = keys.get(key)
      if (sessions == null) {
        sessions = new KeySessions(key.copy())
        keys.put(sessions.key, sessions)
      }
      val buffer = joining(sessions, start, end).buffer
      update.target(buffer)(joined(buffer, row))
      if (sessions.n > MaxOfKey) { handOn(sessions); keys.remove(sessions.key) }
      if (held > MaxInAll) handOnAll()
    }
  }

  /** The proto-session that covers [start, end], made of those that overlap or meet it, or a new one. */
  private def joining(sessions: KeySessions, start: Long, end: Long): ProtoSession = {
    val after = sessions.firstAfter(start)
    val before = after - 1
    if (before >= 0 && sessions.all(before).end >= start) {
      val session = sessions.all(before)
      if (end > session.end) { session.end = end; absorb(sessions, before) }
      session
    } else if (after < sessions.n && sessions.all(after).start <= end) {
      val session = sessions.all(after)
      session.start = start
      if (end > session.end) { session.end = end; absorb(sessions, after) }
      session
    } else {
      val session = new ProtoSession(start, end, newBuffer())
      sessions.insert(after, session)
      held += 1
      session
    }
  }

  /** A session has grown: those that it now overlaps or meets become part of it. */
  private def absorb(sessions: KeySessions, at: Int): Unit = {
    val session = sessions.all(at)
    while (at + 1 < sessions.n && sessions.all(at + 1).start <= session.end) {
      val other = sessions.all(at + 1)
      merge.target(session.buffer)(joined(session.buffer, other.buffer))
      session.end = math.max(session.end, other.end)
      sessions.remove(at + 1)
      held -= 1
    }
  }

  private def newBuffer(): InternalRow =
    if (flat) fresh.copy()
    else {
      val buffer = new SpecificInternalRow(types)
      initial.target(buffer)(InternalRow.empty)
      buffer
    }

  private def handOn(sessions: KeySessions): Unit = {
    var i = 0
    while (i < sessions.n) { ready.add((sessions.key, sessions.all(i))); i += 1 }
    held -= sessions.n
  }

  private def handOnAll(): Unit = {
    keys.values.forEach(sessions => handOn(sessions))
    keys.clear()
  }
}

object ProtoSessions {
  /** Beyond this many, keeping the proto-sessions of a key in order costs more than what merging them saves. */
  val MaxOfKey = 1024
  val MaxInAll: Int = 1 << 18
}

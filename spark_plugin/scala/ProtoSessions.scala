package org.apache.spark.sql.gpuwin

import java.util

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.unsafe.Platform

/**
 * Merges the rows of one partition into proto-sessions, in one pass and a hash lookup a row.
 *
 * Memory is bounded: a key that has gathered `MaxOfKey` proto-sessions, or a partition that has gathered `plan.held`,
 * hands on what it has and starts anew.
 */
class ProtoSessions(plan: ProtoSessionPlan, partition: Int, dropped: SQLMetric) {
  import ProtoSessions._

  private val keyOf = UnsafeProjection.create(plan.grouping, plan.input)
  private val update = MutableProjection.create(plan.updates, plan.buffers ++ plan.input)
  private val merge = MutableProjection.create(plan.merges, plan.buffers ++ plan.incoming)
  Seq(keyOf, update, merge).foreach(_.initialize(partition))
  private val result = UnsafeProjection.create(plan.output, plan.output)

  private val buffers = new SessionBuffers(plan)
  private val (own, other) = (buffers.cursor(), buffers.cursor())
  private val joined = new JoinedRow
  private val keys = new SessionsByKey
  private val ready = new util.ArrayDeque[ProtoSession]
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
      val session = ready.poll()
      place.update(0, session.start)
      place.update(1, session.end)
      result(whole(keyAndPlace(session.key, place), own(session)))
    }
  }

  private def add(row: InternalRow): Unit = {
    val (start, end) = (row.getLong(plan.startAt), row.getLong(plan.endAt))
    if (end <= plan.late) dropped += 1
    else {
      val sessions = keys.of(keyOf(row))
      val buffer = own(joining(sessions, start, end))
      update.target(buffer)(joined(buffer, row))
      if (sessions.n > MaxOfKey) handOn(sessions)
      if (held > plan.held) handOnAll()
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
      val session = buffers.session(sessions.key, start, end)
      sessions.insert(after, session)
      held += 1
      session
    }
  }

  /** A session has grown: those that it now overlaps or meets become part of it. */
  private def absorb(sessions: KeySessions, at: Int): Unit = {
    val session = sessions.all(at)
    while (at + 1 < sessions.n && sessions.all(at + 1).start <= session.end) {
      val next = sessions.all(at + 1)
      val buffer = own(session)
      merge.target(buffer)(joined(buffer, other(next)))
      session.end = math.max(session.end, next.end)
      sessions.remove(at + 1)
      held -= 1
    }
  }

  private def handOn(sessions: KeySessions): Unit = {
    var i = 0
    while (i < sessions.n) { ready.add(sessions.all(i)); i += 1 }
    held -= sessions.n
    sessions.clear()
  }

  private def handOnAll(): Unit = {
    keys.foreach(handOn)
    keys.clear()
    buffers.clear()
  }
}

object ProtoSessions {
  /** Beyond this many, keeping the proto-sessions of a key in order costs more than what merging them saves. */
  val MaxOfKey = 1024
}

/** Rows of one key that follow each other closely enough, and where their aggregation buffer is. Microseconds. */
private[gpuwin] final class ProtoSession(val key: UnsafeRow, var start: Long, var end: Long, val page: Array[Byte],
    val offset: Int, val row: InternalRow)

/** The proto-sessions of one key, by start; `n` are in use. They neither overlap nor meet. */
private[gpuwin] final class KeySessions(val key: UnsafeRow) {
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

  def clear(): Unit = { all = new Array[ProtoSession](2); n = 0 }
}

/** Keys by their bytes: open addressing, twice as many places as keys. */
private[gpuwin] final class SessionsByKey {
  private var hashes = new Array[Int](64)
  private var places = new Array[KeySessions](64)
  private var count = 0

  /** The sessions of this key; the row may be used again afterwards. */
  def of(key: UnsafeRow): KeySessions = {
    val hash = key.hashCode
    var at = place(hash)
    while (places(at) != null && (hashes(at) != hash || places(at).key != key)) at = (at + 1) & (places.length - 1)
    if (places(at) != null) places(at)
    else {
      val sessions = new KeySessions(key.copy())
      put(at, hash, sessions)
      count += 1
      if (2 * count > places.length) grow()
      sessions
    }
  }

  def foreach(f: KeySessions => Unit): Unit = places.foreach(s => if (s != null) f(s))

  def clear(): Unit = { util.Arrays.fill(places.asInstanceOf[Array[AnyRef]], null); count = 0 }

  // Rows of one partition of a shuffle have hashes that are equal modulo the number of partitions.
  private def place(hash: Int): Int = (hash * 0x9E3779B9) >>> (32 - Integer.numberOfTrailingZeros(places.length))

  private def put(at: Int, hash: Int, sessions: KeySessions): Unit = { hashes(at) = hash; places(at) = sessions }

  private def grow(): Unit = {
    val (oldHashes, old) = (hashes, places)
    hashes = new Array[Int](2 * old.length)
    places = new Array[KeySessions](2 * old.length)
    old.indices.foreach { i =>
      if (old(i) != null) {
        var at = place(oldHashes(i))
        while (places(at) != null) at = (at + 1) & (places.length - 1)
        put(at, oldHashes(i), old(i))
      }
    }
  }
}

/**
 * Where aggregation buffers are. Those of fixed width lie one after the other in pages, and are looked at through one
 * row; others are objects.
 */
private[gpuwin] final class SessionBuffers(plan: ProtoSessionPlan) {
  private val types = plan.buffers.map(_.dataType)
  private val initial = MutableProjection.create(plan.initials, Nil)
  private val fixed = types.forall(UnsafeRow.isMutable)
  private val fresh: Array[Byte] =
    if (!fixed) null
    else {
      val row = UnsafeProjection.create(types.toArray).apply(new GenericInternalRow(types.length)).copy()
      initial.target(row)(InternalRow.empty)
      row.getBytes
    }
  private var page: Array[Byte] = Array.emptyByteArray
  private var used = 0

  def session(key: UnsafeRow, start: Long, end: Long): ProtoSession =
    if (fixed) {
      if (used + fresh.length > page.length) { page = new Array[Byte](math.max(1 << 18, fresh.length)); used = 0 }
      System.arraycopy(fresh, 0, page, used, fresh.length)
      used += fresh.length
      new ProtoSession(key, start, end, page, used - fresh.length, null)
    } else {
      val row = new SpecificInternalRow(types)
      initial.target(row)(InternalRow.empty)
      new ProtoSession(key, start, end, null, 0, row)
    }

  /** Pages that sessions still refer to live on. */
  def clear(): Unit = page = Array.emptyByteArray

  /** A view of one buffer at a time. */
  def cursor(): ProtoSession => InternalRow =
    if (fixed) {
      val row = new UnsafeRow(types.length)
      session => { row.pointTo(session.page, Platform.BYTE_ARRAY_OFFSET + session.offset, fresh.length); row }
    } else _.row
}

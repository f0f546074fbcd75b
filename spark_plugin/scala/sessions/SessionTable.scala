package org.apache.spark.sql.gpuwin

import java.util

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner
import org.apache.spark.sql.types.{LongType, StructField, StructType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/*
 * The keys and proto-sessions of a task. Time goes into memory that the cache does not hold, so both lie in pages of
 * bytes, without an object for each: a row of a key whose last session goes on touches a slot, the key and the session.
 */

/** The keys of a task, each with a number. Open addressing over their hashes, twice as many slots as keys. */
private[gpuwin] final class SessionKeys {
  /** Slots: the hash above, the number plus one below; 0 is free. */
  private var slots = new Array[Long](128)
  /** Addresses by number: the page above, the offset in it below. There lie the size of the key, and the key. */
  private var addresses = new Array[Long](64)
  private var pages = new Array[Array[Byte]](4)
  private var (page, used) = (-1, 0)
  private var n = 0

  def count: Int = n

  /** The number of this key; the row may be used again afterwards. */
  def numberOf(key: UnsafeRow): Int = {
    val hash = key.hashCode
    var at = place(hash)
    while (slots(at) != 0 && !((slots(at) >>> 32).toInt == hash && is(slots(at).toInt - 1, key)))
      at = (at + 1) & (slots.length - 1)
    if (slots(at) != 0) slots(at).toInt - 1
    else {
      if (n == addresses.length) addresses = util.Arrays.copyOf(addresses, 2 * n)
      addresses(n) = keep(key)
      n += 1
      slots(at) = (hash.toLong << 32) | n
      if (2 * n > slots.length) grow()
      n - 1
    }
  }

  def point(row: UnsafeRow, number: Int): Unit = {
    val (bytes, offset) = (pages((addresses(number) >>> 32).toInt), addresses(number).toInt)
    row.pointTo(bytes, offset + 8, Platform.getInt(bytes, offset))
  }

  def clear(): Unit = {
    util.Arrays.fill(slots, 0L)
    util.Arrays.fill(pages.asInstanceOf[Array[AnyRef]], null)
    page = -1
    used = 0
    n = 0
  }

  private def is(number: Int, key: UnsafeRow): Boolean = {
    val (bytes, offset) = (pages((addresses(number) >>> 32).toInt), addresses(number).toInt)
    val size = key.getSizeInBytes
    Platform.getInt(bytes, offset) == size &&
      ByteArrayMethods.arrayEquals(key.getBaseObject, key.getBaseOffset, bytes, offset + 8, size)
  }

  private def keep(key: UnsafeRow): Long = {
    val size = key.getSizeInBytes
    if (page < 0 || used + 8 + size > pages(page).length) {
      page += 1
      if (page == pages.length) pages = util.Arrays.copyOf(pages, 2 * page)
      pages(page) = new Array[Byte](math.max(SessionKeys.PageBytes, 8 + size))
      used = 0
    }
    val offset = Platform.BYTE_ARRAY_OFFSET + used
    Platform.putInt(pages(page), offset, size)
    key.writeToMemory(pages(page), offset + 8)
    used += 8 + size
    (page.toLong << 32) | offset
  }

  // Rows of one partition of a shuffle have hashes that are equal modulo the number of partitions.
  private def place(hash: Int): Int = (hash * 0x9E3779B9) >>> (32 - Integer.numberOfTrailingZeros(slots.length))

  private def grow(): Unit = {
    val old = slots
    slots = new Array[Long](2 * old.length)
    old.foreach { slot =>
      if (slot != 0) {
        var at = place((slot >>> 32).toInt)
        while (slots(at) != 0) at = (at + 1) & (slots.length - 1)
        slots(at) = slot
      }
    }
  }
}

private[gpuwin] object SessionKeys {
  val PageBytes: Int = 1 << 18
}

/**
 * Proto-sessions by ordinal, in the order in which they began: the number of the key (-1: no more), and a row of start,
 * end and the aggregation buffer. Buffers that cannot be changed in place are objects beside it.
 */
private[gpuwin] final class SessionRecords(plan: ProtoSessionPlan, keys: SessionKeys) {
  import SessionRecords._

  private val types = Seq(LongType, LongType) ++ (if (plan.fixed) plan.buffers.map(_.dataType) else Nil)
  private val initial = MutableProjection.create(plan.ofRecord(Seq(Literal(0L), Literal(0L)), plan.initials), Nil)
  private val code = plan.code
  private val fresh: Array[Byte] = {
    val row = UnsafeProjection.create(types.toArray)
      .apply(new GenericInternalRow(Array[Any](0L, 0L) ++ Seq.fill(types.length - 2)(null))).copy()
    if (plan.fixed) begin(row)
    row.getBytes
  }
  private val stride = 8 + fresh.length
  private val startAt = 8 + UnsafeRow.calculateBitSetWidthInBytes(types.length)
  private var pages = new Array[Array[Byte]](4)
  private var objects = new Array[Array[InternalRow]](if (plan.fixed) 0 else 4)
  private val (one, other, key) =
    (new UnsafeRow(types.length), new UnsafeRow(types.length), new UnsafeRow(plan.grouping.length))
  private val joiner = GenerateUnsafeRowJoiner.create(structOf(plan.output.take(plan.grouping.length)),
    StructType(types.map(StructField("", _))))
  private lazy val result = UnsafeProjection.create(plan.output, plan.output)
  private val (keyed, whole) = (new JoinedRow, new JoinedRow)

  /** The number of ordinals in use, and of proto-sessions among them. */
  var (count, alive) = (0, 0)

  /** About how many bytes a proto-session takes, with its objects; texts are taken to be short. */
  def sizeOfEach: Long = stride + (if (plan.fixed) 0 else plan.sizeOfBuffers)

  private def begin(row: InternalRow): Unit = {
    initial.target(row)(InternalRow.empty)
    code.initialize(row)
  }

  private def page(ordinal: Int): Array[Byte] = pages(ordinal >>> Shift)
  private def at(ordinal: Int): Long = Platform.BYTE_ARRAY_OFFSET + (ordinal & Mask).toLong * stride

  def keyOf(ordinal: Int): Int = Platform.getInt(page(ordinal), at(ordinal))
  def start(ordinal: Int): Long = Platform.getLong(page(ordinal), at(ordinal) + startAt)
  def end(ordinal: Int): Long = Platform.getLong(page(ordinal), at(ordinal) + startAt + 8)
  def startsAt(ordinal: Int, time: Long): Unit = Platform.putLong(page(ordinal), at(ordinal) + startAt, time)
  def endsAt(ordinal: Int, time: Long): Unit = Platform.putLong(page(ordinal), at(ordinal) + startAt + 8, time)

  def add(key: Int, start: Long, end: Long): Int = {
    val (ordinal, number) = (count, count >>> Shift)
    if (number == pages.length) {
      pages = util.Arrays.copyOf(pages, 2 * number)
      if (!plan.fixed) objects = util.Arrays.copyOf(objects, 2 * number)
    }
    if (pages(number) == null) {
      pages(number) = new Array[Byte](stride << Shift)
      if (!plan.fixed) objects(number) = new Array[InternalRow](1 << Shift)
    }
    Platform.putInt(page(ordinal), at(ordinal), key)
    Platform.copyMemory(fresh, Platform.BYTE_ARRAY_OFFSET, page(ordinal), at(ordinal) + 8, fresh.length)
    startsAt(ordinal, start)
    endsAt(ordinal, end)
    if (!plan.fixed) {
      val row = new SpecificInternalRow(plan.buffers.map(_.dataType))
      begin(row)
      objects(number)(ordinal & Mask) = row
    }
    count += 1
    alive += 1
    ordinal
  }

  /** The row that the expressions of `ProtoSessionPlan.ofRecord` change: valid until the next call. */
  def target(ordinal: Int): InternalRow = row(ordinal, one)

  /** The row of another proto-session, to merge it into the first. */
  def source(ordinal: Int): InternalRow = row(ordinal, other)

  private def row(ordinal: Int, view: UnsafeRow): InternalRow =
    if (plan.fixed) bytes(ordinal, view) else objects(ordinal >>> Shift)(ordinal & Mask)

  private def bytes(ordinal: Int, view: UnsafeRow): UnsafeRow = {
    view.pointTo(page(ordinal), at(ordinal) + 8, fresh.length)
    view
  }

  def drop(ordinal: Int): Unit = {
    Platform.putInt(page(ordinal), at(ordinal), -1)
    if (!plan.fixed) objects(ordinal >>> Shift)(ordinal & Mask) = null
    alive -= 1
  }

  /** The output row of a proto-session: valid until the next call. */
  def output(ordinal: Int): UnsafeRow = {
    keys.point(key, keyOf(ordinal))
    output(ordinal, key)
  }

  /** The same of a key that is not in the table. */
  def output(ordinal: Int, key: UnsafeRow): UnsafeRow =
    if (plan.fixed) joiner.join(key, bytes(ordinal, one))
    else result(whole(keyed(key, bytes(ordinal, one)), row(ordinal, one)))

  /** Drops all; pages are used again. */
  def clear(): Unit = { count = 0; alive = 0 }
}

private[gpuwin] object SessionRecords {
  private val Shift = 12
  private val Mask = (1 << Shift) - 1

  private def structOf(attributes: Seq[Attribute]): StructType =
    StructType(attributes.map(a => StructField(a.name, a.dataType, a.nullable)))
}

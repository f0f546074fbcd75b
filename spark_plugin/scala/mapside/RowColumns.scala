package org.apache.spark.sql.gpuwin

import org.apache.arrow.vector._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * A column of an Arrow table that rows are appended to, by generated code or one by one. It has room for a number of
 * rows that is not asked about: whoever appends counts.
 */
sealed abstract class RowColumn(vector: FieldVector) {
  protected var n = 0

  /** The number of rows that were appended. */
  def length: Int = n

  /** Bytes of values of no fixed width. */
  def textBytes: Long = 0L
  def append(row: InternalRow, at: Int): Unit

  def putNull(): Unit = {
    val at = vector.getValidityBuffer.memoryAddress + (n >>> 3)
    Platform.putByte(null, at, (Platform.getByte(null, at) & ~(1 << (n & 7))).toByte)
    skip()
    n += 1
  }

  /** Leaves the place of a null as it is. */
  protected def skip(): Unit = ()

  /** Makes the rows that were appended those of the vector. */
  def finish(): Unit = vector.setValueCount(n)

  /** Begins anew: every row is valid that does not say otherwise. */
  def begin(): Unit = {
    n = 0
    vector.getValidityBuffer.setOne(0, vector.getValidityBuffer.capacity.toInt)
  }
}

/** A column of values of one width. */
sealed abstract class FixedColumn(vector: BaseFixedWidthVector, rows: Int) extends RowColumn(vector) {
  vector.allocateNew(rows)
  protected val data: Long = vector.getDataBuffer.memoryAddress
}

final class BooleanColumn(vector: BitVector, rows: Int) extends FixedColumn(vector, rows) {
  override def begin(): Unit = {
    super.begin()
    vector.getDataBuffer.setZero(0, vector.getDataBuffer.capacity)
  }
  def put(value: Boolean): Unit = {
    if (value) {
      val at = data + (n >>> 3)
      Platform.putByte(null, at, (Platform.getByte(null, at) | (1 << (n & 7))).toByte)
    }
    n += 1
  }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getBoolean(at))
}

final class ByteColumn(vector: TinyIntVector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Byte): Unit = { Platform.putByte(null, data + n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getByte(at))
}

final class ShortColumn(vector: SmallIntVector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Short): Unit = { Platform.putShort(null, data + 2L * n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getShort(at))
}

final class IntColumn(vector: IntVector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Int): Unit = { Platform.putInt(null, data + 4L * n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getInt(at))
}

final class LongColumn(vector: BigIntVector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Long): Unit = { Platform.putLong(null, data + 8L * n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getLong(at))
}

final class FloatColumn(vector: Float4Vector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Float): Unit = { Platform.putFloat(null, data + 4L * n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getFloat(at))
}

final class DoubleColumn(vector: Float8Vector, rows: Int) extends FixedColumn(vector, rows) {
  def put(value: Double): Unit = { Platform.putDouble(null, data + 8L * n, value); n += 1 }
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getDouble(at))
}

/** A column of 128-bit numbers, the low half first. */
final class DecimalColumn(vector: DecimalVector, rows: Int, kind: DecimalType) extends FixedColumn(vector, rows) {
  def put(value: Decimal): Unit =
    if (!value.changePrecision(kind.precision, kind.scale)) putNull()
    else {
      val at = data + 16L * n
      if (kind.precision <= Decimal.MAX_LONG_DIGITS) {
        val unscaled = value.toUnscaledLong
        Platform.putLong(null, at, unscaled)
        Platform.putLong(null, at + 8, unscaled >> 63)
      } else {
        val unscaled = value.toJavaBigDecimal.unscaledValue
        Platform.putLong(null, at, unscaled.longValue)
        Platform.putLong(null, at + 8, unscaled.shiftRight(64).longValue)
      }
      n += 1
    }
  override def append(row: InternalRow, at: Int): Unit =
    if (row.isNullAt(at)) putNull() else put(row.getDecimal(at, kind.precision, kind.scale))
}

/** A column of strings or of bytes. */
sealed abstract class TextColumn(vector: BaseVariableWidthVector, rows: Int) extends RowColumn(vector) {
  vector.allocateNew(TextColumn.FirstBytes, rows)
  private val offsets = vector.getOffsetBuffer.memoryAddress
  private var used = 0

  override def textBytes: Long = used
  override def begin(): Unit = {
    super.begin()
    used = 0
    Platform.putInt(null, offsets, 0)
  }

  /** The address of so many bytes, which are the next value. */
  protected def next(bytes: Int): Long = {
    val end = Math.addExact(used, bytes)
    while (vector.getDataBuffer.capacity < end) vector.reallocDataBuffer()
    val at = vector.getDataBuffer.memoryAddress + used
    used = end
    skip()
    n += 1
    at
  }
  override protected def skip(): Unit = Platform.putInt(null, offsets + 4L * (n + 1), used)
  override def finish(): Unit = {
    vector.setLastSet(n - 1)
    super.finish()
  }
}

private object TextColumn {
  val FirstBytes: Long = 1L << 16
}

final class StringColumn(vector: VarCharVector, rows: Int) extends TextColumn(vector, rows) {
  def put(value: UTF8String): Unit = value.writeToMemory(null, next(value.numBytes))
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getUTF8String(at))
}

/**
 * A column of strings that is sent with a dictionary of its own, in which the strings of a chunk stand in the order in
 * which they came: once, if they have an id in the dictionary of a file, and else once a row.
 *
 * @param vector  the places of the strings in `entries`
 * @param entries the strings
 */
final class CodedColumn(vector: IntVector, entries: StringColumn, texts: DictionaryTexts, rows: Int)
  extends FixedColumn(vector, rows) {
  override def textBytes: Long = entries.textBytes
  override def begin(): Unit = {
    super.begin()
    entries.begin()
    texts.beginChunk()
  }
  override def finish(): Unit = {
    entries.finish()
    super.finish()
  }

  def has(id: Int): Boolean = texts.has(id)
  def partition(id: Int): Int = texts.partition(id)

  /** Appends a string that has an id which was met before. */
  def put(id: Int): Unit = {
    if (texts.place(id) < 0) texts.put(id, enter(texts.text(id)))
    append(texts.place(id))
  }

  /** Appends a string whose id is met now, or that has none, -1. */
  def put(id: Int, text: UTF8String, partition: Int): Unit =
    if (id < 0) append(enter(text))
    else {
      texts.add(id, text, partition)
      put(id)
    }

  override def append(row: InternalRow, at: Int): Unit =
    if (row.isNullAt(at)) putNull() else append(enter(row.getUTF8String(at)))

  private def append(place: Int): Unit = { Platform.putInt(null, data + 4L * n, place); n += 1 }
  private def enter(text: UTF8String): Int = {
    entries.put(text)
    entries.length - 1
  }
}

final class BinaryColumn(vector: VarBinaryVector, rows: Int) extends TextColumn(vector, rows) {
  def put(value: Array[Byte]): Unit =
    Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET, null, next(value.length), value.length)
  override def append(row: InternalRow, at: Int): Unit = if (row.isNullAt(at)) putNull() else put(row.getBinary(at))
}

object RowColumn {
  /** The column that rows are appended to, for a vector of a wire type ([[WireType]]). */
  def of(vector: FieldVector, dataType: DataType, rows: Int): RowColumn = (vector, dataType) match {
    case (v: BitVector, _) => new BooleanColumn(v, rows)
    case (v: TinyIntVector, _) => new ByteColumn(v, rows)
    case (v: SmallIntVector, _) => new ShortColumn(v, rows)
    case (v: IntVector, _) => new IntColumn(v, rows)
    case (v: BigIntVector, _) => new LongColumn(v, rows)
    case (v: Float4Vector, _) => new FloatColumn(v, rows)
    case (v: Float8Vector, _) => new DoubleColumn(v, rows)
    case (v: DecimalVector, d: DecimalType) => new DecimalColumn(v, rows, d)
    case (v: VarCharVector, _) => new StringColumn(v, rows)
    case (v: VarBinaryVector, _) => new BinaryColumn(v, rows)
    case (v, other) => throw new GpuWindowException(s"A ${v.getClass.getName} takes no ${other.simpleString}.")
  }

  /** The class of the column of a wire type, for generated code. */
  def classOf(dataType: DataType): Class[_ <: RowColumn] = dataType match {
    case BooleanType => scala.Predef.classOf[BooleanColumn]
    case ByteType => scala.Predef.classOf[ByteColumn]
    case ShortType => scala.Predef.classOf[ShortColumn]
    case IntegerType => scala.Predef.classOf[IntColumn]
    case LongType => scala.Predef.classOf[LongColumn]
    case FloatType => scala.Predef.classOf[FloatColumn]
    case DoubleType => scala.Predef.classOf[DoubleColumn]
    case _: DecimalType => scala.Predef.classOf[DecimalColumn]
    case _: StringType => scala.Predef.classOf[StringColumn]
    case BinaryType => scala.Predef.classOf[BinaryColumn]
    case other => throw new GpuWindowException(s"No column takes a ${other.simpleString}.")
  }
}

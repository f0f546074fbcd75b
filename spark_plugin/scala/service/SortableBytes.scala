package org.apache.spark.sql.gpuwin

import java.math.BigInteger

import scala.collection.mutable

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, GenericInternalRow, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData, UnsafeRowUtils}
import org.apache.spark.sql.gpuwin.shims.TimeOfDay
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Bytes of a struct or an array which, compared as unsigned bytes, have the order that Spark gives such values: field
 * by field, nulls first, a shorter array before one that it begins; of floating point NaN last, and both zeros equal.
 *
 *  - a field: 0 for null; else 1 and its value
 *  - an integer: its bytes, the highest first, the sign turned; floating point: so that negative values turn round
 *  - a text: its bytes, each 0 followed by 255, and two 0
 *  - an array: before each element a 1 (null) or a 2 and its value; at the end a 0
 *  - last, where a zero is negative: for each value of floating point, whether it is one
 */
private[gpuwin] case class SortableBytes(child: Expression) extends UnaryExpression with CodegenFallback {
  override def dataType: DataType = BinaryType
  override def nullable: Boolean = child.nullable
  override protected def nullSafeEval(input: Any): Any = new SortableBytesWriter().bytesOf(input, child.dataType)
  override protected def withNewChildInternal(newChild: Expression): SortableBytes = copy(child = newChild)
}

/** The struct or array of [[SortableBytes]]. */
private[gpuwin] case class FromSortableBytes(child: Expression, dataType: DataType)
  extends UnaryExpression with CodegenFallback {
  override def nullable: Boolean = child.nullable
  override protected def nullSafeEval(input: Any): Any =
    new SortableBytesReader(input.asInstanceOf[Array[Byte]]).read(dataType)
  override protected def withNewChildInternal(newChild: Expression): FromSortableBytes = copy(child = newChild)
}

private[gpuwin] object SortableBytes {
  /** Whether there are such bytes of all values of a type. */
  def canOrder(dataType: DataType): Boolean = dataType match {
    case s: StructType => s.fields.forall(f => canOrder(f.dataType))
    case a: ArrayType => canOrder(a.elementType)
    case s: StringType => UnsafeRowUtils.isBinaryStable(s)
    case NullType | BinaryType | FloatType | DoubleType | _: DecimalType => true
    case other => widthOf(other).isDefined
  }

  /** Bytes of an integer, or of what Spark keeps as one. */
  def widthOf(dataType: DataType): Option[Int] = dataType match {
    case BooleanType | ByteType => Some(1)
    case ShortType => Some(2)
    case IntegerType | DateType | _: YearMonthIntervalType => Some(4)
    case LongType | TimestampType | TimestampNTZType | _: DayTimeIntervalType | TimeOfDay() => Some(8)
    case _ => None
  }

  /** Bytes of the digits of a decimal that does not fit a long. */
  val WideDecimal = 16
}

private final class SortableBytesWriter {
  private val out = mutable.ArrayBuilder.make[Byte]
  private val zeros = mutable.ArrayBuilder.make[Byte]
  private var someNegative = false

  def bytesOf(value: Any, dataType: DataType): Array[Byte] = {
    write(value, dataType)
    if (someNegative) out ++= zeros.result()
    out.result()
  }

  private def write(value: Any, dataType: DataType): Unit = (dataType, value) match {
    case (s: StructType, row: InternalRow) =>
      s.fields.indices.foreach { i =>
        out += (if (row.isNullAt(i)) 0 else 1).toByte
        if (!row.isNullAt(i)) write(row.get(i, s(i).dataType), s(i).dataType)
      }
    case (ArrayType(element, _), array: ArrayData) =>
      (0 until array.numElements).foreach { i =>
        out += (if (array.isNullAt(i)) 1 else 2).toByte
        if (!array.isNullAt(i)) write(array.get(i, element), element)
      }
      out += 0.toByte
    case (_: StringType, text: UTF8String) => escaped(text.getBytes)
    case (BinaryType, bytes: Array[Byte]) => escaped(bytes)
    case (_, v: Float) =>
      floating(v == 0 && 1 / v < 0)
      val bits = java.lang.Float.floatToIntBits(if (v == 0) 0 else v)
      integer(bits ^ ((bits >> 31) & Int.MaxValue), 4)
    case (_, v: Double) =>
      floating(v == 0 && 1 / v < 0)
      val bits = java.lang.Double.doubleToLongBits(if (v == 0) 0 else v)
      integer(bits ^ ((bits >> 63) & Long.MaxValue), 8)
    case (d: DecimalType, v: Decimal) if d.precision <= Decimal.MAX_LONG_DIGITS => integer(v.toUnscaledLong, 8)
    case (_, v: Decimal) =>
      val digits = v.toJavaBigDecimal.unscaledValue.toByteArray
      val padded = Array.fill[Byte](SortableBytes.WideDecimal - digits.length)(if (digits(0) < 0) -1 else 0) ++ digits
      padded(0) = (padded(0) ^ 0x80).toByte
      out ++= padded
    case (_, v: Boolean) => integer(if (v) 1 else 0, 1)
    case (_, v: Byte) => integer(v, 1)
    case (_, v: Short) => integer(v, 2)
    case (_, v: Int) => integer(v, 4)
    case (_, v: Long) => integer(v, 8)
  }

  private def floating(isNegativeZero: Boolean): Unit = {
    zeros += (if (isNegativeZero) 1 else 0).toByte
    someNegative |= isNegativeZero
  }

  private def integer(value: Long, width: Int): Unit = {
    val turned = value ^ (1L << (8 * width - 1))
    var shift = 8 * (width - 1)
    while (shift >= 0) { out += (turned >> shift).toByte; shift -= 8 }
  }

  private def escaped(bytes: Array[Byte]): Unit = {
    bytes.foreach { b =>
      out += b
      if (b == 0) out += -1
    }
    out += 0
    out += 0
  }
}

private final class SortableBytesReader(bytes: Array[Byte]) {
  private var at = 0
  private var zerosAt = -1 // where it is said which zeros are negative

  def read(dataType: DataType): Any = {
    val value = next(dataType)
    if (at == bytes.length) value
    else {
      zerosAt = at
      at = 0
      next(dataType)
    }
  }

  private def next(dataType: DataType): Any = dataType match {
    case s: StructType =>
      val row = new GenericInternalRow(s.length)
      s.fields.indices.foreach(i => row.update(i, if (byte() == 0) null else next(s(i).dataType)))
      row
    case ArrayType(element, _) =>
      val found = mutable.ArrayBuffer.empty[Any]
      var mark = byte()
      while (mark != 0) {
        found += (if (mark == 1) null else next(element))
        mark = byte()
      }
      new GenericArrayData(found.toArray)
    case _: StringType => UTF8String.fromBytes(unescaped())
    case BinaryType => unescaped()
    case FloatType =>
      val bits = integer(4).toInt
      val value = java.lang.Float.intBitsToFloat(bits ^ ((bits >> 31) & Int.MaxValue))
      if (isNegativeZero()) -0.0f else value
    case DoubleType =>
      val bits = integer(8)
      val value = java.lang.Double.longBitsToDouble(bits ^ ((bits >> 63) & Long.MaxValue))
      if (isNegativeZero()) -0.0 else value
    case d: DecimalType if d.precision <= Decimal.MAX_LONG_DIGITS => Decimal(integer(8), d.precision, d.scale)
    case d: DecimalType =>
      val digits = java.util.Arrays.copyOfRange(bytes, at, at + SortableBytes.WideDecimal)
      digits(0) = (digits(0) ^ 0x80).toByte
      at += digits.length
      Decimal(BigDecimal(new java.math.BigDecimal(new BigInteger(digits), d.scale)), d.precision, d.scale)
    case BooleanType => integer(1) != 0
    case other => SortableBytes.widthOf(other).get match {
      case 1 => integer(1).toByte
      case 2 => integer(2).toShort
      case 4 => integer(4).toInt
      case _ => integer(8)
    }
  }

  private def byte(): Int = {
    at += 1
    bytes(at - 1) & 0xFF
  }

  private def isNegativeZero(): Boolean = zerosAt >= 0 && {
    zerosAt += 1
    bytes(zerosAt - 1) == 1
  }

  private def integer(width: Int): Long = {
    var value = 0L
    (0 until width).foreach(_ => value = value << 8 | byte())
    val unused = 64 - 8 * width
    (value ^ (1L << (8 * width - 1))) << unused >> unused
  }

  private def unescaped(): Array[Byte] = {
    val out = mutable.ArrayBuilder.make[Byte]
    var b = byte()
    while (b != 0 || byte() != 0) { // a 0 that 255 follows is one of the value's
      out += b.toByte
      b = byte()
    }
    out.result()
  }
}

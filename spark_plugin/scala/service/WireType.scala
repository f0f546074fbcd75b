package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.expressions.RowOrdering
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.gpuwin.shims.TimeOfDay
import org.apache.spark.sql.types._

/**
 * The type under which a Spark column travels to the device service and back.
 *
 * It is the type of the value's physical representation (a timestamp is a long, a date an int), so that writing and
 * reading it needs no conversion, and the service has to know a dozen types and no calendar.
 */
object WireType {

  def of(dataType: DataType): Option[DataType] = dataType match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType | FloatType | DoubleType | BinaryType =>
      Some(dataType)
    case DateType | _: YearMonthIntervalType => Some(IntegerType)
    case TimestampType | TimestampNTZType | _: DayTimeIntervalType | TimeOfDay() => Some(LongType)
    case d: DecimalType => Some(d)
    case s: StringType if UnsafeRowUtils.isBinaryStable(s) => Some(StringType)
    case nested if isNested(nested) => Some(BinaryType) // an UnsafeRow keeps its bytes as it keeps a binary
    case _ => None
  }

  /** The same of a key: keys are one where their bytes are. They are sorted in batch queries, which maps cannot be. */
  def ofKey(dataType: DataType): Option[DataType] = of(dataType).filter(_ => RowOrdering.isOrderable(dataType) &&
    !dataType.existsRecursively {
      case s: StringType => !UnsafeRowUtils.isBinaryStable(s)
      case _ => false
    })

  def isNested(dataType: DataType): Boolean = dataType match {
    case _: StructType | _: ArrayType | _: MapType => true
    case _ => false
  }

  /** The schema of a table of cells or windows, with column names that depend on the position only. */
  def schema(types: Seq[DataType]): StructType =
    StructType(types.zipWithIndex.map { case (t, i) => StructField(s"c$i", of(t).get, nullable = true) })
}

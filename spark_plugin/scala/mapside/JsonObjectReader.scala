package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.UTF_8
import java.time.ZoneId

import scala.collection.mutable

import com.fasterxml.jackson.core.io.NumberInput

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.catalyst.util.{ArrayBasedMapData, DateTimeUtils, GenericArrayData}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * A reader of JSON objects whose fields have ordinary values: numbers of up to 18 digits, texts without escapes,
 * timestamps and dates in ISO's form, and arrays and objects of these. It reads UTF-8 bytes, and makes no token.
 *
 * It reads what JSON's grammar (RFC 8259) and Spark's parser agree on without doubt. Whatever else a text holds (a
 * field of another type, a number that may not fit, a fault) makes it give up, and the text is for Spark's parser,
 * whose result then counts.
 */
final class JsonObjectReader(fields: JsonFields) {

  /** The row of the text in these bytes; null where it is for Spark's parser. */
  def read(bytes: Array[Byte], begin: Int, length: Int): GenericInternalRow =
    if (length > JsonObjectReader.Longest) null
    else {
      val text = new JsonText(bytes, begin, begin + length)
      val row = fields.read(text)
      if (row != null && text.blankToEnd()) row else null
    }
}

object JsonObjectReader {
  /** Bytes of a text: Jackson has limits for names and strings, which are larger. */
  private val Longest = 1 << 15

  /** The reader of objects of a schema; None where it has a field of a type that only Spark's parser reads. */
  def of(schema: StructType, zone: ZoneId): Option[JsonObjectReader] =
    fieldsOf(schema, zone).map(new JsonObjectReader(_))

  private def fieldsOf(schema: StructType, zone: ZoneId): Option[JsonFields] = {
    val values = schema.map(field => valueOf(field.dataType, zone))
    // Spark fills in the default that the metadata of a column of a table may have.
    val ordinary = schema.forall(f => f.metadata == Metadata.empty && !f.name.contains(Undecodable))
    if (ordinary && values.forall(_.isDefined) && schema.fieldNames.distinct.length == schema.length)
      Some(new JsonFields(schema.fieldNames.map(_.getBytes(UTF_8)), values.flatten.toArray))
    else None
  }

  private def valueOf(dataType: DataType, zone: ZoneId): Option[JsonValue] = dataType match {
    case StringType => Some(JsonString)
    case LongType => Some(new JsonWhole(Long.MinValue, Long.MaxValue, Long.box))
    case IntegerType => Some(new JsonWhole(Int.MinValue, Int.MaxValue, v => Int.box(v.toInt)))
    case ShortType => Some(new JsonWhole(Short.MinValue, Short.MaxValue, v => Short.box(v.toShort)))
    case ByteType => Some(new JsonWhole(Byte.MinValue, Byte.MaxValue, v => Byte.box(v.toByte)))
    case DoubleType => Some(JsonDouble)
    case FloatType => Some(JsonFloat)
    case d: DecimalType => Some(new JsonDecimal(d.precision, d.scale))
    case BooleanType => Some(JsonBoolean)
    case TimestampType => Some(new JsonTimestamp(zone))
    case TimestampNTZType => Some(new JsonIso(DateTimeUtils.stringToTimestampWithoutTimeZone(_, false).map(Long.box)))
    case DateType => Some(new JsonIso(DateTimeUtils.stringToDate(_).map(Int.box)))
    case nested: StructType => fieldsOf(nested, zone).map(new JsonStruct(_))
    case ArrayType(of, _) => valueOf(of, zone).map(new JsonArray(_))
    case MapType(StringType, of, _) => valueOf(of, zone).map(new JsonMap(_))
    case _ => None
  }

  /** What Java decodes bytes to that are not UTF-8. */
  private[gpuwin] val Undecodable = "\uFFFD"
}

/** The fields of an object, by the UTF-8 bytes of their names. */
private[gpuwin] final class JsonFields(names: Array[Array[Byte]], values: Array[JsonValue]) {
  private val length = names.length

  /** The row of the object that the text goes on with; null where it is for Spark's parser. */
  def read(text: JsonText): GenericInternalRow = {
    val row = new GenericInternalRow(length)
    if (!text.take('{')) return null
    if (text.take('}')) return row
    var next = 0 // most writers write all objects in the same order
    do {
      if (!text.string() || text.escaped) return null
      val found = find(text, next)
      if (!text.take(':')) return null
      if (found < 0) {
        if (!text.skipValue(JsonFields.Deepest)) return null
      } else {
        val value = values(found).orNull(text)
        if (value == null) return null
        row.update(found, JsonValue.stored(value))
        next = found + 1
      }
    } while (text.take(','))
    if (text.take('}')) row else null
  }

  /** The number of the field of the name that was just read, looked for from `next` on; -1 if there is none. */
  private def find(text: JsonText, next: Int): Int = {
    var i = 0
    while (i < length) {
      val at = if (next + i < length) next + i else next + i - length
      if (text.stringIs(names(at))) return at
      i += 1
    }
    -1
  }
}

private object JsonFields {
  /** Objects and arrays within each other that are skipped; Spark's parser has a limit, too, which is larger. */
  val Deepest = 32
}

/** The values of a type. */
private[gpuwin] trait JsonValue {
  /** The value that the text goes on with, which is not `null` in it; null where it is for Spark's parser. */
  def read(text: JsonText): AnyRef

  /** As `read`, of a value that may be `null` in the text: [[JsonValue.Null]] then. */
  final def orNull(text: JsonText): AnyRef = if (text.nullHere()) JsonValue.Null else read(text)
}

private[gpuwin] object JsonValue {
  val Null = new Object

  /** The value as it stands in a row. */
  def stored(value: AnyRef): AnyRef = if (value eq Null) null else value
}

private final class JsonStruct(fields: JsonFields) extends JsonValue {
  override def read(text: JsonText): AnyRef = fields.read(text)
}

private final class JsonArray(element: JsonValue) extends JsonValue {
  override def read(text: JsonText): AnyRef = {
    if (!text.take('[')) return null
    val elements = mutable.ArrayBuffer.empty[Any]
    if (!text.take(']')) {
      do {
        val value = element.orNull(text)
        if (value == null) return null
        elements += JsonValue.stored(value)
      } while (text.take(','))
      if (!text.take(']')) return null
    }
    new GenericArrayData(elements.toArray)
  }
}

/** A map by texts; of equal keys both stay, as in Spark. */
private final class JsonMap(value: JsonValue) extends JsonValue {
  override def read(text: JsonText): AnyRef = {
    if (!text.take('{')) return null
    val keys, values = mutable.ArrayBuffer.empty[Any]
    if (!text.take('}')) {
      do {
        val key = JsonString.read(text)
        if (key == null || !text.take(':')) return null
        val found = value.orNull(text)
        if (found == null) return null
        keys += key
        values += JsonValue.stored(found)
      } while (text.take(','))
      if (!text.take('}')) return null
    }
    ArrayBasedMapData(keys.toArray, values.toArray)
  }
}

private object JsonString extends JsonValue {
  override def read(text: JsonText): AnyRef =
    if (text.string() && !text.escaped && text.decodes) UTF8String.fromBytes(text.stringBytes) else null
}

private object JsonBoolean extends JsonValue {
  override def read(text: JsonText): AnyRef =
    if (text.literal(JsonText.True)) java.lang.Boolean.TRUE
    else if (text.literal(JsonText.False)) java.lang.Boolean.FALSE
    else null
}

private final class JsonWhole(least: Long, most: Long, box: Long => AnyRef) extends JsonValue {
  override def read(text: JsonText): AnyRef =
    if (text.number() && text.isWhole && text.digits <= JsonText.MostDigits && least <= text.signed &&
      text.signed <= most) box(text.signed)
    else null
}

private object JsonDouble extends JsonValue {
  /** Powers of ten that a double holds exactly. */
  private val Powers = Array.tabulate(23)(k => s"1e$k".toDouble)
  private val Exact = 1L << 53

  override def read(text: JsonText): AnyRef =
    if (!text.number() || (text.digits > JsonText.MostDigits && text.isWhole)) null
    else if (text.isWhole) { if (text.negative && text.unscaled == 0) null else Double.box(text.signed.toDouble) }
    else if (text.digits <= JsonText.MostDigits && text.unscaled <= Exact && math.abs(text.exponent) < Powers.length) {
      // Both are exact, so the one operation rounds once, as it should (Clinger 1990).
      val size = text.unscaled.toDouble
      val value = if (text.exponent < 0) size / Powers(-text.exponent) else size * Powers(text.exponent)
      Double.box(if (text.negative) -value else value)
    }
    else if (math.abs(text.exponent) <= 300) Double.box(NumberInput.parseDouble(text.numberText, true))
    else null
}

private object JsonFloat extends JsonValue {
  override def read(text: JsonText): AnyRef =
    if (!text.number() || (text.isWhole && (text.digits > JsonText.MostDigits || text.unscaled == 0))) null
    else if (text.isWhole) Float.box(text.signed.toFloat)
    else if (math.abs(text.exponent) <= 300) Float.box(text.numberText.toFloat)
    else null
}

private final class JsonDecimal(precision: Int, scale: Int) extends JsonValue {
  private val powers = Array.iterate(1L, 19)(_ * 10)

  override def read(text: JsonText): AnyRef = {
    if (!text.number() || text.digits > JsonText.MostDigits) return null
    val shift = text.exponent + scale // digits that the unscaled value gets
    if (shift < 0 || text.digits + shift > math.min(precision, JsonText.MostDigits)) null
    else Decimal(text.signed * powers(shift), precision, scale)
  }
}

/** A text that a function of Spark's reads, as Spark's parser does where no pattern is given. */
private final class JsonIso(read: UTF8String => Option[AnyRef]) extends JsonValue {
  override def read(text: JsonText): AnyRef =
    if (text.string() && !text.escaped && text.isAscii) read(UTF8String.fromBytes(text.stringBytes)).orNull else null
}

/** A timestamp in microseconds; `yyyy-mm-ddThh:mm:ss[.f]Z` is read here, other forms by Spark's function. */
private final class JsonTimestamp(zone: ZoneId) extends JsonValue {
  private val other = new JsonIso(DateTimeUtils.stringToTimestamp(_, zone).map(Long.box))

  override def read(text: JsonText): AnyRef = {
    val start = text.place
    if (!text.string()) return null
    val micros = text.instant()
    if (micros != JsonText.NoInstant) Long.box(micros)
    else {
      text.back(start)
      other.read(text)
    }
  }
}

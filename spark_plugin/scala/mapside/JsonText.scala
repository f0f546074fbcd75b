package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.{ISO_8859_1, UTF_8}
import java.time.YearMonth
import java.util.Arrays

/**
 * A JSON text in UTF-8 and a place in it, from which strings, numbers and literals are read. A method that reads
 * answers whether there was what it reads, and the place is behind it then. One text is read by one thread.
 */
private[gpuwin] final class JsonText(bytes: Array[Byte], begin: Int, end: Int) {
  private var at = begin
  private var from, until = 0 // of the last string, without its quotes, or the last number
  private var union = 0 // of the bits of the last string's bytes: negative where one is not ASCII
  private var sign = false

  /** Whether the last string has escapes. */
  var escaped = false

  /** The digits of the last number as a whole number, if they are `MostDigits` or fewer, and how many they are. */
  var unscaled = 0L
  var digits = 0

  /** The power of ten that the digits of the last number are to be multiplied by. */
  var exponent = 0

  /** Whether the last number has neither a point nor an exponent. */
  var isWhole = false

  def negative: Boolean = sign
  def signed: Long = if (sign) -unscaled else unscaled

  def place: Int = at
  def back(place: Int): Unit = at = place

  private def byte: Int = if (at < end) bytes(at) else 0

  def blanks(): Unit = while (at < end && JsonText.blank(bytes(at))) at += 1

  def blankToEnd(): Boolean = { blanks(); at == end }

  /** Reads this character, after blanks. */
  def take(character: Char): Boolean = {
    if (byte != character) blanks()
    val found = byte == character
    if (found) at += 1
    found
  }

  /** Reads this literal. What follows it is for the next method to see. */
  def literal(word: Array[Byte]): Boolean = {
    val found = byte == word(0) && end - at >= word.length &&
      Arrays.equals(bytes, at, at + word.length, word, 0, word.length)
    if (found) at += word.length
    found
  }

  /** Reads `null`, after blanks. */
  def nullHere(): Boolean = {
    blanks()
    literal(JsonText.Null)
  }

  // -- strings -------------------------------------------------------------------------------------------------------

  /** Reads a string, after blanks. */
  def string(): Boolean = {
    if (!take('"')) return false
    from = at
    union = 0
    escaped = false
    while (at < end) {
      val b = bytes(at)
      if (b == '"') {
        until = at
        at += 1
        return true
      }
      if (b == '\\') {
        if (!escape()) return false
      } else {
        if (b >= 0 && b < ' ') return false
        union |= b
        at += 1
      }
    }
    false
  }

  private def escape(): Boolean = {
    escaped = true
    at += 1
    val kind = byte
    at += 1
    if (kind == 'u') {
      val hex = end - at >= 4 && (at until at + 4).forall(i => Character.digit(bytes(i), 16) >= 0)
      at += 4
      hex
    } else JsonText.Escapes.indexOf(kind) >= 0
  }

  /** Whether the last string is this one. */
  def stringIs(name: Array[Byte]): Boolean = {
    val n = until - from
    if (n != name.length || escaped) return false
    var i = 0
    while (i < n && bytes(from + i) == name(i)) i += 1
    i == n
  }

  def isAscii: Boolean = union >= 0

  /** Whether the bytes of the last string are UTF-8. */
  def decodes: Boolean =
    isAscii || !new String(bytes, from, until - from, UTF_8).contains(JsonObjectReader.Undecodable)

  /** The bytes of the last string, a copy: the text may lie in memory that is written again. */
  def stringBytes: Array[Byte] = Arrays.copyOfRange(bytes, from, until)

  // -- numbers -------------------------------------------------------------------------------------------------------

  /** Reads a number. */
  def number(): Boolean = {
    from = at
    sign = byte == '-'
    if (sign) at += 1
    unscaled = 0
    digits = 0
    exponent = 0
    isWhole = true
    val first = at
    val leading = digitsHere()
    if (leading == 0 || (leading > 1 && bytes(first) == '0')) return false
    if (byte == '.') {
      isWhole = false
      at += 1
      val behind = digitsHere()
      if (behind == 0) return false
      exponent = -behind
    }
    if (byte == 'e' || byte == 'E') {
      isWhole = false
      if (!power()) return false
    }
    until = at
    until - from <= JsonText.LongestNumber
  }

  /** Reads digits; how many. Zeros at the beginning of a number do not count as its digits. */
  private def digitsHere(): Int = {
    val start = at
    var d = byte - '0'
    while (d >= 0 && d <= 9) {
      if (digits < JsonText.MostDigits) unscaled = unscaled * 10 + d
      if (digits > 0 || d > 0) digits += 1
      at += 1
      d = byte - '0'
    }
    at - start
  }

  private def power(): Boolean = {
    at += 1
    val down = byte == '-'
    if (down || byte == '+') at += 1
    val start = at
    var power = 0
    while (byte >= '0' && byte <= '9' && at - start < 4) {
      power = power * 10 + byte - '0'
      at += 1
    }
    exponent += (if (down) -power else power)
    at > start && (byte < '0' || byte > '9')
  }

  def numberText: String = new String(bytes, from, until - from, ISO_8859_1)

  // -- times ---------------------------------------------------------------------------------------------------------

  /** The last string, `yyyy-mm-ddThh:mm:ss[.f]Z` with at most six digits f, in microseconds; else `NoInstant`. */
  def instant(): Long = {
    val n = until - from
    if (n < 20 || n > 27 || bytes(until - 1) != 'Z' || bytes(from + 4) != '-' || bytes(from + 7) != '-' ||
      bytes(from + 10) != 'T' || bytes(from + 13) != ':' || bytes(from + 16) != ':') return JsonText.NoInstant
    val year = two(from) * 100 + two(from + 2)
    val month = two(from + 5)
    val day = two(from + 8)
    val hour = two(from + 11)
    val minute = two(from + 14)
    val second = two(from + 17)
    val fraction = micros(from + 19, until - 1)
    val isDate = year >= 1600 && month >= 1 && month <= 12 && day >= 1 &&
      (day <= 28 || day <= YearMonth.of(year, month).lengthOfMonth)
    if (isDate && hour >= 0 && hour <= 23 && minute >= 0 && minute <= 59 && second >= 0 && second <= 59 &&
      fraction >= 0) {
      ((JsonText.days(year, month, day) * 24 + hour) * 60 + minute) * 60000000L + second * 1000000L + fraction
    } else JsonText.NoInstant
  }

  /** The two digits from there; a large negative number if they are none. */
  private def two(i: Int): Int = {
    val (tens, ones) = (bytes(i) - '0', bytes(i + 1) - '0')
    if (tens < 0 || tens > 9 || ones < 0 || ones > 9) -100000 else tens * 10 + ones
  }

  /** The fraction of a second between these places, in microseconds; -1 if there is none. */
  private def micros(lo: Int, hi: Int): Int = {
    if (lo == hi) return 0
    if (bytes(lo) != '.' || hi - lo < 2 || hi - lo > 7) return -1
    var total = 0
    var i = lo + 1
    while (i < hi) {
      val d = bytes(i) - '0'
      if (d < 0 || d > 9) return -1
      total = total * 10 + d
      i += 1
    }
    while (i < lo + 7) {
      total *= 10
      i += 1
    }
    total
  }

  // -- values that no field takes ------------------------------------------------------------------------------------

  /** Reads a value, whatever it is, after blanks; false for objects and arrays deeper than that within each other. */
  def skipValue(deepest: Int): Boolean = {
    blanks()
    byte match {
      case '"' => string()
      case '{' => deepest > 0 && skipAll('{', '}', deepest)
      case '[' => deepest > 0 && skipAll('[', ']', deepest)
      case 't' => literal(JsonText.True)
      case 'f' => literal(JsonText.False)
      case 'n' => literal(JsonText.Null)
      case _ => number()
    }
  }

  private def skipAll(open: Char, close: Char, deepest: Int): Boolean = {
    if (!take(open)) return false
    if (take(close)) return true
    do {
      if (open == '{' && (!string() || !take(':'))) return false
      if (!skipValue(deepest - 1)) return false
    } while (take(','))
    take(close)
  }
}

private[gpuwin] object JsonText {
  val True: Array[Byte] = "true".getBytes(UTF_8)
  val False: Array[Byte] = "false".getBytes(UTF_8)
  val Null: Array[Byte] = "null".getBytes(UTF_8)

  /** What may follow a backslash, beside a u and four digits. */
  private val Escapes = "\"\\/bfnrt"

  /** Digits of a whole number that fits 64 bits, whichever they are. */
  val MostDigits = 18
  val LongestNumber = 64
  val NoInstant: Long = Long.MinValue

  private def blank(b: Byte): Boolean = b == ' ' || b == '\n' || b == '\r' || b == '\t'

  /** Days since 1970 in the proleptic Gregorian calendar. */
  private def days(year: Int, month: Int, day: Int): Long = {
    val y = if (month <= 2) year - 1 else year // years begin in March, so that a leap day is the last of one
    val m = if (month <= 2) month + 9 else month - 3
    y * 365L + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719468
  }
}

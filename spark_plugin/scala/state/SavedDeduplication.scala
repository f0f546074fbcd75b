package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.types._

/**
 * A deduplication of gpuwin as the file `_gpuwin` beside its state describes it. An entry of its log is the bytes of a
 * key in a row of Spark's, and the time in microseconds until which the key is remembered.
 *
 * @param within whether it is `dropDuplicatesWithinWatermark`
 * @param timeAt of `dropDuplicates`, the place of the event time among the keys
 */
final case class SavedDeduplication(within: Boolean, timeAt: Option[Int], keyTypes: Seq[DataType]) extends SavedLog {
  import SavedDeduplication._

  override def cellTypes: Seq[DataType] = Cell.map(_.dataType)
  override def placeAt: Int = 1
  override def partitioning(cell: Seq[Attribute]): Seq[Expression] = keysIn(cell.head)

  /** The keys, in the bytes of a row of them. */
  def keysIn(bytes: Expression): Seq[Expression] = {
    val row = AsType(bytes, keys)
    keyTypes.indices.map(GetStructField(row, _))
  }

  /** The columns of a value in Spark's store, of the time until which a key is remembered. */
  def valueOf(until: Expression): Seq[Expression] = Seq(if (within) until else Literal(null, NullType))

  /**
   * The state in Spark's stores, as rows of `Cell`. An earlier Spark took zeros of both signs for two keys; here they
   * are one, as of all rows that come.
   */
  def inSpark: SparkState = {
    val values = StructType(Seq(if (within) StructField("expiresAtMicros", LongType, nullable = false)
      else StructField("__dummy__", NullType)))
    val (isWithin, at, types) = (within, timeAt, keyTypes)
    SparkState(keys, values, 0, store => {
      val own = UnsafeProjection.create(types.zipWithIndex.map { case (t, i) =>
        NormalizeFloatingNumbers.normalize(BoundReference(i, t, nullable = true))
      })
      store.iterator().map { pair =>
        val until =
          if (isWithin) pair.value.getLong(0)
          else at.filterNot(pair.key.isNullAt).fold(Long.MaxValue)(i => types(i) match {
            case window: StructType => pair.key.getStruct(i, window.length).getLong(1)
            case _ => pair.key.getLong(i)
          })
        InternalRow(own(pair.key).getBytes, until)
      }
    })
  }

  private def keys = StructType(keyTypes.zipWithIndex.map { case (t, i) => StructField(s"c$i", t) })
}

object SavedDeduplication {
  /** The columns of an entry. */
  val Cell: Seq[Attribute] = Seq(AttributeReference("key", BinaryType, nullable = false)(),
    AttributeReference("until", LongType, nullable = false)())
  private val Line =
    raw"format 1; deduplication (within the watermark|for ever|by event time, key (\d+)); keys \((.*)\)".r

  def of(d: Deduplication): SavedDeduplication =
    SavedDeduplication(d.spec.delayMs.isDefined, d.timeAt, d.keys.map(_.dataType))

  /** What a file describes, if it is of a deduplication; or why its types cannot be read. */
  def parse(text: String): Option[Either[String, SavedDeduplication]] = text.takeWhile(_ != '\n') match {
    case Line(kind, at, types) => Some(SavedOperator.types(types).map(
      SavedDeduplication(kind.startsWith("within"), Option(at).map(_.toInt), _)))
    case _ => None
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.catalyst.util.CharVarcharUtils
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame}
import org.apache.spark.sql.types._
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * A deduplication of gpuwin as the file `_gpuwin` beside its state describes it. An entry of its log is the bytes of a
 * key in a row of Spark's, and the time in microseconds until which the key is remembered.
 *
 * @param within   whether it is `dropDuplicatesWithinWatermark`
 * @param timeAt   of `dropDuplicates`, the place of the event time among the keys
 * @param keyNames names of the keys when the checkpoint was begun
 * @param timeType type of the event time
 */
final case class SavedDeduplication(within: Boolean, timeAt: Option[Int], keyTypes: Seq[DataType],
    keyNames: Seq[String], timeType: DataType) extends SavedLog {
  import SavedDeduplication._

  override def cellTypes: Seq[DataType] = Cell.map(_.dataType)
  override def placeAt: Int = 1

  /** For how long it remembers a key, in words. */
  def describe: String = s"deduplication ${kindOf(within, timeAt.map(keyNames))}"
  override def partitioning(cell: Seq[Attribute]): Seq[Expression] = keysIn(cell.head)

  /** The keys, in the bytes of a row of them. */
  def keysIn(bytes: Expression): Seq[Expression] = {
    val row = AsType(bytes, CharVarcharUtils.replaceCharVarcharWithStringInSchema(keys))
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
    SavedDeduplication(d.spec.delayMs.isDefined, d.timeAt, d.keyTypes, d.spec.keys, d.timeType)

  private def kindOf(within: Boolean, time: Option[String]): String =
    if (within) "within the watermark" else time.fold("for ever")(key => s"by event time, key $key")

  /** The text from which `parse` makes it again. The first line says whether a query may go on with the state. */
  def text(d: SavedDeduplication): String = {
    val names = JsonMethods.compact(JObject("keys" -> JArray(d.keyNames.map(JString(_)).toList),
      "time" -> JString(d.timeType.simpleString)))
    s"format 1; deduplication ${kindOf(d.within, d.timeAt.map(_.toString))}; keys (${
      d.keyTypes.map(SavedOperator.typeText).mkString(", ")})\nkeys ${d.keyNames.mkString(", ")}\n$names"
  }

  /** The entries of its log that are not forgotten. */
  def remembered(logged: ClassicDataFrame): ClassicDataFrame = logged.where("through IS NULL OR c1 > through")

  /** What a file describes, if it is of a deduplication; or why its types cannot be read. */
  def parse(text: String): Option[Either[String, SavedDeduplication]] = text.takeWhile(_ != '\n') match {
    case Line(kind, at, types) => Some(SavedOperator.types(types).map(found =>
      SavedDeduplication(kind.startsWith("within"), Option(at).map(_.toInt), found,
        SavedOperator.keyNamesIn(text, found.length), SavedOperator.timeTypeIn(text))))
    case _ => None
  }
}

package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec
import org.apache.spark.sql.execution.vectorized.WritableColumnVector
import org.apache.spark.sql.types.IntegerType
import org.apache.spark.sql.vectorized.{ColumnarBatch, ColumnVector}

/**
 * The ids of a column of strings in the dictionary of its Parquet file, as one more column. What is computed of a
 * string is then computed once for each string of the dictionary ([[DictionaryTexts]]), not once a row.
 *
 * An id is -1 where the file has the string itself, and null where the string is.
 */
case class DictionaryIdsExec(text: Attribute, ids: Attribute, child: SparkPlan) extends UnaryExecNode {
  override def nodeName: String = "DictionaryIds"
  override def simpleString(maxFields: Int): String = s"DictionaryIds [$text]"
  override def output: Seq[Attribute] = child.output :+ ids
  override def producedAttributes: AttributeSet = AttributeSet(Seq(ids))
  override def supportsColumnar: Boolean = true
  override def vectorTypes: Option[Seq[String]] = child.vectorTypes.map(_ :+ classOf[DictionaryIdVector].getName)
  override protected def withNewChildInternal(newChild: SparkPlan): DictionaryIdsExec = copy(child = newChild)

  override protected def doExecute(): RDD[InternalRow] =
    throw new GpuWindowException("The ids of a dictionary come in columns, and were asked for in rows.")

  override protected def doExecuteColumnar(): RDD[ColumnarBatch] = {
    val at = child.output.indexWhere(_.exprId == text.exprId)
    val id = ids.exprId
    child.executeColumnar().mapPartitionsInternal { batches =>
      val texts = DictionaryTexts.ofTask(id)
      batches.map { batch =>
        val columns = Array.tabulate(batch.numCols)(batch.column)
        new ColumnarBatch(columns :+ DictionaryIdVector.of(columns(at), texts), batch.numRows)
      }
    }
  }
}

object DictionaryIdsExec {
  /**
   * The plan with the ids of one of its columns as its last one, where this comes unchanged from a Parquet file that is
   * read in columns.
   */
  def above(plan: SparkPlan, text: Attribute): Option[(SparkPlan, Attribute)] = {
    val ids = AttributeReference("ids", IntegerType, text.nullable)()
    within(plan, text, ids).map(_ -> ids)
  }

  private def within(plan: SparkPlan, text: Attribute, ids: Attribute): Option[SparkPlan] = plan match {
    case p: ProjectExec =>
      for {
        below <- p.projectList.collectFirst {
          case a: AttributeReference if a.exprId == text.exprId => a
          case named @ Alias(a: AttributeReference, _) if named.exprId == text.exprId => a
        }
        child <- within(p.child, below, ids)
      } yield p.copy(projectList = p.projectList :+ ids, child = child)
    case f: FilterExec => within(f.child, text, ids).map(child => f.copy(child = child))
    case w: EventTimeWatermarkExec => within(w.child, text, ids).map(child => w.withNewChildren(Seq(child)))
    case scan: FileSourceScanExec =>
      val isParquet = scan.relation.fileFormat.isInstanceOf[ParquetFileFormat]
      val has = isParquet && scan.supportsColumnar && scan.output.exists(_.exprId == text.exprId)
      if (has) Some(DictionaryIdsExec(text, ids, scan)) else None
    case _ => None
  }
}

/** The ids of the strings of a vector; -1 for all of them where it has no dictionary. */
private final class DictionaryIdVector(text: ColumnVector, ids: WritableColumnVector)
  extends DerivedColumn(IntegerType) {
  override def hasNull: Boolean = text.hasNull
  override def numNulls(): Int = text.numNulls()
  override def isNullAt(rowId: Int): Boolean = text.isNullAt(rowId)
  override def getInt(rowId: Int): Int = if (ids == null) -1 else ids.getDictId(rowId)
}

private object DictionaryIdVector {
  // Spark makes a dictionary of its own for each batch, around Parquet's, which is that of a column chunk.
  private val sparks = classOf[WritableColumnVector].getDeclaredField("dictionary")
  private val parquets =
    Class.forName("org.apache.spark.sql.execution.datasources.parquet.ParquetDictionary").getDeclaredField("dictionary")
  sparks.setAccessible(true)
  parquets.setAccessible(true)

  /** The ids of a batch. `texts` are from now on those of its dictionary. */
  def of(text: ColumnVector, texts: DictionaryTexts): DictionaryIdVector = text match {
    case v: WritableColumnVector if v.hasDictionary && parquets.getDeclaringClass.isInstance(sparks.get(v)) =>
      texts.areOf(parquets.get(sparks.get(v)))
      new DictionaryIdVector(v, v.getDictionaryIds)
    case other => new DictionaryIdVector(other, null)
  }
}

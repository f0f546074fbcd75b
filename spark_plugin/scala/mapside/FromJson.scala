package org.apache.spark.sql.gpuwin

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, JsonToStructs, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, CodeGenerator, ExprCode}
import org.apache.spark.sql.catalyst.expressions.codegen.Block._
import org.apache.spark.sql.execution.{FilterExec, ProjectExec, SparkPlan}
import org.apache.spark.sql.internal.{LegacyBehaviorPolicy, SQLConf}
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Spark's `from_json`, for which a [[JsonObjectReader]] reads the objects that it can, and Spark's own parser all other
 * texts. Below an aggregation over JSON from a broker that parser is most of what a row costs.
 */
case class FromJson(parser: JsonToStructs) extends UnaryExpression {
  @transient private lazy val reader: JsonObjectReader = FromJson.readerOf(parser).get

  override def child: Expression = parser.child
  override def dataType: DataType = parser.dataType
  override def nullable: Boolean = true
  override def stateful: Boolean = parser.stateful
  override def prettyName: String = "gpuwin_from_json"

  override protected def nullSafeEval(text: Any): Any = row(text.asInstanceOf[UTF8String])

  /** The row of a text; null where Spark's parser gives none. */
  def row(text: UTF8String): InternalRow = {
    val read = text.getBaseObject match {
      case bytes: Array[Byte] =>
        reader.read(bytes, (text.getBaseOffset - Platform.BYTE_ARRAY_OFFSET).toInt, text.numBytes)
      case _ => reader.read(text.getBytes, 0, text.numBytes)
    }
    if (read != null) read else parser.nullSafeEval(text).asInstanceOf[InternalRow]
  }

  override protected def doGenCode(ctx: CodegenContext, ev: ExprCode): ExprCode = {
    val self = ctx.addReferenceObj("fromJson", this)
    val text = child.genCode(ctx)
    val row = CodeGenerator.javaType(dataType)
    ev.copy(code = code"""
      ${text.code}
      $row ${ev.value} = ${text.isNull} ? null : ($row) $self.row(${text.value});
      boolean ${ev.isNull} = ${ev.value} == null;
    """)
  }

  override protected def withNewChildInternal(newChild: Expression): FromJson =
    copy(parser = parser.withNewChildren(Seq(newChild)).asInstanceOf[JsonToStructs])
}

object FromJson {
  /**
   * The plan of an operator, with FromJson in the place of each `from_json` below it, where that is wanted and
   * possible. Those within the functions of Spark's own aggregates stay: a function that is changed has other buffers.
   */
  def below(operator: SparkPlan, conf: SQLConf): SparkPlan =
    if (!GpuWindowConf.get(conf, GpuWindowConf.Json).toBoolean ||
      conf.legacyTimeParserPolicy == LegacyBehaviorPolicy.LEGACY) operator
    else operator.transformUp {
      case rows @ (_: ProjectExec | _: FilterExec) => rows.transformExpressions {
        case parser: JsonToStructs if readerOf(parser).isDefined && !keepsCorrupt(parser, conf) => FromJson(parser)
      }
    }

  /** None where its options, or a type of its schema, are for Spark's parser alone. */
  private def readerOf(parser: JsonToStructs): Option[JsonObjectReader] = parser.dataType match {
    case schema: StructType if parser.options.isEmpty => JsonObjectReader.of(schema, parser.zoneId)
    case _ => None
  }

  /** Whether a column is for the texts that could not be parsed. */
  private def keepsCorrupt(parser: JsonToStructs, conf: SQLConf): Boolean = parser.dataType match {
    case schema: StructType => schema.fieldNames.contains(conf.columnNameOfCorruptRecord)
    case _ => false
  }
}

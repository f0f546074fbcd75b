package org.apache.spark.sql.gpuwin

import java.io.{ByteArrayInputStream, ByteArrayOutputStream}
import java.nio.channels.Channels

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.{FieldVector, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.arrow.vector.types.pojo.Field
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.gpuwin.shims.ArrowSchema
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarArray, ColumnarBatch, ColumnarMap, ColumnVector}
import org.apache.spark.unsafe.types.UTF8String

/** Rows into Arrow streams of one batch each, which go over the socket and, unchanged, into the state log. */
class ArrowChunkWriter(schema: StructType, maxRows: Int, maxBytes: Long, allocator: BufferAllocator)
  extends AutoCloseable {
  private val root = VectorSchemaRoot.create(ArrowSchema.of(schema), allocator)
  private val writer = ArrowWriter.create(root)
  private val CheckEvery = 1024

  /** The next chunk of at most `maxRows` rows, and the number of rows in it; `each` is called with every row. */
  def next(rows: Iterator[InternalRow], each: InternalRow => Unit): (Array[Byte], Int) = {
    var n = 0
    while (n < maxRows && rows.hasNext && (n % CheckEvery != 0 || n == 0 || bytes(n) < maxBytes)) {
      val row = rows.next()
      each(row)
      writer.write(row)
      n += 1
    }
    writer.finish()
    val out = new ByteArrayOutputStream(1 << 16)
    val stream = new ArrowStreamWriter(root, null, Channels.newChannel(out))
    stream.start()
    stream.writeBatch()
    stream.end()
    writer.reset()
    (out.toByteArray, n)
  }

  /** The bytes of the first rows, which are as many as were written. */
  private def bytes(rows: Int): Long = root.getFieldVectors.asScala.map { vector =>
    vector.setValueCount(rows) // without it the offsets are not filled in
    vector.getBufferSizeFor(rows).toLong
  }.sum

  override def close(): Unit = root.close()
}

/** Arrow streams from the service into Spark's columnar batches; `arrange` puts the columns in Spark's order. */
class ArrowChunkReader(allocator: BufferAllocator, arrange: Seq[ColumnVector] => Seq[ColumnVector]) {

  /** The batches of one Arrow stream. Each is valid until the next is asked for. */
  def read(bytes: Array[Byte]): Iterator[ColumnarBatch] with AutoCloseable =
    new Iterator[ColumnarBatch] with AutoCloseable {
      private val reader = new ArrowStreamReader(new ByteArrayInputStream(bytes), allocator)
      private var loaded = false
      private var closed = false
      override def hasNext: Boolean = {
        if (!loaded && !closed) { loaded = reader.loadNextBatch(); if (!loaded) close() }
        loaded
      }
      override def next(): ColumnarBatch = {
        if (!hasNext) throw new NoSuchElementException
        loaded = false
        val root = reader.getVectorSchemaRoot
        val columns = root.getSchema.getFields.asScala.zip(root.getFieldVectors.asScala)
          .map { case (field, vector) => NarrowedColumn.read(field, vector) }.toSeq
        new ColumnarBatch(arrange(columns).toArray, root.getRowCount)
      }
      override def close(): Unit = if (!closed) { closed = true; reader.close(false) }
    }
}

/**
 * Tables of windows. Their columns are the keys, the start and end of the window as longs, and the buffers. Spark takes
 * the window as one struct, or where windows are instants the instant, at its place among the keys.
 */
object WindowChunks {
  def reader(spec: WindowSpec, windowAt: Int, allocator: BufferAllocator): ArrowChunkReader =
    new ArrowChunkReader(allocator, { columns =>
      val (start, end) = (columns(spec.keyCount), columns(spec.keyCount + 1))
      val window = if (spec.window == InstantShape) new InstantColumn(end) else new WindowColumn(start, end)
      columns.take(spec.keyCount).patch(windowAt, Seq(window), 0) ++ columns.drop(spec.keyCount + 2)
    })
}

/** A column made of others, which Spark closes. */
private abstract class DerivedColumn(dataType: DataType) extends ColumnVector(dataType) {
  private def notHere = throw new UnsupportedOperationException(s"a ${dataType.simpleString} has no such value")
  override def close(): Unit = ()
  override def getChild(ordinal: Int): ColumnVector = notHere
  override def getLong(rowId: Int): Long = notHere
  override def getBoolean(rowId: Int): Boolean = notHere
  override def getByte(rowId: Int): Byte = notHere
  override def getShort(rowId: Int): Short = notHere
  override def getInt(rowId: Int): Int = notHere
  override def getFloat(rowId: Int): Float = notHere
  override def getDouble(rowId: Int): Double = notHere
  override def getArray(rowId: Int): ColumnarArray = notHere
  override def getMap(rowId: Int): ColumnarMap = notHere
  override def getDecimal(rowId: Int, precision: Int, scale: Int): Decimal = notHere
  override def getUTF8String(rowId: Int): UTF8String = notHere
  override def getBinary(rowId: Int): Array[Byte] = notHere
}

/**
 * A column of integers that was narrowed: its values are `base + unit * v`. The service's `narrow.py` makes them.
 * Each type of `v` has a class of its own, so that no value is looked up by its type.
 */
private abstract class NarrowedColumn(dataType: DataType) extends DerivedColumn(dataType) {
  override def hasNull: Boolean = false
  override def numNulls(): Int = 0
  override def isNullAt(rowId: Int): Boolean = false
  override def getInt(rowId: Int): Int = getLong(rowId).toInt
  override def getShort(rowId: Int): Short = getLong(rowId).toShort
  override def getByte(rowId: Int): Byte = getLong(rowId).toByte
}

private object NarrowedColumn {
  private val Types = Map("int64" -> LongType, "int32" -> IntegerType, "int16" -> ShortType, "int8" -> ByteType)

  /** The values of a vector, as they were before they were narrowed; a vector of nulls does not know its field. */
  def read(field: Field, vector: FieldVector): ColumnVector = {
    val (column, said) = (new ArrowColumnVector(vector), field.getMetadata)
    if (!said.containsKey("gpuwin.base")) column
    else {
      val (base, unit) = (said.get("gpuwin.base").toLong, said.get("gpuwin.unit").toLong)
      val dataType = Types(said.get("gpuwin.type"))
      column.dataType match {
        case ByteType => new NarrowedColumn(dataType) {
          override def getLong(rowId: Int): Long = base + unit * column.getByte(rowId)
        }
        case ShortType => new NarrowedColumn(dataType) {
          override def getLong(rowId: Int): Long = base + unit * column.getShort(rowId)
        }
        case IntegerType => new NarrowedColumn(dataType) {
          override def getLong(rowId: Int): Long = base + unit * column.getInt(rowId)
        }
        case _ => new NarrowedColumn(dataType) { // of equal values, which has no `v`
          override def getLong(rowId: Int): Long = base
        }
      }
    }
  }
}

/** A struct of two columns of longs. */
private class WindowColumn(start: ColumnVector, end: ColumnVector)
  extends DerivedColumn(StructType.fromDDL("start TIMESTAMP, end TIMESTAMP")) {
  override def hasNull: Boolean = false
  override def numNulls(): Int = 0
  override def isNullAt(rowId: Int): Boolean = false
  override def getChild(ordinal: Int): ColumnVector = if (ordinal == 0) start else end
}

/** The instant at the end of a window of a microsecond; see [[EventTimeColumn]]. */
private class InstantColumn(end: ColumnVector) extends DerivedColumn(TimestampType) {
  override def hasNull: Boolean = true // not looked for
  override def numNulls(): Int = 0
  override def isNullAt(rowId: Int): Boolean = end.getLong(rowId) == EventTimeColumn.NoTime
  override def getLong(rowId: Int): Long = end.getLong(rowId)
}

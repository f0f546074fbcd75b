package org.apache.spark.sql.gpuwin

import java.io.{ByteArrayInputStream, ByteArrayOutputStream}
import java.nio.channels.Channels

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector._
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.arrow.vector.types.pojo.Field
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.gpuwin.shims.ArrowSchema
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarArray, ColumnarBatch, ColumnarMap, ColumnVector}
import org.apache.spark.unsafe.Platform
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
    var about = 0L // bytes of the rows, by those of Spark's: the vectors are asked now and then
    var looked = 0
    def isFull: Boolean = (about >= maxBytes || n - looked == CheckEvery) && {
      about = bytes(n)
      looked = n
      about >= maxBytes
    }
    while (n < maxRows && rows.hasNext && !isFull) {
      val row = rows.next()
      each(row)
      writer.write(row)
      row match {
        case unsafe: UnsafeRow => about += unsafe.getSizeInBytes
        case _ => // looked at with the others
      }
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
  /** Room for the values of each column that was narrowed, for one batch after another. */
  private val room = mutable.Map.empty[Int, Array[Long]]

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
        val columns = root.getSchema.getFields.asScala.zip(root.getFieldVectors.asScala).zipWithIndex
          .map { case ((field, vector), i) => column(field, vector, i) }.toSeq
        new ColumnarBatch(arrange(columns).toArray, root.getRowCount)
      }
      override def close(): Unit = if (!closed) { closed = true; reader.close(false) }
    }

  private def column(field: Field, vector: FieldVector, at: Int): ColumnVector =
    if (!WidenedColumn.isNarrow(field)) new ArrowColumnVector(vector)
    else {
      if (!room.get(at).exists(_.length >= vector.getValueCount)) room(at) = new Array[Long](vector.getValueCount)
      WidenedColumn.read(field, vector, room(at))
    }
}

/**
 * Tables of windows. Their columns are the keys, the start and end of the window as longs, and the buffers. Spark takes
 * the window as one struct, or where windows are instants the instant, at its place among the keys; without a window
 * nothing.
 */
object WindowChunks {
  def reader(spec: WindowSpec, windowAt: Option[Int], allocator: BufferAllocator): ArrowChunkReader =
    new ArrowChunkReader(allocator, { columns =>
      val (start, end) = (columns(spec.keyCount), columns(spec.keyCount + 1))
      val keys = windowAt.foldLeft(columns.take(spec.keyCount)) { (keys, at) =>
        val window = if (spec.window == InstantShape) new InstantColumn(end) else new WindowColumn(start, end)
        keys.patch(at, Seq(window), 0)
      }
      keys ++ columns.drop(spec.keyCount + 2)
    })
}

/** A column made of others, which Spark closes. */
private[gpuwin] abstract class DerivedColumn(dataType: DataType) extends ColumnVector(dataType) {
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
 * A column of integers that was narrowed: its values are `base + step * v`. The service's `narrow.py` makes them. They
 * are widened at once, in a loop for each type of `v`: this class is all that the code sees that reads windows.
 */
private final class WidenedColumn(dataType: DataType, values: Array[Long]) extends DerivedColumn(dataType) {
  override def hasNull: Boolean = false
  override def numNulls(): Int = 0
  override def isNullAt(rowId: Int): Boolean = false
  override def getLong(rowId: Int): Long = values(rowId)
  override def getInt(rowId: Int): Int = values(rowId).toInt
  override def getShort(rowId: Int): Short = values(rowId).toShort
  override def getByte(rowId: Int): Byte = values(rowId).toByte
}

private object WidenedColumn {
  private val Types = Map("int64" -> LongType, "int32" -> IntegerType, "int16" -> ShortType, "int8" -> ByteType)

  def isNarrow(field: Field): Boolean = field.getMetadata.containsKey("gpuwin.base")

  /** The values of a vector as they were before they were narrowed, in `values`, which has room for them. */
  def read(field: Field, vector: FieldVector, values: Array[Long]): WidenedColumn = {
    val (said, n) = (field.getMetadata, vector.getValueCount)
    val (base, step) = (said.get("gpuwin.base").toLong, said.get("gpuwin.unit").toLong)
    var i = 0
    vector match {
      case v: TinyIntVector =>
        val at = v.getDataBuffer.memoryAddress
        while (i < n) { values(i) = base + step * Platform.getByte(null, at + i); i += 1 }
      case v: SmallIntVector =>
        val at = v.getDataBuffer.memoryAddress
        while (i < n) { values(i) = base + step * Platform.getShort(null, at + 2L * i); i += 1 }
      case v: IntVector =>
        val at = v.getDataBuffer.memoryAddress
        while (i < n) { values(i) = base + step * Platform.getInt(null, at + 4L * i); i += 1 }
      case _: NullVector => java.util.Arrays.fill(values, 0, n, base) // of equal values, which have no `v`
      case other => throw new GpuWindowException(s"A column that was narrowed came as a ${other.getClass.getName}.")
    }
    new WidenedColumn(Types(said.get("gpuwin.type")), values)
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

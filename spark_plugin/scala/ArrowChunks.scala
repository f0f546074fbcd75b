package org.apache.spark.sql.gpuwin

import java.io.{ByteArrayInputStream, ByteArrayOutputStream}
import java.nio.channels.Channels

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.types.{Decimal, StructType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarArray, ColumnarBatch, ColumnarMap, ColumnVector}
import org.apache.spark.unsafe.types.UTF8String

/** Rows into Arrow streams of one batch each: what goes over the socket and, unchanged, into the state log. */
class ArrowChunkWriter(schema: StructType, maxRows: Int, maxBytes: Long, allocator: BufferAllocator) extends AutoCloseable {
  private val root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, "UTC", true, false, false), allocator)
  private val writer = ArrowWriter.create(root)
  private val CheckEvery = 1024

  /** The next chunk of at most `maxRows` rows, and how many it holds; `each` sees every row. */
  def next(rows: Iterator[InternalRow], each: InternalRow => Unit): (Array[Byte], Int) = {
    var n = 0
    while (n < maxRows && rows.hasNext && (n % CheckEvery != 0 || n == 0 || writer.sizeInBytes() < maxBytes)) {
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
        val columns = root.getFieldVectors.asScala.map(v => new ArrowColumnVector(v): ColumnVector).toSeq
        new ColumnarBatch(arrange(columns).toArray, root.getRowCount)
      }
      override def close(): Unit = if (!closed) { closed = true; reader.close(false) }
    }
}

/**
 * Tables of windows. Their columns are the keys, the start and end of the window as longs, and the buffers; Spark wants
 * the window as one struct, at its place among the keys.
 */
object WindowChunks {
  def reader(keyCount: Int, windowAt: Int, allocator: BufferAllocator): ArrowChunkReader =
    new ArrowChunkReader(allocator, { columns =>
      val window = new WindowColumn(columns(keyCount), columns(keyCount + 1))
      columns.take(keyCount).patch(windowAt, Seq(window), 0) ++ columns.drop(keyCount + 2)
    })
}

/** A struct of two columns of longs. */
private class WindowColumn(start: ColumnVector, end: ColumnVector)
  extends ColumnVector(StructType.fromDDL("start TIMESTAMP, end TIMESTAMP")) {
  override def close(): Unit = ()
  override def hasNull: Boolean = false
  override def numNulls(): Int = 0
  override def isNullAt(rowId: Int): Boolean = false
  override def getChild(ordinal: Int): ColumnVector = if (ordinal == 0) start else end

  private def notScalar = throw new UnsupportedOperationException("a window is a struct")
  override def getBoolean(rowId: Int): Boolean = notScalar
  override def getByte(rowId: Int): Byte = notScalar
  override def getShort(rowId: Int): Short = notScalar
  override def getInt(rowId: Int): Int = notScalar
  override def getLong(rowId: Int): Long = notScalar
  override def getFloat(rowId: Int): Float = notScalar
  override def getDouble(rowId: Int): Double = notScalar
  override def getArray(rowId: Int): ColumnarArray = notScalar
  override def getMap(rowId: Int): ColumnarMap = notScalar
  override def getDecimal(rowId: Int, precision: Int, scale: Int): Decimal = notScalar
  override def getUTF8String(rowId: Int): UTF8String = notScalar
  override def getBinary(rowId: Int): Array[Byte] = notScalar
}

package org.apache.spark.sql.gpuwin

import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel

import scala.collection.mutable
import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.{IntVector, VarCharVector, VectorSchemaRoot}
import org.apache.arrow.vector.dictionary.{Dictionary, DictionaryProvider}
import org.apache.arrow.vector.ipc.ArrowStreamWriter
import org.apache.arrow.vector.types.pojo.{ArrowType, DictionaryEncoding, Field, FieldType, Schema}
import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.gpuwin.shims.ArrowSchema
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils
import org.json4s._

/**
 * The rows of one task of a [[DeviceCellsExec]], on their way through the device service.
 *
 * Rows fill a chunk of columns, which is sent when it is full, so that the service reads it while the next one is
 * filled. A part ends when its chunks hold `spark.gpuwin.mapside.bytes`: the service answers with cells, which are sent
 * along with the next part, and come back merged with it. Once the cells of a task are as many bytes, they are handed
 * on, and the next part begins with none.
 *
 * What was sent is kept until it is answered. So a service that dies is started again and gets it all once more; it
 * keeps nothing for a task, and neither does the disk: what a task that fails leaves behind is a closed connection.
 *
 * @param rows the columns of a row as it is sent
 */
final class RowsToCells(work: CellsWork, rows: StructType, metrics: Map[String, SQLMetric]) {
  import ServiceConnection._

  private implicit val formats: Formats = DefaultFormats
  private val settings = work.settings
  private val context = TaskContext.get()
  private val gpu = DeviceService.gpuOf(context, context.partitionId())
  private val retries = new ServiceRetries(settings, gpu, work.functions)
  private val allocator = ArrowUtils.rootAllocator.newChildAllocator(
    s"gpuwin map side, partition ${context.partitionId()}", 0, Long.MaxValue)
  private val chunk = new RowChunk(rows, work.coded, allocator)
  context.addTaskCompletionListener[Unit] { _ => release() }

  /** The number of the micro-batch, or of none. */
  private val batch = Option(context.getLocalProperty(RowsToCells.BatchId)).fold(-1L)(_.toLong)

  private val out = mutable.Queue.empty[Payload]
  private var connection: ServiceConnection = _

  private val (endAt, lateUpto) = work.late.fold((-1, Long.MinValue))(l => (l.at, l.upto))

  /** Chunks of this part, and how many of them were sent. */
  private val chunks = ArrayBuffer.empty[StreamBytes]
  private var sent = 0
  /** Whether the service has the head of this part. */
  private var begun = false
  /** Cells of the parts before. */
  private var held: Seq[Payload] = Nil

  def column(at: Int): RowColumn = chunk.columns(at)

  /** Whether a row is late by its own session. It is then counted, and not appended. */
  def isLate(end: Long): Boolean = end <= lateUpto && { count(DropsLateRows.Metric, 1); true }

  /** A row was appended to all columns. */
  def rowCame(): Unit = if (chunk.isFull(settings.chunkBytes)) cut()

  /** All rows have come. */
  def finish(): Unit = {
    if (chunk.isEmpty) { if (chunks.nonEmpty) endPart() } else { take(); endPart() }
    handOn()
    if (connection != null) {
      count("gpuwinBytesToDevice", connection.bytesSent)
      DeviceService.giveBack(connection, gpu)
      connection = null
    }
    count("gpuwinServiceRestarts", retries.restarts)
  }

  def ready: Boolean = out.nonEmpty

  /** A row that is ready. */
  def next(): UnsafeRow = {
    count("numOutputRows", 1)
    val payload = out.dequeue()
    Payload.row(work.tags(payload.partition), payload)
  }

  /** The rows that leave, of those that come. */
  def of(rows: Iterator[InternalRow]): Iterator[InternalRow] = new Iterator[InternalRow] {
    private var over = false

    override def hasNext: Boolean = {
      while (!ready && rows.hasNext) {
        val came = rows.next()
        if (endAt < 0 || !isLate(came.getLong(endAt))) {
          chunk.append(came)
          rowCame()
        }
      }
      if (!ready && !over) { over = true; finish() }
      ready
    }

    override def next(): InternalRow = if (hasNext) RowsToCells.this.next() else throw new NoSuchElementException
  }

  private def cut(): Unit = {
    take()
    if (chunks.map(_.length).sum >= settings.mapSideBytes) {
      endPart()
      if (held.map(_.bytes.length.toLong).sum >= settings.mapSideBytes) handOn()
    } else retries(attempt(send()))
  }

  private def take(): Unit = {
    count("gpuwinRowsIn", chunk.rows)
    chunks += chunk.take()
  }

  private def handOn(): Unit = {
    count("gpuwinCellsOut", held.map(_.cells).sum)
    out ++= held
    held = Nil
  }

  private def endPart(): Unit = {
    held = retries(attempt {
      send()
      FailPoint.reach(FailPoint.MidRows, batch)
      answer()
    })
    FailPoint.reach(FailPoint.AfterCells, batch)
    discard()
    begun = false
    count("gpuwinParts", 1)
  }

  /** A step after which, where the service was lost in it, the next one begins the part again. */
  private def attempt[A](step: => A): A =
    try step
    catch { case e: ServiceLostException => drop(); throw e }

  private def send(): Unit = {
    if (connection == null) connection = DeviceService.connect(settings, gpu, None)
    if (!begun) begin()
    while (sent < chunks.length) { connection.send(Cells, chunks(sent).bytes); sent += 1 }
    connection.flush()
  }

  private def begin(): Unit = {
    FailPoint.reach(FailPoint.BeforeRows, batch)
    connection.sendJson(Aggregate,
      "spec" -> work.spec.json,
      "places" -> JArray(work.places.map(p => JInt(p)).toList),
      "partitions" -> JInt(work.partitions),
      "hashed" -> JArray(DistinctHash.places(work.functions).map { case (first, words) =>
        JArray(List(JInt(first), JInt(words)))
      }.toList),
      "held" -> JArray(held.map(p => JArray(List(JInt(p.partition), JInt(1)))).toList),
      "rows" -> JInt(settings.chunkRows),
      "bytes" -> JLong(settings.chunkBytes),
      "device" -> JString(settings.device))
    if (work.constants.nonEmpty) connection.send(Cells, constants)
    held.foreach(p => connection.send(Cells, p.bytes))
    begun = true
    sent = 0
  }

  private lazy val constants: Array[Byte] = {
    val schema = WireType.schema(work.constants.map(_.dataType))
    val writer = new ArrowChunkWriter(schema, maxRows = 1, settings.chunkBytes, allocator)
    try writer.next(Iterator(InternalRow.fromSeq(work.constants.map(_.value))), _ => ())._1 finally writer.close()
  }

  private def answer(): Seq[Payload] = {
    connection.sendJson(End)
    connection.flush()
    val (cells, said) = connection.receiveAnswer()
    count("gpuwinDeviceTimeMs", (said \ "device_ms").extract[Long])
    count("gpuwinPartsOnCuda", (said \ "on_cuda").extract[Long])
    (said \ "parts").extract[Seq[Seq[Long]]].zip(cells).map { case (Seq(partition, count, last), bytes) =>
      Payload(partition.toInt, bytes, count, last)
    }
  }

  private def count(metric: String, n: Long): Unit = metrics(metric) += n

  private def drop(): Unit = {
    if (connection != null) { connection.close(); connection = null }
    begun = false
  }

  /** Ends the chunks of a part that was answered. */
  private def discard(): Unit = {
    chunks.foreach(_.release())
    chunks.clear()
  }

  private def release(): Unit = {
    drop()
    discard()
    chunk.close()
    allocator.close()
  }
}

private object RowsToCells {
  /** Under which Spark tells tasks the number of their micro-batch. */
  val BatchId = "streaming.sql.batchId"
}

/** A chunk of rows, in columns that they are appended to; the last one is the partition of the row. */
private[gpuwin] final class RowChunk(schema: StructType, coded: Option[CodedKey], allocator: BufferAllocator) {
  import RowChunk._

  private val fields = ArrowSchema.of(schema).getFields.asScala
  /** The strings of the coded key. */
  private val entries = coded.map(key => fields(key.at).createVector(allocator).asInstanceOf[VarCharVector])
  private val root = VectorSchemaRoot.create(new Schema(coded.fold(fields)(key =>
    fields.updated(key.at, new Field(fields(key.at).getName, ByPlace, null))).asJava), allocator)
  private val dictionaries = new DictionaryProvider.MapDictionaryProvider(
    entries.map(new Dictionary(_, ByPlace.getDictionary)).toSeq: _*)
  val columns: Array[RowColumn] = root.getFieldVectors.asScala.zipWithIndex.map {
    case (vector: IntVector, i) if coded.exists(_.at == i) =>
      new CodedColumn(vector, new StringColumn(entries.get, Rows), DictionaryTexts.ofTask(coded.get.ids), Rows)
    case (vector, i) => RowColumn.of(vector, schema(i).dataType, Rows)
  }.toArray
  private val texts = columns.filter(c => c.isInstanceOf[TextColumn] || c.isInstanceOf[CodedColumn])
  private var n = 0
  columns.foreach(_.begin())

  def rows: Int = n
  def isEmpty: Boolean = n == 0

  /** A row, with its columns in their order; where a key is coded, it has no partition yet, and ids in its place. */
  def append(row: InternalRow): Unit = {
    val last = columns.length - 1
    var i = 0
    while (i < last) { columns(i).append(row, i); i += 1 }
    (columns(last), coded) match {
      case (partitions: IntColumn, Some(key)) => partitions.put(key.partition.eval(row).asInstanceOf[Int])
      case (partitions, _) => partitions.append(row, last)
    }
  }

  /** Counts one more row, and says whether it was the last that goes in. */
  def isFull(mostBytes: Long): Boolean = {
    n += 1
    var full = n == Rows
    var i = 0
    while (i < texts.length) { full |= texts(i).textBytes >= mostBytes; i += 1 }
    full
  }

  /** The rows as an Arrow stream, which the caller releases; the chunk is empty after it. */
  def take(): StreamBytes = {
    columns.foreach(_.finish())
    root.setRowCount(n)
    val vectors = root.getFieldVectors.asScala ++ entries
    val bytes = new StreamBytes(vectors.map(_.getBufferSize.toLong).sum + HeadBytes, allocator)
    try {
      val stream = new ArrowStreamWriter(root, dictionaries, bytes)
      try {
        stream.start()
        stream.writeBatch()
      } finally stream.close()
    } catch { case e: Throwable => bytes.release(); throw e }
    n = 0
    columns.foreach(_.begin())
    bytes
  }

  def close(): Unit = {
    root.close()
    entries.foreach(_.close())
  }
}

private[gpuwin] object RowChunk {
  /** The type of places in a dictionary. */
  private val ByPlace =
    new FieldType(true, new ArrowType.Int(32, true), new DictionaryEncoding(0, false, new ArrowType.Int(32, true)))
  /** The most rows of a chunk. */
  val Rows: Int = 1 << 16
  /** About as many bytes as a stream has beside the values. */
  private val HeadBytes = 1 << 12
}

/**
 * An Arrow stream outside the heap, written as to a channel, and sent from there. Arrays of its size on the heap are
 * humongous to G1, which marks the whole heap over and over for them.
 */
private[gpuwin] final class StreamBytes(expected: Long, allocator: BufferAllocator) extends WritableByteChannel {
  private var buffer = allocator.buffer(expected)
  private var used = 0L

  def length: Long = used

  /** The stream, read from its begin. */
  def bytes: ByteBuffer = buffer.nioBuffer(0, Math.toIntExact(used))

  override def write(source: ByteBuffer): Int = {
    val more = source.remaining
    if (used + more > buffer.capacity) {
      val larger = allocator.buffer(math.max(used + more, 2 * buffer.capacity))
      larger.setBytes(0, buffer, 0, used)
      buffer.close()
      buffer = larger
    }
    buffer.setBytes(used, source)
    used += more
    more
  }

  override def isOpen: Boolean = true
  /** Ends the writing. */
  override def close(): Unit = ()
  def release(): Unit = if (buffer.refCnt > 0) buffer.close()
}

package org.apache.spark.sql.gpuwin

import scala.annotation.tailrec
import scala.collection.mutable
import scala.collection.mutable.ArrayBuffer

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s._

/**
 * The service's report of one batch of one partition.
 *
 * @param first       the start of the oldest pane, or the end of the oldest session, that the state needs
 * @param loggedCells the number of entries for the log, where those are not the cells as they came
 * @param loggedLast  the place in time of the last of them
 * @param replaces    whether they take the place of all that the log held
 */
final case class BatchReport(cells: Long, updated: Long, removed: Long, dropped: Long, stateBytes: Long, emitMs: Long,
    first: Long, loggedCells: Long, loggedLast: Long, replaces: Boolean, custom: Map[String, Long])

object BatchReport {
  /** The report of a batch without rows on an empty state. */
  val Nothing: BatchReport = BatchReport(0, 0, 0, 0, 0, 0, Long.MinValue, 0, Long.MinValue, replaces = false, Map.empty)
}

/**
 * The work of one partition in one batch:
 *
 *  1. the cells are read from the child and kept as Arrow chunks;
 *  1. they are sent with the name and version of the state; where the service does not have it, it asks for the log;
 *  1. the windows that are to be emitted come back, in chunks that Spark consumes;
 *  1. the chunks are appended to the log, dead segments removed, and if many have gathered the newest are merged;
 *  1. the state store is committed, and then the service is told that its new state is the resident one.
 *
 * The answer is held back until it is complete (up to a limit on its size), so a service that dies before that is
 * started again and gets the same request, state and all, and Spark does not notice. A task that fails commits
 * nothing: the service drops its new state, and the next attempt begins from the version before.
 */
class WindowTask(operator: DeviceOperator, info: StatefulOperatorStateInfo, partition: Int, context: TaskContext,
    log: StateLog) extends Logging {
  import ServiceConnection._

  private implicit val formats: Formats = DefaultFormats
  private val request = operator.request
  private val settings = operator.settings
  private val allocator: BufferAllocator = ArrowUtils.rootAllocator.newChildAllocator(
    s"gpuwin operator ${info.operatorId} partition $partition", 0, Long.MaxValue)
  private val gpu = DeviceService.gpuOf(context, partition)
  private val id = StateStoreProviderId(log.store.id, info.queryRunId)
  private val retries = new ServiceRetries(settings, gpu, operator.functions)
  private val reader = operator.reader(allocator)
  private val (lateMs, evictMs) = operator.watermarks

  private var connection: ServiceConnection = _
  /** Whether the service has a new state that waits for this task to commit. */
  private var pendingInService = false
  private var failed = false

  // What came, as it is sent.
  private val chunks = ArrayBuffer.empty[Array[Byte]]
  private var cellsIn = 0L
  private var lastPane = Long.MinValue

  // The answer.
  /** Frames that were read and not yet emitted. */
  private val answer = mutable.Queue.empty[Array[Byte]]
  /** Entries for the log that the service returned, where those are not the cells as they came. */
  private val logged = ArrayBuffer.empty[Array[Byte]]
  private var report: BatchReport = _
  private var residentHit = false
  private var windows: WindowIterator = _
  private var currentChunk: Iterator[ColumnarBatch] with AutoCloseable = _

  context.addTaskFailureListener((_: TaskContext, _: Throwable) => failed = true)
  context.addTaskCompletionListener[Unit] { _ => try finishUnread() finally release() }

  /**
   * Ends the batch where the rest of its windows was asked for by nobody: below a limit, or isEmpty in a function of
   * foreachBatch. Spark's own operators commit before the first row of the aggregate above them.
   */
  private def finishUnread(): Unit =
    if (windows != null && !failed && !context.isInterrupted()) windows.finishUnread()

  private def release(): Unit = {
    if (connection != null) { connection.close(); connection = null }
    if (currentChunk != null) { currentChunk.close(); currentChunk = null }
    allocator.close()
  }

  def run(input: Iterator[InternalRow]): Iterator[ColumnarBatch] = {
    val began = System.nanoTime()
    collect(input)
    FailPoint.reach(FailPoint.BeforeRequest, log.version)
    // Without a row and without a state there is nothing to ask for: of many partitions, most may be so.
    if (cellsIn == 0 && log.segments.isEmpty && !operator.worksWithoutRows) report = BatchReport.Nothing
    else retries { startBatch(); readAhead() }
    FailPoint.reach(FailPoint.AfterReply, log.version)
    val updateMs = (System.nanoTime() - began) / 1000000
    windows = new WindowIterator(updateMs)
    windows
  }

  private def collect(input: Iterator[InternalRow]): Unit =
    if (operator.takesPayloads) collectPayloads(input) else if (input.hasNext) collectRows(input)

  private def collectPayloads(input: Iterator[InternalRow]): Unit = {
    val payloads = ArrayBuffer.empty[Array[Byte]]
    input.foreach { row =>
      payloads += row.getBinary(Payload.Bytes)
      cellsIn += row.getLong(Payload.Cells)
      lastPane = math.max(lastPane, row.getLong(Payload.Last))
    }
    chunks ++= Payload.joined(payloads.toSeq, settings.chunkBytes)
  }

  private def collectRows(input: Iterator[InternalRow]): Unit = {
    val writer = new ArrowChunkWriter(operator.wireSchema, settings.chunkRows, settings.chunkBytes, allocator)
    val see: InternalRow => Unit =
      operator.paneAt.fold((_: InternalRow) => ())(at => row => lastPane = math.max(lastPane, row.getLong(at)))
    try while (input.hasNext) {
      val (bytes, rows) = writer.next(input, see)
      chunks += bytes
      cellsIn += rows
    } finally writer.close()
  }

  /** Names the state and sends the cells, in one go. After it the service computes, and its answer can be read. */
  private def startBatch(): Unit = {
    reconnect()
    val (now, data) = operator.batch
    connection.sendJson(Batch,
      "checkpoint" -> JString(info.checkpointLocation),
      "query" -> JString(info.queryRunId.toString),
      "operator" -> JLong(info.operatorId),
      "partition" -> JInt(partition),
      "version" -> JLong(log.version),
      "device" -> JString(settings.device),
      "log" -> JBool(log.segments.nonEmpty),
      "late" -> numberOrNull(micros(lateMs)),
      "evict" -> numberOrNull(micros(evictMs)),
      "through" -> numberOrNull(log.emittedThrough),
      "rows" -> JInt(settings.chunkRows),
      "bytes" -> JLong(settings.chunkBytes),
      "now" -> JLong(now),
      "data" -> JBool(data),
      "spec" -> request)
    chunks.foreach(connection.send(Cells, _))
    if (FailPoint.active) {
      connection.flush()
      FailPoint.reach(FailPoint.MidRequest, log.version)
    }
    connection.sendJson(End)
    connection.flush()
  }

  private def sendLog(): Unit = {
    log.segments.foreach(sendSegment)
    connection.sendJson(End)
    connection.flush()
  }

  private def sendSegment(segment: Segment): Unit = {
    connection.sendJson(SegmentHeader,
      "late" -> numberOrNull(Some(segment.late).filter(_ != Long.MinValue)),
      "seeds" -> JBool(segment.isSeeds))
    log.chunks(segment).foreach(connection.send(Cells, _))
  }

  private def micros(ms: Option[Long]): Option[Long] = ms.map(Math.multiplyExact(_, 1000L))

  private def reconnect(): Unit = {
    if (connection != null) connection.close()
    pendingInService = false
    connection = DeviceService.connect(settings, gpu, Some(id))
  }

  /** Reads one frame of the answer: windows, or the report that ends it. */
  @tailrec private def readFrame(): Option[Array[Byte]] = {
    val (kind, body) = connection.receive()
    kind match {
      case Windows => Some(body)
      case NoState => sendLog(); readFrame()
      case Logged => logged += body; readFrame()
      case Done =>
        val said = json(body)
        report = parse(said)
        residentHit = (said \ "resident").extract[Boolean]
        pendingInService = true
        None
      case other => throw new ServiceLostException(s"frame ${other.toChar} came in the middle of an answer", null)
    }
  }

  /** Reads the answer up to its end, or to the limit on what is held back. */
  private def readAhead(): Unit = {
    answer.clear()
    logged.clear()
    report = null
    var held = 0L
    while (report == null && held < settings.answerBytes)
      readFrame().foreach { bytes => held += bytes.length; answer += bytes }
  }

  /** The next frame to emit. Past the limit the answer is streamed, and a lost service fails the task. */
  private def nextFrame(): Option[Array[Byte]] =
    if (answer.nonEmpty) Some(answer.dequeue())
    else if (report != null) None
    else try readFrame() catch {
      case lost: ServiceLostException => throw retries.gone(lost)
      case e: ServiceTimeoutException => DeviceService.killIfHung(settings, gpu); throw e
    }

  private def parse(j: JValue): BatchReport = {
    def n(name: String, default: Long = 0L): Long = (j \ name).extractOrElse[Long](default)
    BatchReport(n("cells"), n("updated"), n("removed"), n("dropped"), n("state_bytes"), n("emit_ms"),
      n("first", Long.MinValue), n("logged_cells"), n("logged_last", Long.MinValue),
      (j \ "replaces").extractOrElse[Boolean](false), Map(
        "gpuwinDeviceTimeMs" -> n("device_ms"),
        "gpuwinPartitionsOnCuda" -> n("on_cuda"),
        "gpuwinPartitionsOnCpu" -> n("on_cpu")))
  }

  private class WindowIterator(updateMs: Long) extends Iterator[ColumnarBatch] {
    private var done = false

    // Synchronized, since a thread that writes to Python may still read when the task ends.
    override def hasNext: Boolean = synchronized {
      while (!done && (currentChunk == null || !currentChunk.hasNext)) {
        if (currentChunk != null) { currentChunk.close(); currentChunk = null }
        nextFrame() match {
          case Some(bytes) => currentChunk = reader.read(bytes)
          case None => done = true; finish(updateMs)
        }
      }
      !done
    }

    override def next(): ColumnarBatch = synchronized {
      if (!hasNext) throw new NoSuchElementException
      val batch = currentChunk.next()
      operator.countOutput(batch.numRows())
      batch
    }

    def finishUnread(): Unit = synchronized {
      if (!done) {
        while (nextFrame().isDefined) {}
        done = true
        finish(updateMs)
      }
    }
  }

  /** The end of the batch: log, state store, service, metrics, in this order. */
  private def finish(updateMs: Long): Unit = {
    val began = System.nanoTime()
    val appended = updateLog()
    val merging = if (operator.mergesSegments) log.toMerge(settings.maxSegments) else Nil
    val written = appended + (if (merging.nonEmpty) merge(merging) else 0L)
    FailPoint.reach(FailPoint.BeforeCommit, log.version)
    val version = log.commit()
    FailPoint.reach(FailPoint.AfterCommit, log.version)
    commitInService(version)
    val (sent, received) = if (connection == null) (0L, 0L) else (connection.bytesSent, connection.bytesReceived)
    leaveConnection()
    val commitMs = (System.nanoTime() - began) / 1000000
    val custom = report.custom ++ operator.customMetrics(report, cellsIn) ++ Map(
      "gpuwinBytesToDevice" -> sent,
      "gpuwinBytesFromDevice" -> received,
      "gpuwinCellsIn" -> cellsIn,
      "gpuwinSegments" -> log.segments.length.toLong,
      "gpuwinCompactions" -> (if (merging.nonEmpty || report.replaces) 1L else 0L),
      "gpuwinLogBytesWritten" -> written,
      "gpuwinResidentHits" -> (if (residentHit) 1L else 0L),
      "gpuwinServiceRestarts" -> retries.restarts.toLong)
    operator.report(log.store, report.copy(custom = custom), commitMs, updateMs)
  }

  /** Appends this batch to the log and evicts dead segments. Returns the bytes appended. */
  private def updateLog(): Long = {
    val came = operator.logsWhatCame
    val segment = if (came) chunks else logged
    if (came && cellsIn > 0) log.append(segment.toSeq, cellsIn, lateMs.map(_ * 1000), lastPane)
    if (report.replaces) log.clear()
    if (!came && report.loggedCells > 0) log.append(segment.toSeq, report.loggedCells, None, report.loggedLast)
    if (evictMs.isDefined) {
      log.evict(report.first)
      log.emittedThrough = Some(math.max(evictMs.get * 1000, log.emittedThrough.getOrElse(Long.MinValue)))
    }
    segment.map(_.length.toLong).sum
  }

  /** Merges segments of the log into one, on the service, which needs no state for it. Returns the bytes written. */
  private def merge(segments: Seq[Segment]): Long = {
    val restartsBefore = retries.restarts
    val (merged, result) = retries {
      if (retries.restarts > restartsBefore) pendingInService = false
      if (!pendingInService) reconnect()
      connection.sendJson(Merge,
        "spec" -> request, "first" -> JLong(report.first), "rows" -> JInt(settings.chunkRows),
        "bytes" -> JLong(settings.chunkBytes))
      segments.foreach(sendSegment)
      connection.sendJson(End)
      connection.flush()
      connection.receiveAnswer()
    }
    val last = (result \ "last").extractOrElse[Long](Long.MinValue)
    log.replace(segments, merged, (result \ "cells").extract[Long], last)
    merged.map(_.length.toLong).sum
  }

  /** Commits on the service. The state is durable by now, so a service that is lost here only reads it again. */
  private def commitInService(version: Long): Unit =
    if (pendingInService) try {
      connection.commit(id, version)
      ResidentStates.hold(id, gpu)
    } catch {
      case e: ServiceLostException =>
        logWarning(s"The gpuwin device service was lost after a commit (${e.getMessage}).")
      case e: ServiceTimeoutException =>
        logWarning(s"After a commit: ${e.getMessage}")
        DeviceService.killIfHung(settings, gpu)
    }

  /** Leaves the connection to the next task, where this one has committed; else it is closed with the task. */
  private def leaveConnection(): Unit = {
    if (connection != null && connection.owed) {
      DeviceService.giveBack(connection, gpu)
      connection = null
    }
  }
}

package org.apache.spark.sql.gpuwin

import java.io.{BufferedInputStream, BufferedOutputStream, DataInputStream, DataOutputStream, EOFException, IOException}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{Channels, ClosedByInterruptException, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Path
import java.util.concurrent.{ScheduledFuture, TimeUnit}

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId
import org.json4s._
import org.json4s.jackson.JsonMethods

/** The error of a service that went away in the middle of a request. The request can be sent again. */
class ServiceLostException(message: String, cause: Throwable, val refused: Boolean = false)
  extends IOException(message, cause)

/** The error of a service that did not answer within `spark.gpuwin.service.timeout`: it is slow, or hangs. */
class ServiceTimeoutException(message: String, cause: Throwable) extends GpuWindowException(message, cause)

/** The error that a service answered. */
class ServiceErrorException(val kind: String, val detail: JValue, message: String) extends GpuWindowException(message)

/**
 * A connection to the device service, over its Unix socket, which one task after another may have. A frame is one byte
 * of type, four bytes of length, and the body: JSON, or an Arrow stream.
 * [[spark_plugin/gpuwin_spark/service/protocol.py]] is the other end.
 *
 * @param timeoutMs how long an exchange may take
 */
class ServiceConnection(private[gpuwin] val socket: Path, token: String, private var timeoutMs: Long)
  extends AutoCloseable {
  import ServiceConnection._

  private val channel = open()
  private val out = new DataOutputStream(new BufferedOutputStream(Channels.newOutputStream(channel), 1 << 18))
  private val in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), 1 << 18))
  @volatile private var timedOut = false
  /** Bytes sent, and below received, since the task that has the connection took it. */
  var bytesSent = 0L
  var bytesReceived = 0L
  /** The state whose commit was sent last. */
  private[gpuwin] var committed: Option[StateStoreProviderId] = None
  /** Whether a commit was sent whose answer was not read yet. Then, and only then, another task can have it. */
  private[gpuwin] var owed = false

  private def open(): SocketChannel = {
    val c = SocketChannel.open(StandardProtocolFamily.UNIX)
    try c.connect(UnixDomainSocketAddress.of(socket))
    catch {
      case e: ClosedByInterruptException => throw e
      case e: IOException =>
        c.close()
        throw new ServiceLostException("it does not accept connections", e, refused = true)
    }
    c
  }

  try hello() catch { case e: Throwable => close(); throw e }

  private def hello(): Unit = {
    sendJson(Hello, "token" -> JString(token), "protocol" -> JInt(ProtocolVersion))
    flush()
    expectJson(Ready)
  }

  /**
   * Tells the service that its new state is the resident one. Its answer is not waited for: whoever has the connection
   * next reads it, in [[settle]].
   */
  def commit(state: StateStoreProviderId, version: Long): Unit = {
    sendJson(Commit, "version" -> JLong(version))
    flush()
    committed = Some(state)
    owed = true
  }

  /** Begins with another task: reads the answer that the service owes the last one, raises where that failed. */
  def settle(within: Long): Unit = {
    timeoutMs = within
    if (owed) expectJson(Ready)
    owed = false
    bytesSent = 0L
    bytesReceived = 0L
  }

  /** Tells the service that no task will ask for this state any more. */
  def release(state: StateStoreProviderId): Unit = {
    val id = state.storeId
    sendJson(Release,
      "checkpoint" -> JString(id.checkpointRootLocation),
      "query" -> JString(state.queryRunId.toString),
      "operator" -> JLong(id.operatorId),
      "partition" -> JInt(id.partitionId))
    flush()
    expectJson(Ready)
  }

  /** Sends a frame whose body is a JSON object of these fields. */
  def sendJson(kind: Byte, fields: JField*): Unit =
    send(kind, JsonMethods.compact(JsonMethods.render(JObject(fields: _*))).getBytes(UTF_8))

  def send(kind: Byte, body: Array[Byte]): Unit = guarded {
    out.writeByte(kind)
    out.writeInt(body.length)
    out.write(body)
    bytesSent += body.length + 5
  }

  /** Sends a frame from memory outside the heap, without a copy of it. */
  def send(kind: Byte, body: ByteBuffer): Unit = guarded {
    bytesSent += body.remaining + 5
    out.writeByte(kind)
    out.writeInt(body.remaining)
    out.flush()
    while (body.hasRemaining) channel.write(body)
  }

  def flush(): Unit = guarded(out.flush())

  /** The next frame; an error frame is raised. */
  def receive(): (Byte, Array[Byte]) = guarded {
    val kind = in.readByte()
    val length = in.readInt()
    if (length < 0 || length > MaxFrame) throw new IOException(s"a frame of $length bytes was announced")
    val body = new Array[Byte](length)
    in.readFully(body)
    bytesReceived += length + 5
    if (kind == Error) raise(body)
    (kind, body)
  }

  def expectJson(kind: Byte): JValue = expected(kind, receive())

  /** An answer to its end: its tables, and the report that follows them. */
  def receiveAnswer(): (Seq[Array[Byte]], JValue) = {
    val tables = ArrayBuffer.empty[Array[Byte]]
    var frame = receive()
    while (frame._1 == Windows) { tables += frame._2; frame = receive() }
    (tables.toSeq, expected(Done, frame))
  }

  private def expected(kind: Byte, frame: (Byte, Array[Byte])): JValue = {
    val (got, body) = frame
    if (got != kind) throw new ServiceLostException(s"frame ${got.toChar} came where ${kind.toChar} was expected", null)
    json(body)
  }

  private def raise(body: Array[Byte]): Nothing = {
    implicit val formats: Formats = DefaultFormats
    val detail = json(body)
    val kind = (detail \ "kind").extractOrElse[String]("internal")
    val message = (detail \ "message").extractOrElse[String]("the device service failed")
    throw new ServiceErrorException(kind, detail, message)
  }

  /** Runs an exchange with a limit on its time: a service that hangs must not hang the query. */
  private def guarded[A](body: => A): A = {
    val giveUp: Runnable = () => { timedOut = true; channel.close() }
    val alarm: ScheduledFuture[_] = Alarms.schedule(giveUp, timeoutMs, TimeUnit.MILLISECONDS)
    try body
    catch {
      case e: ClosedByInterruptException => throw e
      case e: GpuWindowException => throw e
      case e: IOException if timedOut =>
        throw new ServiceTimeoutException(s"The gpuwin device service did not answer within ${timeoutMs / 1000} s. " +
          "The batch was not committed and can be run again: restart the query from its checkpoint. If the batches " +
          s"are that large, raise ${GpuWindowConf.Timeout.key} first.", e)
      case e: EOFException => throw new ServiceLostException("it closed the connection", e)
      case e: IOException => throw new ServiceLostException(String.valueOf(e.getMessage), e)
    } finally alarm.cancel(false)
  }

  override def close(): Unit = channel.close()
}

object ServiceConnection {
  val ProtocolVersion = 12
  val MaxFrame: Int = 1 << 30

  // From Spark to the service
  val Hello: Byte = 'H'
  val SegmentHeader: Byte = 'S'
  val Cells: Byte = 'C'
  val Batch: Byte = 'B'
  val End: Byte = 'E'
  val Commit: Byte = 'M'
  val Merge: Byte = 'G'
  val Release: Byte = 'R'
  val Aggregate: Byte = 'A'
  // From the service to Spark
  val Ready: Byte = 'r'
  val NoState: Byte = 's'
  val Windows: Byte = 'w'
  val Logged: Byte = 'l'
  val Done: Byte = 'd'
  val Error: Byte = 'x'

  private val Alarms = {
    val pool = new java.util.concurrent.ScheduledThreadPoolExecutor(1, (r: Runnable) => {
      val t = new Thread(r, "gpuwin-service-timeouts")
      t.setDaemon(true)
      t
    })
    pool.setRemoveOnCancelPolicy(true)
    pool
  }

  def numberOrNull(number: Option[Long]): JValue = number.fold[JValue](JNull)(JLong(_))

  def json(body: Array[Byte]): JValue = JsonMethods.parse(new String(body, UTF_8))
}

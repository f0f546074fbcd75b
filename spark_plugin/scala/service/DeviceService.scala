package org.apache.spark.sql.gpuwin

import java.io.{BufferedReader, InputStreamReader, IOException}
import java.nio.channels.ClosedByInterruptException
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths}
import java.security.SecureRandom
import java.util.concurrent.TimeUnit

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.{SparkConf, SparkFiles, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId

/**
 * The device service of this executor: one Python process, started with the executor, ended with it, started again
 * when it dies. An executor that Spark gave GPUs (`spark.executor.resource.gpu.amount`) has one for each of them, which
 * sees that GPU and no other.
 *
 * It listens on a Unix socket in a directory that only its owner can enter. A connection begins with a token, which the
 * service got through its standard input, never on a command line. Its standard input stays open: when this JVM dies,
 * however it dies, the service reads the end of file and ends too.
 */
object DeviceService extends Logging {
  /**
   * A service that was started.
   *
   * @param idle connections on which no task works, each settled by whoever takes it
   */
  private final case class Running(process: Process, socket: Path, token: String, idle: ServiceConnections)

  private val StartSeconds = 120
  private val SettleSeconds = 2L
  /** The longest that a service takes to greet, however busy. */
  private val GreetingMs = 20000L
  private var python: String = "python3"
  private var places: Seq[SocketFolder.Place] = Nil
  /** Services by address of their GPU; the empty address is that of the one service where Spark schedules none. */
  private val running = mutable.Map.empty[String, Running]
  private var gpus: Seq[String] = Seq("")
  @volatile private var stopped = false

  /**
   * Sets the Python, the places of sockets and the GPUs.
   *
   * @param addresses of the GPUs that Spark gave this executor, none where it schedules none
   */
  def configure(conf: SparkConf, addresses: Seq[String]): Unit = synchronized {
    stopped = false
    gpus = if (addresses.isEmpty) Seq("") else addresses
    python = conf.getOption(GpuWindowConf.Python.key).filter(_.nonEmpty)
      .orElse(conf.getOption("spark.pyspark.python"))
      .orElse(Option(System.getenv("PYSPARK_PYTHON")))
      .getOrElse("python3")
    places = SocketFolder.places(conf)
  }

  /** Starts the services in the background, so that the first batch need not wait. Failures show on first use. */
  def warmUp(): Unit = synchronized(gpus).foreach { gpu =>
    val start: Runnable = () =>
      try ensure(gpu) catch { case NonFatal(e) => logDebug("gpuwin service: warm-up failed", e) }
    val thread = new Thread(start, "gpuwin-service-start")
    thread.setDaemon(true)
    thread.start()
  }

  /** The GPU of a task: the one that Spark gave it, else one of the executor's, always the same for a partition. */
  def gpuOf(context: TaskContext, partition: Int): String = synchronized {
    context.resources().get("gpu").flatMap(_.addresses.headOption).filter(gpus.contains)
      .getOrElse(gpus(partition % gpus.length))
  }

  /** A connection for a task, on a state or on none: one that another task has given back, or a new one. */
  def connect(settings: TaskSettings, gpu: String, state: Option[StateStoreProviderId]): ServiceConnection = {
    val service = ensure(gpu)
    service.idle.take(state, settings.timeoutMs)
      .getOrElse(new ServiceConnection(service.socket, service.token, settings.timeoutMs))
  }

  /** Leaves a connection to the tasks to come, after a commit or a whole answer. */
  def giveBack(connection: ServiceConnection, gpu: String): Unit =
    synchronized(running.get(gpu)).filter(_.socket == connection.socket)
      .fold(connection.close())(_.idle.give(connection))

  /** A connection to the service where one runs; it is not started for this. */
  def connectIfRunning(gpu: String, timeoutMs: Long): Option[ServiceConnection] =
    synchronized(running.get(gpu).filter(_.process.isAlive))
      .map(r => new ServiceConnection(r.socket, r.token, timeoutMs))

  /**
   * The wait after a connection was lost, before it is tried again. A process that was killed may still look alive for
   * a moment; one that is alive and takes no connections is of no use, and is killed. Other tasks go on meanwhile.
   */
  def settle(refused: Boolean, gpu: String): Unit = synchronized(running.get(gpu)).foreach { r =>
    if (!r.process.waitFor(SettleSeconds, TimeUnit.SECONDS) && refused && !greets(r, GreetingMs)) kill(r)
  }

  /**
   * The end of a service that hangs, after a task gave up waiting: one that answers no greeting would hang the next
   * attempt, too. One that greets is only slow, and is left to its other tasks.
   */
  def killIfHung(settings: TaskSettings, gpu: String): Unit = synchronized(running.get(gpu)).foreach { r =>
    if (!greets(r, math.min(settings.timeoutMs, GreetingMs))) {
      logWarning(s"The gpuwin device service (pid ${r.process.pid()}) hangs and is killed.")
      kill(r)
    }
  }

  private def greets(r: Running, withinMs: Long): Boolean =
    try { new ServiceConnection(r.socket, r.token, withinMs).close(); true }
    catch {
      case e: ClosedByInterruptException => throw e // the task was killed, which says nothing of the service
      case NonFatal(_) => false
    }

  private def kill(r: Running): Unit = r.process.destroyForcibly().waitFor(SettleSeconds, TimeUnit.SECONDS)

  def stop(): Unit = {
    stopped = true // a start that hangs gives up, and so releases the lock
    end()
  }

  private def end(): Unit = synchronized {
    ResidentStates.clear()
    running.values.foreach(_.idle.close())
    running.values.foreach(_.process.getOutputStream.close()) // end of file: they end by themselves
    running.values.foreach(r => delete(r.socket.getParent)) // first: an executor that waits may be killed
    running.values.foreach(r => if (!r.process.waitFor(2, TimeUnit.SECONDS)) r.process.destroyForcibly())
    running.clear()
  }

  private def ensure(gpu: String): Running = synchronized {
    // A task or a warm-up that outlives the executor must not leave a service that nobody ends.
    if (stopped) throw new GpuWindowException("The gpuwin device service has ended, because its executor ends.")
    running.get(gpu) match {
      case Some(r) if r.process.isAlive => r
      case before =>
        before.foreach { r =>
          logWarning(s"The gpuwin device service ended with code ${r.process.exitValue()} and is started again.")
          r.idle.close()
          delete(r.socket.getParent)
        }
        running.remove(gpu)
        val started = start(gpu)
        running(gpu) = started
        started
    }
  }

  private def start(gpu: String): Running = {
    val socket = SocketFolder.create(places)
    val directory = socket.getParent
    val token = newToken()
    val process =
      try builder(socket, gpu).start()
      catch { case e: IOException => delete(directory); throw failure(s"$python cannot be run", Nil, e) }
    val errors = mutable.Queue.empty[String]
    val drained = drain(process, errors)
    val in = process.getOutputStream
    val ready =
      try {
        in.write((token + "\n").getBytes(UTF_8))
        in.flush()
        awaitReady(process, errors)
      } catch {
        case _: IOException => false
        case e: Throwable => // the task that waited was killed
          process.destroyForcibly()
          delete(directory)
          throw e
      }
    if (!ready) {
      val ended = process.waitFor(1, TimeUnit.SECONDS)
      val killed = ended && process.exitValue() > 128
      process.destroyForcibly()
      drained.join(1000)
      delete(directory)
      if (killed) throw new ServiceLostException(s"it was killed (code ${process.exitValue()}) while it started", null)
      val what = if (ended) "ended before it was ready" else s"was not ready within $StartSeconds seconds"
      throw failure(s"$python -P -m gpuwin_spark.service $what", errors.synchronized(errors.toSeq), null)
    }
    logInfo(s"gpuwin device service started: pid ${process.pid()}" + (if (gpu.nonEmpty) s", GPU $gpu" else ""))
    Running(process, socket, token, new ServiceConnections)
  }

  private def builder(socket: Path, gpu: String): ProcessBuilder = {
    // -P: a file in the executor's working directory that is called as a module of Python's does not hide it.
    val made = new ProcessBuilder(python, "-P", "-m", "gpuwin_spark.service", "--socket", socket.toString)
    // The folder to which Spark brings the files of a job: the one place from which a service takes code of the user.
    made.environment().put("GPUWIN_SPARK_FILES", Paths.get(SparkFiles.getRootDirectory()).toAbsolutePath.toString)
    if (gpu.nonEmpty) made.environment().put("CUDA_VISIBLE_DEVICES", gpu)
    Allocators.foreach { case (name, value) => made.environment().putIfAbsent(name, value) }
    made
  }

  /**
   * Settings of the service's allocators, glibc's and Arrow's: freed memory is kept for a while. Each batch takes and
   * frees arrays of the same sizes, and a quarter of its processor time was the system's, giving pages and taking them
   * back. What is kept is at most a few batches, and goes back when a state is released.
   */
  private val Allocators = Seq("MALLOC_ARENA_MAX" -> "1", "MALLOC_MMAP_THRESHOLD_" -> (32 << 20).toString,
    "MALLOC_TRIM_THRESHOLD_" -> (128 << 20).toString, "MIMALLOC_PURGE_DELAY" -> "5000")

  /** The wait for the line "ready". What stands before it is said by a wrapper of Python, or by a site's own files. */
  private def awaitReady(process: Process, said: mutable.Queue[String]): Boolean = {
    val out = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))
    @volatile var line: String = null
    def next(): Unit = line = try out.readLine() catch { case _: IOException => null }
    val read: Runnable = () => {
      next()
      while (line != null && line != "ready") {
        note(line, said)
        next()
      }
    }
    val reader = new Thread(read, "gpuwin-service-ready")
    reader.setDaemon(true)
    reader.start()
    val end = System.nanoTime() + TimeUnit.SECONDS.toNanos(StartSeconds)
    while (reader.isAlive && !stopped && System.nanoTime() < end) reader.join(100)
    line == "ready"
  }

  private def drain(process: Process, errors: mutable.Queue[String]): Thread = {
    val thread = new Thread(() => {
      val lines = new BufferedReader(new InputStreamReader(process.getErrorStream, UTF_8))
      try {
        var line = lines.readLine()
        while (line != null) {
          note(line, errors)
          line = lines.readLine()
        }
      } catch { case _: IOException => }
    }, "gpuwin-service-log")
    thread.setDaemon(true)
    thread.start()
    thread
  }

  private def note(line: String, said: mutable.Queue[String]): Unit = {
    val logged = s"gpuwin device service: $line"
    if (line.startsWith("INFO ")) logInfo(logged) else logWarning(logged)
    said.synchronized { said.enqueue(line); if (said.length > 40) said.dequeue() }
  }

  private def failure(what: String, errors: Seq[String], cause: Throwable): GpuWindowException = {
    val said = if (errors.isEmpty) "" else errors.takeRight(8).mkString(" It said:\n  ", "\n  ", "\n")
    new GpuWindowException(s"The gpuwin device service could not start: $what.$said " +
      s"Install gpuwin in the Python of every executor (pip install gpuwin), or name one that has it with " +
      s"${GpuWindowConf.Python.key}; 'gpuwin doctor' says what is missing. To go on without gpuwin, start the query " +
      s"from a new checkpoint with ${GpuWindowConf.Enabled.key}=false.", cause)
  }

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    bytes.map(b => f"$b%02x").mkString
  }

  private def delete(directory: Path): Unit = try {
    val files = Files.list(directory)
    try files.forEach(f => Files.deleteIfExists(f)) finally files.close()
    Files.deleteIfExists(directory)
  } catch { case NonFatal(_) => }
}

package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try

import org.apache.spark.{SparkContext, SparkIllegalArgumentException}
import org.apache.spark.sql.gpuwin
import org.apache.spark.sql.internal.SQLConf

/** A configuration key: its default, its meaning, and the values that it accepts. */
final case class ConfEntry(key: String, default: String, doc: String, accepts: String, check: String => Boolean)

/**
 * Every key that begins with `spark.gpuwin.`. An unknown key or value raises: a typing error must not silently change
 * what runs where.
 */
object GpuWindowConf {
  val Prefix = "spark.gpuwin."

  private def oneOf(values: String*): (String, String => Boolean) =
    (values.mkString("one of ", ", ", ""), v => values.exists(_.equalsIgnoreCase(v)))
  private def atLeast(least: Long): (String, String => Boolean) =
    (s"a whole number, $least or more", v => Try(v.toLong).toOption.exists(_ >= least))

  private def entry(name: String, default: String, accepted: (String, String => Boolean), doc: String): ConfEntry =
    ConfEntry(Prefix + name, default, doc, accepted._1, accepted._2)

  val Enabled: ConfEntry = entry("enabled", "true", oneOf("true", "false"),
    "Whether windowed aggregations of streaming queries run on gpuwin, and sliding windows of batch queries are " +
      "made of panes and their sessions merged before the shuffle. Read when a query starts, or is planned.")
  val Device: ConfEntry = entry("device", "auto", oneOf("auto", "cuda", "cpu"),
    "Where the state lives and the kernels run: cuda, cpu, or auto (cuda where there is a GPU).")
  val Explain: ConfEntry = entry("explain", "NOT_ON_DEVICE", oneOf("NONE", "NOT_ON_DEVICE", "ALL"),
    "What is logged when a query is planned: nothing, the stateful operators left to Spark and why, or all of " +
      "them and batch queries on panes or proto-sessions.")
  val Python: ConfEntry = entry("python", "", ("the path of a Python 3.11 or later, or empty", _ => true),
    "The Python that runs the device service on each executor; gpuwin must be installed there. " +
      "Empty: PYSPARK_PYTHON, else python3.")
  val SocketFolder: ConfEntry = entry("socket.folder", "", (
    s"an absolute path of at most ${gpuwin.SocketFolder.LongestPlace} bytes, or empty",
    v => v.isEmpty || (v.startsWith("/") && v.getBytes(UTF_8).length <= gpuwin.SocketFolder.LongestPlace)),
    "The folder, on each executor's machine, in which the device service makes a private folder for its Unix socket. " +
      "Empty: the first that can be written to, and whose path is short enough, of java.io.tmpdir, the local folders " +
      "of Spark, XDG_RUNTIME_DIR, /run/user/<uid>, /dev/shm and /tmp.")
  val Timeout: ConfEntry = entry("service.timeout", "600", atLeast(1),
    "Seconds that a task waits for the device service before it fails.")
  val Retries: ConfEntry = entry("service.retries", "2", atLeast(0),
    "How often one task goes on with a restarted device service when the service dies under it.")
  val ChunkRows: ConfEntry = entry("chunk.rows", "65536", atLeast(1),
    "Cells in one Arrow batch on the way to the service, and in one value of the state log.")
  val ChunkBytes: ConfEntry = entry("chunk.bytes", "1000000", atLeast(4096),
    "Bytes after which an Arrow batch is closed, however few cells or windows it holds. Java's G1 collector keeps " +
      "arrays of half a region and more apart, and marks the heap for them; heaps of 4 GiB have regions of 2 MiB.")
  val AnswerBytes: ConfEntry = entry("answer.bytes", "268435456", atLeast(0),
    "Bytes of one partition's answer that are held back until it is complete, so that a service that dies before " +
      "that costs nothing. Of a larger answer the rest is streamed, and such a death fails the task.")
  val MaxSegments: ConfEntry = entry("log.maxSegments", "24", atLeast(2),
    "Segments in the state log of one partition before the newest are merged.")
  val SessionsHeld: ConfEntry = entry("sessions.held", "262144", atLeast(1),
    "Sessions that a task puts together in the JVM's memory before the shuffle; fewer where their buffers are large, " +
      "as bitmaps are. Past it, it hands them on and begins anew, so rows of one session may be shuffled as more " +
      "than one.")
  val MapSide: ConfEntry = entry("mapside", "auto", oneOf("auto", "device", "jvm"),
    "Where rows of a streaming query become cells, or proto-sessions, below the shuffle: jvm (Spark's partial " +
      "aggregate, or gpuwin's of sessions), device (the device service, wherever it can), or auto, chosen for each " +
      "batch by the size of the one before (approx_count_distinct: the service, unless it has over 1,500 words " +
      "of registers); with device=cuda auto is device. It may be changed between starts of a query.")
  val MapSideCells: ConfEntry = entry("mapside.cells", "4096", atLeast(1),
    "For mapside=auto: the service makes the cells of a batch if in the one before each map task handed on so many " +
      "on average, and 64 for each partition of the shuffle. So is the first batch of a run.")
  val MapSideBytes: ConfEntry = entry("mapside.bytes", "67108864", atLeast(1 << 16),
    "Bytes of rows that a task keeps for the device service below the shuffle. More are aggregated in parts, and of " +
      "their cells, too, it keeps no more than about so many bytes before it hands them on.")
  val BatchOverlap: ConfEntry = entry("batch.overlap", "4", atLeast(2),
    "How many windows a row of a batch query must lie in, for its windows to be made of panes. With few, copying the " +
      "rows costs Spark less than sorting the panes does.")
  val BatchSessions: ConfEntry = entry("batch.sessions", "true", oneOf("true", "false"),
    "Whether rows of one session of a batch query are merged before the shuffle. A task in whose rows hardly any are " +
      "leaves it to Spark's operators above the shuffle.")
  val Json: ConfEntry = entry("json", "true", oneOf("true", "false"),
    "Whether from_json below an aggregation on gpuwin reads objects of ordinary values itself (numbers, texts " +
      "without escapes, times in ISO's form, arrays and objects of these), and leaves only other texts to Spark's " +
      "parser. It does so where from_json has no options.")
  val Adopt: ConfEntry = entry("adopt", "false", oneOf("true", "false"),
    "Whether a query that is started from a checkpoint of Spark's own goes on with gpuwin: the state of its windows " +
      "is taken over when its first batch is planned. Spark alone cannot go on from there, until the state is given " +
      "back (gpuwin state give-back).")
  val WithoutWindow: ConfEntry = entry("withoutWindow", "false", oneOf("true", "false"),
    "Whether an aggregation by keys alone, without a window, runs on gpuwin, too. No watermark evicts its groups, so " +
      "its state grows with the keys, and gpuwin keeps it in memory: make sure that it fits.")
  val Deduplicate: ConfEntry = entry("deduplicate", "false", oneOf("true", "false"),
    "Whether dropDuplicates and dropDuplicatesWithinWatermark of a stream run on gpuwin, too, which keeps their keys " +
      "in memory. Without an event time among its keys, of which then none is ever evicted, dropDuplicates needs " +
      "withoutWindow as well.")
  val Configured: ConfEntry = entry("configured", "false", oneOf("true", "false"),
    "Set by gw.spark.configure, and not meant to be set otherwise: the plugin ends with the session, and a later " +
      "session of the same Python process has it only if its builder was configured, too.")

  val all: Seq[ConfEntry] =
    Seq(Enabled, Device, Explain, Python, SocketFolder, Timeout, Retries, ChunkRows, ChunkBytes, AnswerBytes,
      MaxSegments, SessionsHeld, MapSide, MapSideCells, MapSideBytes, BatchOverlap, BatchSessions, Json, Adopt,
      WithoutWindow, Deduplicate, Configured)

  /** Raises for a key that does not exist or a value that is not accepted. Keys come without the prefix. */
  def validate(settings: Map[String, String]): Unit = settings.foreach { case (name, value) =>
    val key = Prefix + name
    all.find(_.key.equalsIgnoreCase(key)) match {
      case None => throw wrong(s"There is no configuration key $key. Those of gpuwin are " +
        s"${all.map(_.key).mkString(", ")}.")
      case Some(e) if !e.check(value) => throw wrong(s"$key is '$value', and must be ${e.accepts}. ${e.doc}")
      case _ =>
    }
  }

  /** Checks the configuration that an application starts with. */
  def validate(sc: SparkContext): Unit = validate(sc.conf.getAllWithPrefix(Prefix).toMap)

  /** Puts a value in front of the others of a comma-separated list of the application's configuration. */
  def putFirst(sc: SparkContext, key: String, value: String): Unit = {
    val others = sc.conf.getOption(key).toSeq.flatMap(_.split(',')).map(_.trim).filter(_.nonEmpty)
    if (!others.contains(value)) sc.conf.set(key, (value +: others).mkString(","))
  }

  /**
   * Takes the plugin out of the system properties of a JVM that pyspark started for a builder that was configured.
   * pyspark hands the settings of its first builder to the JVM as such, and every later session of the process would
   * find them.
   */
  def leaveToThisSession(plugin: String): Unit = if (sys.props.get(Configured.key).contains("true")) {
    sys.props -= Configured.key
    val others = sys.props.get("spark.plugins").toSeq.flatMap(_.split(',')).map(_.trim)
      .filter(other => other.nonEmpty && other != plugin)
    if (others.isEmpty) sys.props -= "spark.plugins" else sys.props("spark.plugins") = others.mkString(",")
  }

  /** Sets what the application's configuration leaves open. */
  def setDefault(sc: SparkContext, key: String, value: String): Unit = sc.conf.setIfMissing(key, value)

  /** The value in force for this session, checked. */
  def get(conf: SQLConf, e: ConfEntry): String = {
    val value = conf.getConfString(e.key, e.default)
    if (!e.check(value)) throw wrong(s"${e.key} is '$value', and must be ${e.accepts}. ${e.doc}")
    value
  }

  /** Checks whatever the session has set below our prefix. */
  def validate(conf: SQLConf): Unit =
    validate(conf.getAllConfs.collect { case (k, v) if k.startsWith(Prefix) => k.stripPrefix(Prefix) -> v })

  private def wrong(message: String): Throwable = new GpuWindowException(message)
}

/** An error of gpuwin's own; its message says what is wrong and what to do. */
class GpuWindowException(message: String, cause: Throwable = null)
  extends SparkIllegalArgumentException("INTERNAL_ERROR", Map("message" -> message), cause = cause) {
  override def getMessage: String = message
}

package org.apache.spark.sql.gpuwin

import java.util.UUID

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.plans.logical.Project
import org.apache.spark.sql.classic.{DataFrame => ClassicDataFrame, Dataset, SparkSession}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.functions.col
import org.apache.spark.sql.gpuwin.shims.SavedStore
import org.apache.spark.sql.types._
import org.apache.spark.util.SerializableConfiguration

/**
 * The state of a stopped query in Spark's own format: `gpuwin state give-back`.
 *
 * Python merges the cells of each operator into its open windows, with the code of the service. They are written as
 * Spark keeps them, (key, window) -> buffers, into state stores aside. When all are there they are moved to where
 * Spark looks, and gpuwin does not. Then one file makes the state Spark's ([[StoresFile]]), and the files `_gpuwin`,
 * which are void by now, are removed. The same file says beforehand that something is being moved: what a move that
 * fails or is killed leaves there is nothing that Spark wrote.
 */
class GivingBack(session: SparkSession, checkpoint: String, stopped: Boolean, claim: StateClaim)
  extends AutoCloseable {
  import GivingBack.Aim
  private val conf = session.sessionState.newHadoopConf()
  RescaledQuery.finish(checkpoint, conf) // else what it has still to place would come over what is given back
  private val query = new StoppedQuery(checkpoint, conf, stopped)
  private var given = false

  /** The operators, each to be merged and written. */
  val operators: Array[GivenOperator] = {
    session.streams.stateStoreCoordinator // as in StateTable
    query.refuseUnfinished()
    SavedOperator.allIn(checkpoint, Aim, conf).map { case (at, log) =>
      if (at.checkpointIds.isDefined) throw SavedOperator.refusal(at, checkpoint, Aim, "it is kept with " +
        "spark.sql.streaming.stateStore.checkpointFormatVersion=2, under which Spark's log of commits has the names " +
        "of its files")
      log match {
        case operator: SavedOperator =>
          if (operator.windowAt.isEmpty && operator.window != WholeShape)
            throw SavedOperator.refusal(at, checkpoint, Aim, "an earlier gpuwin began it, which did not note where " +
              "the window stands among the keys. Start the query once with this one, and stop it again")
          new GivenWindows(session, checkpoint, at, operator)
        case keys: SavedDeduplication => new GivenKeys(session, checkpoint, at, keys)
      }
    }.toArray
  }

  /** Puts what was written in the place of gpuwin's state. Returns a sentence for each operator. */
  def finish(): CommandAnswer = CommandAnswer.of(checkpoint, Aim) {
    query.refuseStarted() // before files are moved, and again once they are
    val at = operators.head.at
    val before = StateStores.read(at.state, conf)
    StateStores.write(at.state, before.copy(placed = Some(at.version)), conf)
    operators.foreach(_.place())
    FailPoint.reach(FailPoint.PlacedState, at.version)
    query.refuseStarted()
    StateStores.write(at.state, StoresFile(Nil, Some(at.version)), conf)
    FailPoint.reach(FailPoint.GivenState, at.version)
    val done = operators.map(_.done).mkString("\n")
    given = true
    CommandAnswer.afterSwitch(s"$done\nThe state is Spark's, and the files of gpuwin, void now, are not all removed",
        "The query can be started without the plugin. The files may stay, or be removed.") {
      CheckpointOwner.removeMarks(at.state, conf)
    }
    done
  }

  /** Ends the command, and removes what it wrote aside and did not put into use. */
  override def close(): Unit = try { if (!given) operators.foreach(_.abandon()) } finally claim.close()
}

/** One operator whose state is given back. */
abstract class GivenOperator(session: SparkSession, checkpoint: String, val at: SavedVersion) {
  private val hadoopConf = new SerializableConfiguration(session.sessionState.newHadoopConf())
  private val partitions = at.sparksPartitions
  private var written = 0L

  /** The entries of the log. */
  def cells: ClassicDataFrame
  /** What Python merges them by, and the columns of what comes of it, as JSON; null where nothing is merged. */
  def request: String
  def mergedSchema: String
  /** What an entry of Spark's state is. */
  protected def what: String
  /** The rows for Spark's state, whose columns are c0, c1, ..., those they are partitioned by, and their form. */
  protected def rows(merged: ClassicDataFrame): (ClassicDataFrame, Seq[Int], SparkStateFormat)

  /** Writes what was merged aside. */
  def write(merged: ClassicDataFrame): CommandAnswer = CommandAnswer.of(checkpoint, GivingBack.Aim) {
    val (found, by, format) = rows(merged)
    val task = new GivenPartitions(at, format, WholeStore.settings(at.settings(session)), hadoopConf)
    written = WholeStore.writeAll(found.repartition(partitions, by.map(i => col(s"c$i")): _*), partitions)(task.write)
    ""
  }

  /** Moves the stores that were written to where Spark looks for them. */
  def place(): Unit = (0 until partitions).foreach { p =>
    WholeStore.move(GivenPartitions.aside(at, p), StateStoreId(at.state, at.operator, p), hadoopConf.value)
  }

  def abandon(): Unit = (0 until partitions).foreach { p =>
    val folder = GivenPartitions.aside(at, p).storeCheckpointLocation()
    folder.getFileSystem(hadoopConf.value).delete(folder, true)
  }

  def done: String = s"operator ${at.operator}: $written $what are Spark's, version ${at.version}, $partitions " +
    "partitions"
}

/** A deduplication, whose keys are those of its log that are not forgotten. */
class GivenKeys(session: SparkSession, checkpoint: String, at: SavedVersion, saved: SavedDeduplication)
  extends GivenOperator(session, checkpoint, at) {
  override def cells: ClassicDataFrame = LoggedCells.table(session, at, saved)
  override def request: String = null
  override def mergedSchema: String = null
  override protected def what: String = "keys"

  override protected def rows(logged: ClassicDataFrame): (ClassicDataFrame, Seq[Int], SparkStateFormat) = {
    val kept = SavedDeduplication.remembered(logged).queryExecution.analyzed
    val Seq(key, until) = kept.output.drop(LoggedCells.Head)
    val columns = (saved.keysIn(key) :+ until).zipWithIndex.map { case (c, i) => Alias(c, s"c$i")() }
    val found = Dataset.ofRows(session, Project(columns, kept))
    val output = found.queryExecution.analyzed.output
    (found, saved.keyTypes.indices, SparkStateFormat(output, output.init, saved.valueOf(output.last), 0))
  }
}

/** An aggregation by windows, whose cells Python merges into those that are open. */
class GivenWindows(session: SparkSession, checkpoint: String, at: SavedVersion, operator: SavedOperator)
  extends GivenOperator(session, checkpoint, at) {
  private val table = new StateTable(session, at, operator)
  override def request: String = table.request
  override def mergedSchema: String = table.mergedSchema
  override def cells: ClassicDataFrame = table.cells
  override protected def what: String = "windows"

  override protected def rows(merged: ClassicDataFrame): (ClassicDataFrame, Seq[Int], SparkStateFormat) = {
    val found = typed(merged)
    val keys = operator.keyTypes.length + operator.windowAt.size
    val sessionAt = operator.windowAt.filter(_ => operator.window == SessionShape)
    val by = (0 until keys).filterNot(sessionAt.contains(_))
    val output = found.queryExecution.analyzed.output
    (found, by, SparkStateFormat.of(output, by, sessionAt, keys, at.aggregationFormat))
  }

  /** The rows of Spark's operator: keys with the window among them, and buffers. */
  private def typed(merged: ClassicDataFrame): ClassicDataFrame = {
    val plan = merged.queryExecution.analyzed
    val (keys, Seq(start, end, rest @ _*)) = plan.output.splitAt(operator.keyTypes.length)
    val typedKeys = keys.zip(operator.keyTypes).map { case (column, dataType) => AsType(column, dataType) }
    val window: Option[Expression] = operator.windowAt.map { _ =>
      if (operator.window == InstantShape)
        AsType(If(EqualTo(end, Literal(EventTimeColumn.NoTime)), Literal(null, LongType), end), operator.timeType)
      else CreateNamedStruct(Seq(Literal("start"), AsType(start, operator.timeType), Literal("end"),
        AsType(end, operator.timeType)))
    }
    val (before, after) = typedKeys.splitAt(operator.windowAt.getOrElse(0))
    val firsts = operator.functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    val buffers = operator.functions.zip(firsts).flatMap { case (function, first) =>
      WireValue.read(function, rest.drop(first))
    }
    val columns = before ++ window ++ after ++ buffers
    Dataset.ofRows(session, Project(columns.zipWithIndex.map { case (c, i) => Alias(c, s"c$i")() }, plan))
  }
}

/**
 * How Spark keeps the rows of an operator in its state stores.
 *
 * @param key    columns of an entry's key, over the operator's rows
 * @param value  columns of its value
 * @param prefix how many columns of the key a store is scanned by; 0 for none
 */
final case class SparkStateFormat(output: Seq[Attribute], key: Seq[Expression], value: Seq[Expression], prefix: Int) {
  private def schema(columns: Seq[Expression]) =
    StructType(columns.zipWithIndex.map { case (c, i) => StructField(s"c$i", c.dataType, c.nullable) })
  def keySchema: StructType = schema(key)
  def valueSchema: StructType = schema(value)
}

object SparkStateFormat {
  /** `own`: positions of the keys without the session, if there is one; `keys`: how many there are with the window. */
  def of(output: Seq[Attribute], own: Seq[Int], sessionAt: Option[Int], keys: Int, version: Int)
      : SparkStateFormat = sessionAt match {
    case Some(at) =>
      SparkStateFormat(output, own.map(output) :+ GetStructField(output(at), 0), output, own.length)
    case None => SparkStateFormat(output, output.take(keys), if (version == 1) output else output.drop(keys), 0)
  }
}

/** The writing of an operator's rows into stores of Spark's format, aside. */
class GivenPartitions(at: SavedVersion, format: SparkStateFormat, conf: StateStoreConf,
    hadoopConf: SerializableConfiguration) extends Serializable {

  /** Writes the rows of a partition, and returns how many there were. */
  def write(partition: Int, rows: Iterator[InternalRow]): Long = {
    val id = GivenPartitions.aside(at, partition)
    val files = StoreFiles.configuration(at.state, hadoopConf.value)
    val key = UnsafeProjection.create(format.key, format.output)
    val value = UnsafeProjection.create(format.value, format.output)
    var count = 0L
    WholeStore.write(id, at.version, files) {
      SavedStore.writing(StateStoreProviderId(id, UUID.randomUUID), format.keySchema, format.valueSchema, format.prefix,
          conf, files) { store =>
        rows.foreach { row =>
          store.put(key(row), value(row), StateStore.DEFAULT_COL_FAMILY_NAME)
          count += 1
        }
        store.commit()
      }
    }
    FailPoint.reach(FailPoint.WrittenPartition, partition)
    count
  }
}

object GivenPartitions {
  /** A store beside Spark's own, which has no name in its path. */
  def aside(at: SavedVersion, partition: Int): StateStoreId =
    StateStoreId(at.state, at.operator, partition, s"${DeviceOperator.StoreName}-given")
}

/** What was found to be given back, or the sentence that says why it is not. */
final case class GivingBackAnswer(giving: GivingBack, error: String)

/** The entry from Python. */
object GivingBack {
  private[gpuwin] val Aim = "be given back"

  def begin(session: SparkSession, checkpoint: String, stopped: Boolean): GivingBackAnswer = {
    var found: GivingBack = null
    val answer = CommandAnswer.of(checkpoint, Aim) {
      val claim = StateClaim.take(checkpoint, "gpuwin state give-back", session.sessionState.newHadoopConf())
      try found = new GivingBack(session, checkpoint, stopped, claim) finally if (found == null) claim.close()
      ""
    }
    GivingBackAnswer(found, answer.error)
  }
}

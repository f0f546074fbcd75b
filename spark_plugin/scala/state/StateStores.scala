package org.apache.spark.sql.gpuwin

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.exchange.{REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.json4s._
import org.json4s.jackson.JsonMethods

/**
 * The state stores that gpuwin's operators have since a checkpoint was rescaled.
 *
 * @param since      the first version of the state that they hold; it was copied from the stores before
 * @param name       their name in each partition's folder
 * @param partitions how many there are of each operator
 */
final case class StateStores(since: Long, name: String, partitions: Int) {

  /** The aggregation on these stores: its rows come in as many partitions, and its results leave as Spark planned. */
  def under(found: WindowedAggregate): WindowedAggregate = {
    val planned = found.save.info.get
    found.copy(
      save = found.save.copy(info = Some(planned.copy(numPartitions = partitions))),
      cells = shuffled(found.cells, found.keys),
      originalPartitioning =
        found.originalPartitioning.orElse(Some(HashPartitioning(found.keys, planned.numPartitions))),
      storeName = name)
  }

  /** The deduplication on these stores, likewise. */
  def under(found: Deduplication): Deduplication = {
    val planned = found.info.get
    found.copy(
      info = Some(planned.copy(numPartitions = partitions)),
      rows = shuffled(found.rows, found.keys),
      originalPartitioning = Some(HashPartitioning(found.keys, planned.numPartitions)),
      storeName = name)
  }

  /** The plan below an operator, whose rows come in as many partitions as there are stores. */
  private def shuffled(plan: SparkPlan, keys: Seq[Expression]): SparkPlan = {
    val (by, below) = plan match {
      case shuffle: ShuffleExchangeExec => (shuffle.outputPartitioning, shuffle.child)
      case other => (HashPartitioning(keys, 0), other) // partitioned by the keys already
    }
    by match {
      case HashPartitioning(expressions, _) =>
        ShuffleExchangeExec(HashPartitioning(expressions, partitions), below, REQUIRED_BY_STATEFUL_OPERATOR)
      case other => throw new GpuWindowException(s"A shuffle below a stateful operator is by $other.")
    }
  }
}

/**
 * What the file of a checkpoint says of gpuwin's state stores. One file speaks for all operators, and is replaced as a
 * whole, so that a checkpoint is rescaled, or given back, at one instant. Earlier versions of the state stay in the
 * stores that they were written to.
 *
 * @param stores all that there were after the first, oldest first
 * @param given  the version at which the state was given back to Spark: files `_gpuwin` that are still there are void
 * @param placed the version of which a giving back that did not end may have left files where Spark looks: they are no
 *               sign that Spark went on
 */
final case class StoresFile(stores: Seq[StateStores], given: Option[Long], placed: Option[Long] = None)

object StateStores {
  private[gpuwin] val File = "_gpuwin_stores"
  private val Format = 1
  /** What each running query found when it began. */
  private val begun = new ConcurrentHashMap[(String, UUID), StoresFile]()

  /** A name that none of these has, also where some between them went out of use. */
  def nameAfter(all: Seq[StateStores]): String = {
    val numbers = all.map(_.name.stripPrefix(s"${DeviceOperator.StoreName}-").toInt)
    s"${DeviceOperator.StoreName}-${numbers.foldLeft(0)(_ max _) + 1}"
  }

  /** The stores with this version; none where they are those that the operator began with. */
  def at(all: Seq[StateStores], version: Long): Option[StateStores] = all.filter(_.since <= version).lastOption

  /** The stores that a batch of a query works on. An error where they were replaced since the query was started. */
  def of(info: StatefulOperatorStateInfo, session: SparkSession): Option[StateStores] =
    if (info.checkpointLocation == CheckpointOwner.NoCheckpoint) None
    else {
      val conf = session.sessionState.newHadoopConf()
      val run = (info.checkpointLocation, info.queryRunId)
      val before = begun.get(run)
      if (before == null)
        RescaledQuery.finish(new Path(info.checkpointLocation).getParent.toString, conf).foreach { partitions =>
          throw new GpuWindowException(s"A rescaling of the state in ${info.checkpointLocation} to $partitions " +
            "partitions had been interrupted, and was ended now. Nothing of this batch was done. Start the query " +
            "again.")
        }
      val found = read(info.checkpointLocation, conf)
      val said = found.copy(placed = None)
      if (before != said && said.stores.nonEmpty) RescaledQuery.refuseOtherPartitions(info, conf)
      if (before != null && before != said) {
        val (what, hence) =
          if (said.given.isDefined) ("given back to Spark", "without the plugin") else ("rescaled", "as it was")
        throw new GpuWindowException(s"The state in ${info.checkpointLocation} was $what while this query ran. " +
          s"Nothing of this batch was done. Start the query again, $hence.")
      }
      val now = if (before == null) TakenBack.from(found, info, session).copy(placed = None) else said
      if (begun.size > 4096) begun.clear()
      begun.put(run, now)
      at(now.stores, info.storeVersion)
    }

  def read(state: String, conf: Configuration): StoresFile = {
    val file = new Path(state, File)
    val files = file.getFileSystem(conf) // each batch asks; Spark's manager would make a client of S3 every time
    if (!files.exists(file)) StoresFile(Nil, None)
    else try {
      val text = CheckpointText.read(files.open(file))
      val said = JsonMethods.parse(text)
      if ((said \ "format") != JInt(Format)) throw new IllegalArgumentException(s"it is of another format: $text")
      val stores = (said \ "stores").asInstanceOf[JArray].arr.map { each =>
        (each \ "since", each \ "name", each \ "partitions") match {
          case (JInt(since), JString(name), JInt(partitions)) => StateStores(since.toLong, name, partitions.toInt)
          case _ => throw new IllegalArgumentException(text)
        }
      }
      def versionIn(field: String) = (said \ field) match {
        case JInt(version) => Some(version.toLong)
        case _ => None
      }
      StoresFile(stores, versionIn("given"), versionIn("placed"))
    } catch {
      case NonFatal(e) => throw new GpuWindowException(s"$file cannot be read (${e.getMessage}). It says in which " +
        "state stores the state of gpuwin is. Use the version of gpuwin that wrote it, or restore it from a copy.")
    }
  }

  def write(state: String, says: StoresFile, conf: Configuration): Unit = {
    val stores = says.stores.map(s => JObject(
      "since" -> JLong(s.since), "name" -> JString(s.name), "partitions" -> JInt(s.partitions)))
    val versions = Seq("given" -> says.given, "placed" -> says.placed)
      .collect { case (field, Some(version)) => field -> JLong(version) }
    val text = JsonMethods.compact(JObject(
      List("format" -> JInt(Format), "stores" -> JArray(stores.toList)) ++ versions))
    CheckpointText.write(new Path(state, File), text, conf)
  }
}

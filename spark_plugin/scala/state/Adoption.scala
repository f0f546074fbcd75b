package org.apache.spark.sql.gpuwin

import java.util.UUID

import org.apache.hadoop.fs.Path
import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStoreConf, StateStoreId}
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId
import org.apache.spark.sql.gpuwin.shims.SavedStore
import org.apache.spark.sql.types._
import org.apache.spark.util.SerializableConfiguration

/**
 * State that Spark wrote, taken over by the query that goes on with it (`spark.gpuwin.adopt`).
 *
 * Spark keeps the buffers of each open window under (key, window). Of windows that do not overlap these are the cells
 * of a log: a tumbling window is a pane, and a session is itself. A window that slides shares its panes with others,
 * and from its buffers the panes cannot be told: its buffers are a seed, with which the service merges the panes of
 * what comes ([[Segment.isSeeds]]).
 *
 * The rows are read when the first batch is planned, at the version that it begins with, and written as gpuwin's logs
 * of that version. The file `_gpuwin` comes last and makes the state gpuwin's; until then it is Spark's, whose files
 * are left as they are.
 */
object Adoption extends Logging {

  /** The aggregation over its state as gpuwin's, where that was Spark's; or the reason why it stays Spark's. */
  def into(found: Either[String, WindowedAggregate], save: StateStoreWriter, session: SparkSession)
      : Either[String, WindowedAggregate] =
    taken(found, save.stateInfo.get, session)(CheckpointOwner.describe, "windows")(
      write(_, SparkState.of(save), save.stateInfo.get, session))

  /** The deduplication, likewise. */
  def into(found: Either[String, Deduplication], session: SparkSession, node: StateStoreWriter)
      : Either[String, Deduplication] =
    taken(found, node.stateInfo.get, session)(_.describe, "keys")(write(_, node.stateInfo.get, session))

  private def taken[A](found: Either[String, A], info: StatefulOperatorStateInfo, session: SparkSession)(
      describe: A => String, what: String)(write: A => Long): Either[String, A] =
    found.flatMap { operator =>
      if (!CheckpointOwner.isSparks(info, session)) found
      else reasonAgainst(info).toLeft {
        // A query that was killed in its adoption starts again by itself, and must not find its own claim.
        StateClaim.during(new Path(info.checkpointLocation).getParent.toString, "a query that adopts it",
            session.sessionState.newHadoopConf(), renews = true) {
          if (CheckpointOwner.isSparks(info, session)) {
            val began = System.nanoTime()
            CheckpointOwner.clearGiven(info.checkpointLocation, session.sessionState.newHadoopConf())
            val written = write(operator)
            CheckpointOwner.adopt(info, describe(operator), session)
            val seconds = (System.nanoTime() - began) / 1e9
            logWarning(f"gpuwin has taken over the state of operator ${info.operatorId} from Spark: $written%,d " +
              f"$what in $seconds%.1f s. From here on the checkpoint ${info.checkpointLocation} is gpuwin's.")
          }
        }
        operator
      }
    }

  private def reasonAgainst(info: StatefulOperatorStateInfo): Option[String] =
    if (!SavedStore.hasIds(info)) None
    else Some("its checkpoint was written by Spark without gpuwin, with " +
      "spark.sql.streaming.stateStore.checkpointFormatVersion=2, which cannot be adopted. To offload this query, " +
      "start it with a new checkpointLocation")

  private def write(a: WindowedAggregate, rows: SparkState, info: StatefulOperatorStateInfo, session: SparkSession)
      : Long = {
    val segment = a.window match {
      case GridShape(size, slide, _) if size != slide => StateLog.Seeds
      case _ => 0L
    }
    write(rows, segment, cellOf(a), a.save.output, a.keys.length + a.window.placeColumns - 1,
      WholeLogs.partitioning(a.window, a.keys.map(_.dataType)), info, session)
  }

  private def write(d: Deduplication, info: StatefulOperatorStateInfo, session: SparkSession): Long = {
    val saved = SavedDeduplication.of(d)
    write(saved.inSpark, 0L, SavedDeduplication.Cell, SavedDeduplication.Cell, saved.placeAt, saved.partitioning, info,
      session)
  }

  /** Writes rows of Spark's state as the logs of its version, each with one segment. */
  private def write(rows: SparkState, segment: Long, cell: Seq[Expression], output: Seq[Attribute], placeAt: Int,
      by: Seq[Attribute] => Seq[Expression], info: StatefulOperatorStateInfo, session: SparkSession): Long = {
    val head = Seq(Literal(segment), Literal(0L), Literal(null, LongType))
    val conf = session.sessionState.conf
    val stateRows = new SparkStateRows(session, rows, info, head ++ cell, output, StateStoreConf(conf))
    val schema = WireType.schema(cell.map(_.dataType))
    val frame = session.internalCreateDataFrame(stateRows.rdd, StructType(
      Seq("segment", "late", "through").map(StructField(_, LongType)) ++ schema.fields))
    val stores = StateStores.of(info, session)
      .getOrElse(StateStores(0, DeviceOperator.StoreName, info.numPartitions))
      .copy(since = info.storeVersion)
    new WholeLogs(info.checkpointLocation, info.operatorId, stores, None, schema, placeAt, TaskSettings.of(conf), conf,
      stateRows.hadoopConf).write(frame, by, sort = false)
  }

  /** A cell of the log, over a row of Spark's state: keys, place, buffers, arrivals. */
  private def cellOf(a: WindowedAggregate): Seq[Expression] = {
    def window = a.save.output(a.windowAt.get)
    val place = a.window match {
      case InstantShape => Seq(EventTimeColumn.paneOf(window))
      case SessionShape => Seq(bound(window, 0), bound(window, 1))
      case WholeShape => Seq(Literal(WholeShape.Pane))
      case _: GridShape => Seq(bound(window, 0))
      case given: GivenShape => Seq(given.paneOf(window))
    }
    val buffers = a.save.output.drop(a.groupingColumns)
    val firsts = a.functions.scanLeft(0)(_ + _.aggBufferAttributes.length)
    val arrivals = a.functions.zip(firsts).collect { case (function, first) if Arrival.isOf(function) =>
      val seen = function match {
        case _: First | _: Last => buffers(first + 1) // whether a value was there
        case _ => IsNotNull(buffers(first + 1)) // the largest, or least, that it is ordered by
      }
      If(seen, Literal(0L), Literal(null, LongType)) // before all that comes
    }
    val sent = a.functions.zip(firsts).flatMap { case (function, first) =>
      WireValue.sent(function, buffers.slice(first, first + function.aggBufferAttributes.length))
    }
    a.keys ++ place ++ sent ++ arrivals
  }

  private def bound(window: Expression, field: Int): Expression = {
    val time = GetStructField(window, field)
    PreciseTimestampConversion(time, time.dataType, LongType)
  }
}

/** The state of an operator of Spark's: its stores' schemas, and the rows that it reads from one. */
final case class SparkState(keys: StructType, values: StructType, prefix: Int,
    rows: ReadStateStore => Iterator[InternalRow])

object SparkState {
  def of(save: StateStoreWriter): SparkState = save match {
    case s: StateStoreSaveExec =>
      val manager = s.stateManager
      SparkState(schemaOf(s.keyExpressions), manager.getStateValueSchema, 0, manager.values(_))
    case s: SessionWindowStateStoreSaveExec =>
      val manager = StreamingSessionWindowStateManager.createStateManager(s.keyWithoutSessionExpressions,
        s.sessionExpression, s.child.output, s.stateFormatVersion)
      SparkState(manager.getStateKeySchema, manager.getStateValueSchema, manager.getNumColsForPrefixKey,
        manager.iterator(_))
    case other => throw new GpuWindowException(s"${other.nodeName} keeps no windows.")
  }

  private def schemaOf(attributes: Seq[Attribute]): StructType =
    StructType(attributes.map(a => StructField(a.name, a.dataType, a.nullable, a.metadata)))
}

/** The rows of all partitions of such a state, as `columns` make them of the operator's `output`. */
class SparkStateRows(session: SparkSession, state: SparkState, info: StatefulOperatorStateInfo,
    columns: Seq[Expression], output: Seq[Attribute], conf: StateStoreConf) {
  val hadoopConf = new SerializableConfiguration(session.sessionState.newHadoopConf())

  def rdd: RDD[InternalRow] = {
    val bound = BindReferences.bindReferences(columns, AttributeSeq(output))
    val (SparkState(keys, values, prefix, rows), shared, settings) = (state, hadoopConf, conf)
    val (folder, operator, version) = (info.checkpointLocation, info.operatorId, info.storeVersion)
    session.sparkContext.parallelize(0 until info.numPartitions, info.numPartitions).mapPartitions { one =>
      one.flatMap { partition =>
        val id = StateStoreProviderId(StateStoreId(folder, operator, partition), UUID.randomUUID)
        val (store, close) = SavedStore.sparks(id, version, keys, values, prefix, settings,
          StoreFiles.configuration(folder, shared.value))
        TaskContext.get().addTaskCompletionListener[Unit](_ => close())
        val cell = UnsafeProjection.create(bound)
        rows(store).map(row => cell(row): InternalRow)
      }
    }
  }
}

package org.apache.spark.sql.gpuwin

import java.io.DataInputStream

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.sql.types._
import org.json4s._

/**
 * The operators of a checkpoint whose state gpuwin could adopt, as far as the checkpoint tells: `gpuwin state adopt`.
 * Nothing is written.
 *
 * Spark leaves the types of each operator's keys and values. They say the kind of the window and whether the keys can
 * be taken over; the aggregates are in the query alone, and are judged when it starts.
 */
class AdoptionCheck(checkpoint: String, conf: Configuration) {
  private val (files, root) = SavedVersion.open(checkpoint, conf)
  private val state = new Path(root, "state")

  /** A line for each stateful operator, and whether it could be adopted, or is gpuwin's. */
  def run(): Seq[(String, Boolean)] = {
    val operators = if (files.exists(state)) SavedVersion.numbers(files, state) else Nil
    if (operators.isEmpty) throw new GpuWindowException(
      s"The query of $root keeps no state: it has no stateful operator, or has run no batch.")
    val ours = CheckpointOwner.operators(root.toString, conf).toSet
    val ids = SavedVersion.numbers(files, new Path(root, "commits")).lastOption
      .exists(batch => (SavedVersion.json(files, new Path(root, s"commits/$batch"), 1) \ "stateUniqueIds") match {
        case JObject(fields) => fields.nonEmpty
        case _ => false
      })
    operators.map { operator =>
      val (says, can) =
        if (ours(operator)) (s"gpuwin's already (${SavedVersion.about(files, state, operator)})", true)
        else if (ids) ("stays with Spark: spark.sql.streaming.stateStore.checkpointFormatVersion=2 cannot be adopted",
          false)
        else judged(operator)
      (s"operator $operator: $says", can)
    }
  }

  private def judged(operator: Long): (String, Boolean) = {
    val file = new Path(state, s"$operator/0/_metadata/schema")
    if (!files.exists(file))
      ("stays with Spark: it has no store of one kind of rows (a join of streams has none)", false)
    else AdoptionCheck.schemasIn(files, file) match {
      case None => (s"cannot be told: $file is in a form that this gpuwin does not know", false)
      case Some((keys, values)) => AdoptionCheck.judge(keys, values)
    }
  }
}

/** What the check found: lines for people, and whether anything could be adopted; or why there was no check. */
final case class AdoptionCheckAnswer(lines: String, some: Boolean, error: String)

object AdoptionCheck {
  /** The entry from Python. */
  def check(checkpoint: String, conf: Configuration): AdoptionCheckAnswer = {
    var some = false
    val answer = CommandAnswer.of(checkpoint, "be looked at") {
      val found = new AdoptionCheck(checkpoint, conf).run()
      some = found.exists(_._2)
      found.map(_._1).mkString("\n")
    }
    AdoptionCheckAnswer(answer.done, some, answer.error)
  }

  private[gpuwin] def judge(keys: StructType, values: StructType): (String, Boolean) = {
    val (windows, plain) = keys.fields.toSeq.partition(f => WindowedAggregate.isWindow(f.dataType))
    val session = keys.fields.lastOption.filter(_.name == "sessionStartTime")
    val own = plain.filterNot(session.contains)
    val untaken = own.find(f => WireType.ofKey(f.dataType).isEmpty)
    def stays(why: String) = (s"stays with Spark: $why", false)
    def can(what: String) = (s"can be adopted: $what by ${own.map(_.name).mkString(", ")}".stripSuffix(" by "), true)
    val empty = values.fields.forall(_.dataType == NullType)
    if (empty || values.fieldNames.sameElements(Seq("expiresAtMicros")))
      (s"can be adopted, if ${GpuWindowConf.Deduplicate.key} is true: a deduplication by ${
        keys.fieldNames.mkString(", ")}", true)
    else if (untaken.isDefined) stays(s"its key ${untaken.get.name} is of type ${untaken.get.dataType.simpleString}")
    else if (session.isDefined) can("sessions")
    else if (windows.length == 1) can("windows")
    else if (windows.length > 1) stays("it groups by more than one window")
    else if (own.exists(_.dataType == TimestampType)) can("groups of a time, if that is the event time,")
    else if (own.nonEmpty) can(s"groups without a window, if an aggregation keeps them and ${
      GpuWindowConf.WithoutWindow.key} is true,")
    else stays("it groups by nothing")
  }

  /** Types of keys and values, as Spark's file has them; none where it is of a later form. */
  private def schemasIn(files: FileSystem, file: Path): Option[(StructType, StructType)] = {
    val in = new DataInputStream(files.open(file))
    try {
      in.readUTF() match {
        case "v1" => Some((typesOf(in.readUTF()), typesOf(in.readUTF())))
        case "v2" => Some((typesOf(chunks(in)), typesOf(chunks(in))))
        case _ => None
      }
    } catch {
      case NonFatal(e) =>
        throw new GpuWindowException(s"$file is damaged: it is no schema of Spark's (${e.getMessage}).")
    } finally in.close()
  }

  private def chunks(in: DataInputStream): String = Iterator.fill(in.readInt())(in.readUTF()).mkString

  private def typesOf(text: String): StructType = DataType.fromJson(text).asInstanceOf[StructType]
}

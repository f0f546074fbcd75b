package org.apache.spark.sql.gpuwin

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, NoSuchFileException, Path, Paths, StandardCopyOption}

/**
 * Steps of a batch at which a test can hold a task, to kill a process at exactly that step (`tests/chaos`).
 *
 * Inert unless the environment variable `GPUWIN_FAILPOINTS` names a folder when the executor starts; then a step costs
 * one look for the file `step.version.armed` in it. The first task that finds the file takes it, leaves
 * `step.version.hit` with the process id of its executor, and goes on when that file is removed.
 */
private[gpuwin] object FailPoint {
  private val folder: Option[Path] = sys.env.get("GPUWIN_FAILPOINTS").filter(_.nonEmpty).map(Paths.get(_))
  private val LongestMs = 120000L

  /** Below the shuffle, where the service is to make cells of the rows of a task. */
  val BeforeRows = "before_rows"
  val MidRows = "mid_rows"
  val AfterCells = "after_cells"

  val BeforeRequest = "before_request"
  val MidRequest = "mid_request"
  val AfterReply = "after_reply"
  val BeforeCommit = "between_segment_and_commit"
  val AfterCommit = "after_commit"
  /** With the number of the partition in the place of the version. */
  val WrittenPartition = "written_partition"
  /** All is written, and the state is Spark's still; with the number of the operator. */
  val AdoptedState = "adopted_state"
  /** All is written, and nothing is in use; with the number of rescalings before. */
  val RescaledState = "rescaled_state"
  /** A rescaling with operators of Spark's own is past its switch, and nothing is in place; with its partitions. */
  val ReadyRescaling = "ready_rescaling"
  /** Some states are in place, and others are not; with the number of files that were placed before the last one. */
  val PlacedFile = "placed_file"
  /** All states are in place, and the offsets are not; with the number of partitions. */
  val PlacedRescaling = "placed_rescaling"

  /** All is in place for Spark, and the state is gpuwin's still; with its version. */
  val PlacedState = "placed_state"
  /** The state is Spark's, and the files `_gpuwin` are there still; with its version. */
  val GivenState = "given_state"

  /** Whether tasks are held at all. */
  def active: Boolean = folder.isDefined

  /**
   * Holds the task, if a test asks for this step.
   *
   * @param version the version of the state that the batch began with, which is the number of the batch
   */
  def reach(step: String, version: Long): Unit = folder.foreach(hold(_, s"$step.$version"))

  private def hold(folder: Path, name: String): Unit = {
    val taken = folder.resolve(s"$name.taken")
    val found =
      try { Files.move(folder.resolve(s"$name.armed"), taken, StandardCopyOption.ATOMIC_MOVE); true }
      catch { case _: NoSuchFileException => false }
    if (found) {
      val hit = folder.resolve(s"$name.hit")
      Files.write(taken, ProcessHandle.current().pid().toString.getBytes(UTF_8))
      Files.move(taken, hit, StandardCopyOption.ATOMIC_MOVE)
      val end = System.nanoTime() + LongestMs * 1000000
      while (Files.exists(hit) && System.nanoTime() < end) Thread.sleep(5)
    }
  }
}

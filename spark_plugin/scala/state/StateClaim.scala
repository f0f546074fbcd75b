package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.nio.channels.{FileChannel, OverlappingFileLockException}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{AccessDeniedException, FileAlreadyExistsException, Files, NoSuchFileException, Path => DiskPath}
import java.nio.file.StandardOpenOption.WRITE
import java.nio.file.attribute.BasicFileAttributes
import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util.concurrent.ConcurrentHashMap

import scala.annotation.tailrec
import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.util.Utils

/**
 * The claim of a command on the state of a checkpoint. Two commands that write it anew write into the same folders, so
 * the second one is refused for as long as the first one works.
 *
 * On a local disk the claim is a lock of the operating system on the file `_gpuwin_claim` of the checkpoint. It ends
 * with its process, however that ends, and with it ends the claim: a file that a killed command left claims nothing.
 * One that another user's command left cannot be opened for the lock, so it has to be removed, as elsewhere.
 *
 * Elsewhere the claim is the file itself, which is made only where there is none. A killed command leaves it, and
 * whoever knows that nothing works on the checkpoint removes it; the sentence of the refusal says so. An object store
 * that cannot refuse to replace an object is asked right before for the file, so there two that begin at the same
 * moment may both have it.
 */
final class StateClaim private (release: () => Unit) extends AutoCloseable {
  private var held = true

  override def close(): Unit = synchronized {
    if (held) release()
    held = false
  }
}

object StateClaim {
  private[gpuwin] val File = "_gpuwin_claim"
  /** Files that this process has locked. It must not open them again: closing one would end its lock (POSIX). */
  private val locked = ConcurrentHashMap.newKeySet[DiskPath]

  /** Runs `body` with a claim. `by` says who works on the state, for those who are refused. */
  def during[A](checkpoint: String, by: String, conf: Configuration, renews: Boolean = false)(body: => A): A = {
    val claim = take(checkpoint, by, conf, renews)
    try body finally claim.close()
  }

  /**
   * Claims the state of a checkpoint.
   *
   * @param renews whether a file of the same `by` is an earlier attempt's, and no other's
   */
  def take(checkpoint: String, by: String, conf: Configuration, renews: Boolean = false): StateClaim = {
    val (files, root) = SavedVersion.open(checkpoint, conf)
    val file = new Path(root, File)
    val says = s"$by, process ${ProcessHandle.current().pid()} on ${Utils.localHostName()}, since " +
      Instant.now().truncatedTo(ChronoUnit.SECONDS)
    LocalFiles.of(files, conf) match {
      case Some(disk) => lock(disk.pathToFile(file).toPath, says)
      case None =>
        if (renews && read(files, file).startsWith(by)) files.delete(file, false)
        create(files, file, says, conf)
    }
  }

  private def lock(file: DiskPath, says: String): StateClaim = {
    val place = file.getParent.toRealPath().resolve(file.getFileName)
    if (!locked.add(place)) throw refusal(place, "another command of this process")
    try {
      val channel = lockedChannel(place)
      channel.truncate(0)
      channel.write(UTF_8.encode(says))
      new StateClaim(() => {
        Try(Files.deleteIfExists(place)) // where it cannot be removed, it claims nothing either
        channel.close()
        locked.remove(place)
      })
    } catch {
      case e: Throwable =>
        locked.remove(place)
        throw (e match {
          case e: IOException => new GpuWindowException(s"$place cannot be written, by which a command claims the " +
            s"state: ${e.getClass.getSimpleName}. Nothing was changed.", e)
          case _ => e
        })
    }
  }

  /** The file at this place, opened and locked; the one before may be removed meanwhile, by the command that ends. */
  @tailrec private def lockedChannel(place: DiskPath): FileChannel = {
    try Files.createFile(place) catch { case _: FileAlreadyExistsException => }
    val before = identity(place)
    val channel =
      try Some(FileChannel.open(place, WRITE))
      catch {
        case _: NoSuchFileException => None
        case _: AccessDeniedException => throw refusal(place, saidIn(place), left(place))
      }
    val isLocked = channel.exists { opened =>
      try opened.tryLock() != null
      catch {
        case _: OverlappingFileLockException => false // of a copy of this class in the same process
        case _: IOException => true // a file system without locks has nothing better
      }
    }
    if (isLocked && before.isDefined && identity(place) == before) channel.get
    else {
      channel.foreach(_.close())
      if (channel.isDefined && !isLocked) throw refusal(place, saidIn(place))
      lockedChannel(place)
    }
  }

  private def saidIn(place: DiskPath): String = Try(Files.readString(place)).getOrElse("")

  /** What to do where the file may be a killed command's, and does not end with it. */
  private def left(file: Any): String = s" If that was killed, and nothing works there, remove $file first."

  /** What tells a file from another one of its name; none where there is none. */
  private def identity(place: DiskPath): Option[AnyRef] =
    try Some(Files.readAttributes(place, classOf[BasicFileAttributes]).fileKey)
    catch { case _: NoSuchFileException => None }

  private def create(files: FileSystem, file: Path, says: String, conf: Configuration): StateClaim = {
    try {
      val out =
        if (ObjectStoreFiles.fits(files, file)) new ObjectStoreFiles(file.getParent, conf).createAtomic(file, false)
        else files.create(file, false)
      try out.write(says.getBytes(UTF_8)) finally out.close()
    } catch {
      case _: IOException if files.exists(file) =>
        throw refusal(file, read(files, file), left(file))
    }
    new StateClaim(() => Try(files.delete(file, false))) // what was done is done, and the next refusal names the file
  }

  private def read(files: FileSystem, file: Path): String = Try(CheckpointText.read(files.open(file))).getOrElse("")

  private def refusal(file: Any, holder: String, more: String = ""): GpuWindowException =
    new GpuWindowException(s"The state is claimed by ${if (holder.isEmpty) "another command" else holder} ($file). " +
      s"Nothing was changed. Wait for its end, look with gpuwin state show, and run this again.$more")
}

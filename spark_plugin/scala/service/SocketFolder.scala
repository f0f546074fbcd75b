package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.ServerSocketChannel
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{AccessDeniedException, FileSystemException, Files, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.security.SecureRandom

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.util.Utils

/**
 * The private folder of a device service's socket, with a name of its own, in the first place that takes one.
 *
 * The path of a Unix socket is short: 107 bytes on Linux, 103 on macOS. Containers have long temporary folders, and
 * some machines let nobody write to /tmp, so there are several places, from what Spark was told to what a system has.
 */
object SocketFolder {
  /** A folder, and where its name is from. */
  final case class Place(folder: String, from: String)

  private val LongestSocket = 100
  private val Prefix = "gpuwin-"
  private val NameBytes = 6
  private val SocketName = "s"
  private val OwnerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
  private val random = new SecureRandom()

  /** Bytes of the longest path of a place. */
  val LongestPlace: Int = LongestSocket - Seq("", Prefix + "00" * NameBytes, SocketName).mkString("/").length

  /** The places for the folder: the one that is configured and no other, else all that are worth a try, in order. */
  def places(conf: SparkConf): Seq[Place] =
    conf.getOption(GpuWindowConf.SocketFolder.key).filter(_.nonEmpty) match {
      case Some(folder) => Seq(Place(folder, GpuWindowConf.SocketFolder.key))
      case None =>
        val spark = try Utils.getConfiguredLocalDirs(conf).toSeq catch { case NonFatal(_) => Nil }
        val found = Seq(Place(System.getProperty("java.io.tmpdir"), "java.io.tmpdir")) ++
          spark.map(Place(_, "a local folder of Spark")) ++
          Option(System.getenv("XDG_RUNTIME_DIR")).filter(_.nonEmpty).map(Place(_, "XDG_RUNTIME_DIR")) ++
          user.map(uid => Place(s"/run/user/$uid", "the user's runtime folder")) ++
          Seq(Place("/dev/shm", "shared memory"), Place("/tmp", "the system's"))
        found.map(_.folder).distinct.flatMap(folder => found.find(_.folder == folder))
    }

  /**
   * Makes the folder, for its owner only, and returns the path of a socket in it.
   *
   * @throws GpuWindowException no place takes one; the message says of each why not, and what to set
   */
  def create(places: Seq[Place]): Path = {
    val refused = mutable.ArrayBuffer.empty[String]
    places.iterator.map { place =>
      attempt(Paths.get(place.folder).toAbsolutePath)
        .left.map(reason => refused += s"${place.folder} (${place.from}): $reason")
    }.collectFirst { case Right(socket) => socket }.getOrElse(throw new GpuWindowException(
      "The gpuwin device service needs a folder for its socket, and none was found. Tried " + refused.mkString("; ") +
        s". Set ${GpuWindowConf.SocketFolder.key} to a folder of each executor's machine that its user can write to " +
        s"and whose path has at most $LongestPlace bytes."))
  }

  private def attempt(place: Path): Either[String, Path] = {
    val length = place.toString.getBytes(UTF_8).length
    if (length > LongestPlace)
      Left(s"its path has $length bytes, and $LongestPlace is the most that a Unix socket leaves")
    else if (!Files.exists(place)) Left("it does not exist")
    else if (!Files.isDirectory(place)) Left("it is not a folder")
    else {
      val folder = place.resolve(Prefix + newName())
      try {
        Files.createDirectory(folder, OwnerOnly)
        Right(folder.resolve(SocketName)).filterOrElse(takesSockets, "no Unix socket can be made there")
          .left.map { reason => Files.deleteIfExists(folder); reason }
      } catch {
        case _: AccessDeniedException => Left("it cannot be written to")
        case e: FileSystemException => Left(s"it cannot be written to (${Option(e.getReason).getOrElse(e.toString)})")
        case e: IOException => Left(e.toString)
      }
    }
  }

  /** Whether a socket can be made. Some file systems, as those of volumes shared with another machine, have none. */
  private def takesSockets(socket: Path): Boolean = {
    val channel = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
    try { channel.bind(UnixDomainSocketAddress.of(socket)); true }
    catch { case _: IOException => false }
    finally { channel.close(); Files.deleteIfExists(socket) }
  }

  private def newName(): String = {
    val bytes = new Array[Byte](NameBytes)
    random.nextBytes(bytes)
    bytes.map(b => f"$b%02x").mkString
  }

  private def user: Option[Int] =
    try Some(Files.getAttribute(Paths.get("/proc/self"), "unix:uid").asInstanceOf[Integer].intValue)
    catch { case NonFatal(_) => None }
}

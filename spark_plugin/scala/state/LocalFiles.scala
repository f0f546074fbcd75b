package org.apache.spark.sql.gpuwin

import java.io.IOException
import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, FSDataOutputStream, LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/**
 * The files of a checkpoint on a local disk, written and renamed without a process of their own.
 *
 * They are the files that Spark's own managers make, with Hadoop's checksums beside them and the same permissions. But
 * Hadoop starts `chmod` for each file that it makes, unless its native library is there, and Spark's default manager
 * `readlink` before it renames one. For a small batch, with its offsets, commit and state stores, that was a third.
 */
class LocalFiles(path: Path, conf: Configuration) extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def createTempFile(path: Path): FSDataOutputStream = LocalFiles.disk(conf).create(path, true)
  override def mkdirs(path: Path): Unit = LocalFiles.disk(conf).mkdirs(path, FsPermission.getDirDefault)
}

object LocalFiles {
  /** Whether files are on a local disk, and Hadoop's own class sees to them, or ours. */
  def fits(files: FileSystem): Boolean = files match {
    case _: LocalDisk => true
    case local: LocalFileSystem => local.getRaw.getClass == classOf[RawLocalFileSystem]
    case _ => false
  }

  /** The manager that the configuration names; where it names none, this one on a local disk, and else Spark's. */
  def orSparks(path: Path, conf: Configuration): CheckpointFileManager =
    if (conf.get(StoreFiles.Manager, "").isEmpty && fits(path.getFileSystem(conf))) new LocalFiles(path, conf)
    else CheckpointFileManager.create(path, conf)

  /**
   * The disk that these files are on, as Hadoop's own class sees it or one made from that, by which a file is replaced
   * in one step; none where they are elsewhere.
   */
  def of(files: FileSystem, conf: Configuration): Option[LocalFileSystem] = files match {
    case _ if fits(files) => Some(disk(conf))
    case local: LocalFileSystem if local.getRaw.isInstanceOf[RawLocalFileSystem] => Some(local)
    case _ => None
  }

  /** Puts a file with these bytes, and no checksum of Hadoop's, in the place of what is there, in one step. */
  def write(disk: LocalFileSystem, place: Path, bytes: Array[Byte]): Unit = {
    disk.mkdirs(place.getParent)
    val aside = new Path(place.getParent, s".${place.getName}.${UUID.randomUUID}.tmp")
    try {
      val out = disk.getRaw.create(aside, true)
      try out.write(bytes) finally out.close()
      replace(disk, aside, place)
    } catch { case e: Throwable => disk.getRaw.delete(aside, false); throw e }
  }

  /**
   * Renames a file over another in one step. Hadoop renames a checksum after its file; between the two the new file has
   * the checksum of the old one, and cannot be read. So that goes first: without one, a file is read unchecked.
   */
  def replace(disk: LocalFileSystem, file: Path, place: Path): Unit = {
    val raw = disk.getRaw
    val (sum, old) = (disk.getChecksumFile(file), disk.getChecksumFile(place))
    raw.delete(old, false)
    if (!raw.rename(file, place)) throw new IOException(s"$file could not be renamed to $place")
    if (raw.exists(sum) && !raw.rename(sum, old)) throw new IOException(s"$sum could not be renamed to $old")
  }

  private var made: LocalDisk = _

  /** The local disk. It is made once, with the configuration that comes first, as Hadoop does it. */
  private def disk(conf: Configuration): LocalDisk = synchronized {
    if (made == null) {
      val disk = new LocalDisk
      disk.initialize(URI.create("file:///"), conf)
      made = disk
    }
    made
  }
}

/**
 * The local disk as Hadoop sees it, on which files are made without a process, and written in larger pieces than the
 * four kilobytes of Hadoop's default.
 */
class LocalDisk extends LocalFileSystem(new DiskWithoutProcesses) {
  override def initialize(name: URI, conf: Configuration): Unit = {
    val own = new Configuration(conf)
    own.setInt(LocalDisk.Buffer, LocalDisk.BufferBytes.max(conf.getInt(LocalDisk.Buffer, 0)))
    super.initialize(name, own)
  }
}

object LocalDisk {
  private val Buffer = "io.file.buffer.size"
  private val BufferBytes = 1 << 16
}

private class DiskWithoutProcesses extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit =
    if (permission.getStickyBit) super.setPermission(path, permission)
    else Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(permission.toString))
}

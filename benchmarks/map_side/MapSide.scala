package org.apache.spark.sql.gpuwin.benchmarks

import java.io.{DataInputStream, DataOutputStream, RandomAccessFile}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.{ByteOrder, MappedByteBuffer}
import java.nio.channels.{Channels, FileChannel, SocketChannel}
import java.nio.file.{Files, Paths}

import org.apache.spark.HashPartitioner
import org.apache.spark.sql.execution.{ColumnarToRowExec, SparkPlan}
import org.apache.spark.sql.execution.QueryExecution
import org.apache.spark.sql.vectorized.ColumnarBatch

/** The map side on the service: the columns of a task go to shared memory, and one payload a partition to the shuffle. */
object MapSide {
  /** Bytes that were shuffled. The plan reads three columns of 8 bytes, none of them null. */
  def run(execution: QueryExecution, socket: String, folder: String, partitions: Int, room: Int): Long = {
    val scan = columnar(execution.executedPlan)
    val cells = scan.executeColumnar().mapPartitions(aggregated(_, socket, folder, partitions, room))
    cells.partitionBy(new HashPartitioner(partitions)).map(_._2.length.toLong).fold(0L)(_ + _)
  }

  private def columnar(plan: SparkPlan): SparkPlan =
    plan.collectFirst { case ColumnarToRowExec(child) => child }.getOrElse(sys.error(s"no columnar scan in $plan"))

  private def aggregated(batches: Iterator[ColumnarBatch], socket: String, folder: String, partitions: Int,
      room: Int): Iterator[(Int, Array[Byte])] = {
    val path = Files.createTempFile(Paths.get(folder), "columns", "")
    val file = new RandomAccessFile(path.toFile, "rw")
    try {
      file.setLength(24L * room)
      val columns = file.getChannel.map(FileChannel.MapMode.READ_WRITE, 0, 24L * room)
      columns.order(ByteOrder.nativeOrder())
      answer(socket, path.toString, copied(batches, columns, room), room, partitions)
    } finally {
      file.close()
      Files.delete(path)
    }
  }

  /** Number of rows; each column has room for so many, one behind the other. */
  private def copied(batches: Iterator[ColumnarBatch], columns: MappedByteBuffer, room: Int): Int = {
    val places = Array.tabulate(3) { c =>
      columns.position(8 * room * c)
      columns.slice().order(ByteOrder.nativeOrder()).asLongBuffer()
    }
    var rows = 0
    batches.foreach { batch =>
      val n = batch.numRows
      places(0).put(batch.column(0).getLongs(0, n))
      places(1).put(batch.column(1).getLongs(0, n))
      places(2).put(batch.column(2).getDoubles(0, n).map(java.lang.Double.doubleToRawLongBits))
      rows += n
    }
    rows
  }

  private def answer(socket: String, path: String, rows: Int, room: Int,
      partitions: Int): Iterator[(Int, Array[Byte])] = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      channel.connect(UnixDomainSocketAddress.of(socket))
      val out = new DataOutputStream(Channels.newOutputStream(channel))
      out.writeInt(rows)
      out.writeInt(room)
      out.writeUTF(path)
      out.flush()
      val in = new DataInputStream(Channels.newInputStream(channel))
      Iterator.range(0, partitions).map { p =>
        val bytes = new Array[Byte](in.readInt())
        in.readFully(bytes)
        (p, bytes)
      }.toVector.iterator
    } finally channel.close()
  }
}

package org.apache.spark.sql.gpuwin

import java.util.Arrays
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.ExprId
import org.apache.spark.unsafe.types.UTF8String

/**
 * Strings of a column, by their ids in the dictionary of the Parquet file that a task reads, as far as it met them:
 * with the partition of the shuffle that rows with it as their key are for, and its place in the chunk of rows that is
 * being filled.
 */
final class DictionaryTexts {
  private var dictionary: AnyRef = _
  private var texts = new Array[UTF8String](0)
  private var partitions = new Array[Int](0)
  private var places = new Array[Int](0)

  /** Makes them those of a dictionary. Nothing is known of it, unless it is the one that they were of. */
  def areOf(now: AnyRef): Unit = if (now ne dictionary) {
    dictionary = now
    Arrays.fill(texts.asInstanceOf[Array[AnyRef]], null)
  }

  /** Whether an id was met. That of a string which is in no dictionary, -1, never is. */
  def has(id: Int): Boolean = id >= 0 && id < texts.length && texts(id) != null

  def text(id: Int): UTF8String = texts(id)
  def partition(id: Int): Int = partitions(id)

  /** The place in the chunk, or -1. */
  def place(id: Int): Int = places(id)
  def put(id: Int, place: Int): Unit = places(id) = place

  /** Meets an id. */
  def add(id: Int, text: UTF8String, partition: Int): Unit = {
    if (id >= texts.length) {
      val room = math.max(DictionaryTexts.Least, 2 * id)
      texts = Arrays.copyOf(texts, room)
      partitions = Arrays.copyOf(partitions, room)
      places = Arrays.copyOf(places, room)
    }
    texts(id) = text
    partitions(id) = partition
    places(id) = -1
  }

  /** Begins a chunk, in which none has a place. */
  def beginChunk(): Unit = Arrays.fill(places, -1)
}

object DictionaryTexts {
  private val Least = 1 << 10
  private val known = new ConcurrentHashMap[(Long, ExprId), DictionaryTexts]()

  /** Those of this task whose ids are a column: for the node that yields it, and for the one that takes it. */
  def ofTask(ids: ExprId): DictionaryTexts = {
    val context = TaskContext.get()
    val key = (context.taskAttemptId(), ids)
    known.computeIfAbsent(key, _ => {
      context.addTaskCompletionListener[Unit](_ => known.remove(key))
      new DictionaryTexts
    })
  }
}

package org.apache.spark.sql.gpuwin

import java.util.{LinkedHashMap, Map => JMap}

/** What an application remembers of its queries, for several threads: the `most` entries that were used last. */
private[gpuwin] final class Remembered[K, V](most: Int) {
  private val entries = new LinkedHashMap[K, V](16, 0.75f, true) {
    override def removeEldestEntry(eldest: JMap.Entry[K, V]): Boolean = size > most
  }

  def get(key: K): Option[V] = synchronized(Option(entries.get(key)))
  def put(key: K, value: V): Unit = synchronized { entries.put(key, value); () }

  /** The value of a key; one that is not there is made, while others wait. */
  def getOrMake(key: K)(make: => V): V = synchronized {
    if (!entries.containsKey(key)) entries.put(key, make)
    entries.get(key)
  }
}

package org.apache.spark.sql

import java.util.UUID

import org.apache.spark.sql.catalyst.expressions.{Attribute, UnsafeRow}
import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore}
import org.apache.spark.sql.types.StringType
import org.apache.spark.unsafe.types.CalendarInterval

/** Methods of Spark's classes with the parameters that they have in later versions. */
package object gpuwin {
  /** A store has no families of columns. */
  implicit class ReadStoreWithFamilies(store: ReadStateStore) {
    def get(key: UnsafeRow, family: String): UnsafeRow = store.get(key)
  }

  implicit class StoreWithFamilies(store: StateStore) {
    def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit = store.put(key, value)
    def remove(key: UnsafeRow, family: String): Unit = store.remove(key)
  }

  implicit class StoresWithFamilies(stores: StateStore.type) {
    def DEFAULT_COL_FAMILY_NAME: String = "default"
  }

  /** Strings have no collation: equal ones have equal bytes. */
  implicit class RowsWithCollations(rows: UnsafeRowUtils.type) {
    def isBinaryStable(string: StringType): Boolean = true
  }

  /** A watermark has no id. */
  implicit class WatermarksWithIds(watermarks: EventTimeWatermark.type) {
    def apply(id: UUID, time: Attribute, delay: CalendarInterval, child: LogicalPlan): EventTimeWatermark =
      EventTimeWatermark(time, delay, child)
  }
}

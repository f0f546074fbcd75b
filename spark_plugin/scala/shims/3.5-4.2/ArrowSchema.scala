package org.apache.spark.sql.gpuwin.shims

import org.apache.arrow.vector.types.pojo.Schema
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils

/** The Arrow schema of columns whose timestamps are in UTC. */
object ArrowSchema {
  def of(columns: StructType): Schema = ArrowUtils.toArrowSchema(columns, "UTC", true, false)
}

package org.apache.spark.sql

/** Spark's own classes under the package that later versions have made for them, beside those of Connect. */
package object classic {
  type DataFrame = org.apache.spark.sql.DataFrame
  type SparkSession = org.apache.spark.sql.SparkSession
  type Strategy = org.apache.spark.sql.Strategy
  private[sql] val Dataset = org.apache.spark.sql.Dataset
  private[sql] val SparkSession = org.apache.spark.sql.SparkSession
}

package org.apache.spark.sql.catalyst.expressions

/** The class of `bitmap_and_agg`: this Spark has no such function. */
trait BitmapAndAgg

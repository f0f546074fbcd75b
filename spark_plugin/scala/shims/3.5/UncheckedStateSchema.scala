package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.execution.streaming.StateStoreWriter

/** A stateful operator that leaves no schema to check before a batch: this Spark checks that of the store itself. */
trait UncheckedStateSchema extends StateStoreWriter

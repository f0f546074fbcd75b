package org.apache.spark.sql.gpuwin.shims

import org.apache.spark.sql.execution.streaming.StateStoreWriter

/** A stateful operator whose state store has a name of its own, for which this Spark does not ask. */
trait NamedStateStore extends StateStoreWriter

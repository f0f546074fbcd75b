package org.apache.spark.sql.gpuwin.shims

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.state.StateSchemaValidationResult

/**
 * A stateful operator that leaves no schema to check before a batch: Spark has written the schema of the operator whose
 * place it took.
 */
trait UncheckedStateSchema extends StateStoreWriter {
  override def validateAndMaybeEvolveStateSchema(
      hadoopConf: Configuration, batchId: Long, stateSchemaVersion: Int): List[StateSchemaValidationResult] = Nil
}

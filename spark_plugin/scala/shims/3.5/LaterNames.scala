/*
 * Names that later versions of Spark have, where nothing in this one has their meaning.
 */
package org.apache.spark.sql {
  import org.apache.spark.sql.execution.SparkPlan

  /** A section of `explain()`: this Spark has no sections, and never asks for one. */
  trait ExtendedExplainGenerator {
    def title: String
    def generateExtendedInfo(plan: SparkPlan): String
  }
}

package org.apache.spark.sql.execution {
  package object exchange {
    /** The origin of a shuffle that a stateful operator needs. This Spark has no name for it: it plans streams once. */
    val REQUIRED_BY_STATEFUL_OPERATOR: ShuffleOrigin = ENSURE_REQUIREMENTS
  }

  package streaming {
    object StreamingCheckpointConstants {
      val DIR_NAME_STATE = "state"
      val DIR_NAME_COMMITS = "commits"
    }
  }
}

"""What runs on the device, what does not, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery


def explain(query_or_df: StreamingQuery | DataFrame) -> str:
    """One line for each stateful operator: on the device or not, and why not.

    Of a query: as it runs (after its first batch). Of a DataFrame that was not started: as it would be planned.

    Raises:
        TypeError: neither a query nor a DataFrame.
        RuntimeError: the session was built without the plugin.
    """
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    session = SparkSession.getActiveSession()
    if isinstance(query_or_df, DataFrame):
        session = query_or_df.sparkSession
    elif not isinstance(query_or_df, StreamingQuery):
        raise TypeError(f"explain takes a StreamingQuery or a DataFrame, not {type(query_or_df).__name__}")
    if session is None:
        raise RuntimeError("there is no active SparkSession")
    java_explain = _java_explain(session)
    if isinstance(query_or_df, DataFrame):
        return str(java_explain.forDataFrame(query_or_df._jdf))
    return str(java_explain.forQuery(query_or_df._jsq))


def _java_explain(session: Any) -> Any:
    if not hasattr(session, "_jvm"):
        raise RuntimeError("gpuwin explains plans through the driver's JVM, which Spark Connect does not reach")
    found = session._jvm.org.apache.spark.sql.gpuwin.Explain
    if "JavaClass" not in type(found).__name__:
        raise RuntimeError(
            "gpuwin is not loaded in this session; build it with gw.spark.configure(SparkSession.builder), or set "
            "spark.plugins=io.gpuwin.GpuWindowPlugin and --jars $(gpuwin jar)"
        )
    return found

"""Where each stateful operator of a query runs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .errors import CheckpointError, SparkSetupError

OUTPUT_MODES: Final = ("append", "update", "complete")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def explain(query_or_df: StreamingQuery | DataFrame, output_mode: str | None = None) -> str:
    """Says of each stateful operator whether it runs on gpuwin, on which device, and if not, why not.

    Of a batch query it says the same of its aggregations by window: whether they go by panes, and if not, why not.

    Args:
        query_or_df: a streaming query that has planned a batch (running or ended), or a streaming DataFrame that was
            not started, for what would happen if it were; or a static DataFrame, as it is planned.
        output_mode: "append", "update" or "complete", in which a streaming DataFrame will be started. By itself it is
            append mode, or update mode where there is no watermark. Some aggregates run on gpuwin in one mode only.

    Returns:
        One line with the total, then one line per operator; of a query that failed since its last batch could not be
        planned, why.

    Raises:
        TypeError: it is neither, or an output mode was given of what has one, or needs none.
        ValueError: there is no such output mode.
        SparkSetupError: the plugin is not loaded in the session, or the session is a Spark Connect one.
    """
    java_query = getattr(query_or_df, "_jsq", None)
    java_frame = getattr(query_or_df, "_jdf", None)
    if java_query is None and java_frame is None:
        if type(query_or_df).__module__.startswith("pyspark.sql.connect"):
            raise SparkSetupError(
                "gw.spark.explain looks at the plan inside Spark's driver, which a Spark Connect client cannot reach. "
                "The driver's log says the same when a query starts; set spark.gpuwin.explain=ALL there to see it all."
            )
        raise TypeError(f"explain takes a StreamingQuery or a DataFrame, not a {type(query_or_df).__name__}")
    if output_mode is not None:
        if java_frame is None or not java_frame.isStreaming():
            raise TypeError("output_mode is for a streaming DataFrame that was not started; leave it out")
        if str(output_mode).lower() not in OUTPUT_MODES:
            raise ValueError(f"output_mode is one of {', '.join(OUTPUT_MODES)}, not {output_mode!r}")
    explained = plugin_object("Explain")
    if java_query is not None:
        return str(explained.forQuery(java_query))
    return str(explained.forDataFrame(java_frame, output_mode))


def plugin_object(which: str) -> Any:
    """A Scala object of the plugin in the running session.

    Raises:
        SparkSetupError: there is no session, or the plugin is not loaded in it; says how to load it.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    jvm = context._jvm if context is not None else None
    if jvm is None:
        raise SparkSetupError("There is no running Spark session. " + _HOW_TO_LOAD)
    name = f"org.apache.spark.sql.gpuwin.{which}"
    try:
        # A jar of spark.jars is on the class loader of the driver's threads, which py4j's own look-up may not ask.
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(name, False, loader)
        found = getattr(jvm.org.apache.spark.sql.gpuwin, which)
        if type(found).__name__ == "JavaPackage":  # what py4j makes of a name that is no class
            raise SparkSetupError("The gpuwin plugin is not loaded in this session. " + _HOW_TO_LOAD)
    except Py4JError as e:
        raise SparkSetupError("The gpuwin plugin is not loaded in this session. " + _HOW_TO_LOAD) from e
    return found


def checked(answer: Any) -> Any:
    """Answer of a Scala object about a checkpoint, which is none of an error.

    Raises:
        CheckpointError: it is one; the message is the answer's.
    """
    if answer.error():
        raise CheckpointError(str(answer.error()))
    return answer


_HOW_TO_LOAD = (
    "Start one with gw.spark.configure(SparkSession.builder).getOrCreate(), after spark.stop() of a session that was "
    "started without it; with spark-submit, pass --conf spark.plugins=io.gpuwin.GpuWindowPlugin --jars $(gpuwin jar)."
)

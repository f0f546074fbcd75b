"""The state of a stopped query in Spark's own format: ``gpuwin state give-back``.

The cells of each operator are merged into its open windows, which are written as Spark's state of the newest version.
After that the query goes on without the plugin.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

from .explain import checked, plugin_object
from .state_session import state_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def give_back_state(spark: SparkSession, path: str, *, stopped: bool = False) -> str:
    """Makes the state of gpuwin's operators in a checkpoint Spark's. All of it, or nothing.

    The query must not run. It is a Spark job, which runs where the session runs; the session needs the plugin's jar,
    and gpuwin in the Python of its executors. The windows come in as many partitions as the query was begun with,
    whatever gpuwin's state was rescaled to.

    Args:
        path: the ``checkpointLocation`` of the query.
        stopped: says that nothing runs on a checkpoint whose last batch was begun and is not committed.

    Returns:
        What was done, a line for each operator.

    Raises:
        CheckpointError: there is no such state, or it cannot be given back (that of ``gw.spark.aggregate``, for which
            Spark has no operator), or the query or another command works on it; nothing was changed. Or gpuwin's
            files are not all removed, which the message says.
        SparkSetupError: the plugin is not loaded in the session, or it is a Spark Connect one.
    """
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql.types import StructType

    from .map_in_arrow import map_in_arrow
    from .merged_cells import merging

    giving = checked(plugin_object("GivingBack").begin(spark._jsparkSession, str(path), stopped)).giving()
    try:
        for operator in giving.operators():
            if operator.request() is None:  # there is nothing to merge
                checked(operator.write(operator.cells()))
                continue
            cells = SparkDataFrame(operator.cells(), spark)
            schema = StructType.fromJson(json.loads(str(operator.mergedSchema())))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PySpark, about pandas
                request = str(operator.request())
                merged = map_in_arrow(cells, merging(request, by_segment=False, windows=True), schema)
            checked(operator.write(merged._jdf))
        return str(checked(giving.finish()).done())
    finally:
        giving.close()


def give_back(checkpoint: str, *, stopped: bool = False) -> str:
    """`give_back_state` in a Spark of its own on this machine; see there."""
    with state_session("gpuwin state give-back") as spark:
        return give_back_state(spark, checkpoint, stopped=stopped)

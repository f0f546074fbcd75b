"""docs/spark_aggregates.md has every aggregate function of this Spark, once, and none that the newest Spark has not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from spark_harness import SPARK

from gpuwin_spark.installed_spark import SUPPORTED_SPARK

TABLE = Path(__file__).parents[2] / "docs" / "spark_aggregates.md"


def is_aggregate(spark: SparkSession, info: Any) -> bool:
    """Whether Spark lists a function among its aggregates, or it is one all the same: those of vectors, say."""
    group, utils = info.getGroup(), spark._jvm.org.apache.spark.util.Utils
    if group in ("agg_funcs", "window_funcs"):
        return bool(group == "agg_funcs")
    aggregate, found = (
        utils.classForName(name, False, False)
        for name in ("org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction", info.getClassName())
    )
    return bool(aggregate.isAssignableFrom(found))


def test_every_aggregate_function_is_in_the_table(spark: SparkSession) -> None:
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    names = registry.listFunction().iterator()
    known = set()
    while names.hasNext():
        name = names.next()
        if is_aggregate(spark, registry.lookupFunction(name).get()):
            known.add(name.funcName())
    rows = [line.split("|")[1] for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    listed = Counter(name for row in rows for name in re.findall(r"`(\w+)`", row))
    assert len(known) > 60
    assert known <= set(listed), known - set(listed)
    if ".".join(map(str, SPARK)) == SUPPORTED_SPARK[-1]:  # functions were added with each version
        assert set(listed) - known == {"pivotfirst"}  # which Spark puts into plans, and no query can call
    assert set(listed.values()) == {1}

"""``gpuwin warm``: kernels that most queries need, compiled before the first stream needs them.

Numba compiles a kernel when it first runs, and keeps it on disk: the first batches on a new machine, or in a new
container, take seconds more. Here generated rows go through the engine, and where Spark is, through one streaming
query, with the windows, keys and aggregates that are met most. Other aggregates compile a few kernels more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gpuwin as gw
from gpuwin.device.choice import resolve_device
from gpuwin.errors import GpuwinError
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import hashing
from gpuwin_kernels.cpu.source import cache_folder
from gpuwin_spark.errors import SparkSetupError
from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.jar import jar_path
from gpuwin_spark.java import find_java

from .demo.command import cores, spark_conf
from .demo.runs import run_side
from .demo.side import SideSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS: Final = 5_000
#: Rows of the batches, and their keys: small batches wait for one another, large ones are shared by all threads, and of
#: one the entry of its many new keys is, too.
_BATCHES: Final = (
    (2_000, _KEYS),
    (40_000, _KEYS),
    (500, _KEYS),
    (2 * tuning.SPLIT_ROWS, _KEYS),
    (2 * tuning.SPLIT_ROWS, 10 * _KEYS),
    (3_000, _KEYS),
)
_BATCH: Final = 1_200_000_000  # microseconds of event time
_SCHEMA: Final = "number long, name string, ts timestamp, value double, whole long"
_WINDOWS: Final = (
    gw.TumblingWindow("1 minute"),
    gw.SlidingWindow("10 minutes", "1 minute"),
    gw.SessionWindow("1 second"),
)


def warm(device: str = "auto") -> str:
    """Compiles the kernels, and returns a sentence that says where they are. Takes up to two minutes.

    Raises gw.DeviceError for a device that cannot be used, gw.GpuwinError where kernels would be gone with this
    process or the query on Spark fails.
    """
    begun = time.monotonic()
    used = resolve_device(device)
    places = kept_in()
    batches = [_rows(seed, *of) for seed, of in enumerate(_BATCHES)]
    for window in _WINDOWS:
        for keys in (["number"], ["name"], ["whole"]):
            _stream(window, keys, batches, used)
    spark = _query(batches, device)
    seconds = time.monotonic() - begun
    return f"Kernels for {used}, of the engine{spark}, are in {' and '.join(places)} ({seconds:.0f} s)."


def kept_in() -> list[str]:
    """Folders that keep compiled kernels: those of the package, and generated ones.

    Raises gw.GpuwinError if one is only for this process.
    """
    places = [str(hashing.direct_lookup.stats.cache_path), str(cache_folder())]
    for place in places:
        if Path(place).is_relative_to(tempfile.gettempdir()) and "gpuwin-kernels-" in place:
            raise GpuwinError(
                f"compiled kernels would be kept in {place} only, since no folder of the user's can be written to. "
                "Set NUMBA_CACHE_DIR and GPUWIN_CACHE_DIR to folders that are this user's own."
            )
    return places


def _rows(batch: int, many: int, keys: int) -> pa.Table:
    """Rows of a batch, a little out of order, with keys of two types, and one of few values."""
    random = np.random.default_rng(batch)
    number = random.integers(0, keys, many)
    times = np.sort(random.integers(batch * _BATCH, (batch + 1) * _BATCH, many)) - random.integers(0, 1_000_000, many)
    return pa.table(
        {
            "number": number,
            "name": pa.array([f"name-{n}" for n in number.tolist()]),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "value": random.random(many),
            "whole": random.integers(0, 1_000, many),
        }
    )


def _stream(window: gw.Window, keys: list[str], batches: list[pa.Table], device: str) -> None:
    """Runs the batches through the engine."""
    aggregates = {
        "count": gw.count(),
        "sum": gw.sum("value"),
        "mean": gw.mean("value"),
        "min": gw.min("value"),
        "max": gw.max("value"),
    }
    spec = gw.WindowedAggregation(
        window=window, keys=keys, time="ts", aggregates=aggregates, watermark=gw.BoundedOutOfOrderness("10 seconds")
    )
    for _ in gw.run(spec, batches, device=device):
        pass


def _query(batches: list[pa.Table], device: str) -> str:
    """Runs the batches through a query on Spark, if there is one; what the sentence says of it."""
    try:
        find_spark(), find_java(), jar_path()
    except SparkSetupError as e:
        return f" (not of the plugin: {e})"
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-warm-"))
    try:
        (folder / "rows").mkdir()
        for number, rows in enumerate(batches):
            file = folder / "rows" / f"{number}.parquet"
            pq.write_table(rows, file)
            os.utime(file, (number, number))  # Spark takes files by their time of change
        spec = SideSpec(
            query=f"{__name__}:{every_window.__name__}",
            schema=_SCHEMA,
            source=str(folder / "rows"),
            sink=None,
            checkpoint=str(folder / "checkpoint"),
            device=device,
            conf=spark_conf(f"local[{cores()}]", folder),
        )
        outcome = run_side(spec, folder / "log", None)
        if outcome.status == "failed":
            raise GpuwinError(f"the query that compiles the plugin's kernels failed: {outcome.message}")
        if not outcome.offloaded:
            raise GpuwinError(f"not all of the query that compiles kernels was on gpuwin:\n{outcome.explanation}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return " and of the plugin"


def every_window(rows: DataFrame) -> DataFrame:
    """A query with an aggregation for each kind of window and of key, and one with registers, which come as hashes."""
    from pyspark.sql import functions as F

    stream = rows.withWatermark("ts", "10 seconds")
    windows = (F.window("ts", "1 minute"), F.window("ts", "10 minutes", "1 minute"), F.session_window("ts", "1 second"))
    of_values = [f("value") for f in (F.sum, F.avg, F.min, F.max)]
    columns = [F.count("*"), *of_values, F.sum("whole"), F.max("whole")]
    found = [
        stream.groupBy(key, window.alias("window")).agg(*columns).withColumn(key, F.col(key).cast("string"))
        for window in windows
        for key in ("number", "name")
    ]
    seldom = F.when(F.col("whole") % 2 == 0, F.col("whole"))  # of nulls and without
    registers = (F.approx_count_distinct("number"), *[F.lit(0.0)] * 4, F.approx_count_distinct(seldom), F.lit(0))
    few = (F.col("whole") % 10).cast("string").alias("name")  # a cell has 416 bytes of registers of each
    found.append(stream.groupBy(few, windows[1].alias("window")).agg(*registers))
    return reduce(type(rows).union, found)  # of all columns, or Spark would leave some out


__all__ = ["every_window", "kept_in", "warm"]

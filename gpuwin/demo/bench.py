"""``gpuwin bench``: one windowed aggregation over generated rows, on plain Spark and on gpuwin, and the ratio."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.jar import jar_path
from gpuwin_spark.java import find_java

from .command import cores, spark_conf
from .files import try_to_write, writing
from .progress import ProgressLine
from .runs import Outcome, run_side
from .side import SideSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA: Final = "key long, ts timestamp, value double"
WINDOWS: Final = {"sliding": ("1 hour", "1 minute"), "tumbling": ("1 minute", "1 minute")}
PROVIDERS: Final = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
_START: Final = 1_700_000_000_000_000
_SPAN: Final = 6 * 3600 * 1_000_000
_DISORDER: Final = 5_000_000


@dataclass(frozen=True)
class BenchOptions:
    """Options of the command line; `json` is a file for the figures, or None."""

    device: str = "auto"
    window: str = "sliding"
    files: int = 10
    rows: int = 200_000
    keys: int = 10_000
    provider: str = "hdfs"
    plain_limit: float = 600.0
    json: str | None = None


def windowed(rows: DataFrame, size: str, slide: str) -> DataFrame:
    """Sum and count per key and window."""
    from pyspark.sql import functions as F

    window = F.window("ts", size, slide)
    sums = rows.withWatermark("ts", "10 seconds").groupBy("key", window)
    return sums.agg(F.sum("value").alias("sum"), F.count("*").alias("count"))


def run_bench(options: BenchOptions) -> int:
    """Runs both sides and prints the figures; returns 0 if gpuwin finished with its state on gpuwin, else 1.

    Raises:
        DemoError: the file for the figures cannot be written.
        SparkSetupError: Spark or Java is missing; the message names the command that brings it.
    """
    if options.json is not None:
        try_to_write(Path(options.json))
    spark, java = find_spark(), find_java()
    jar_path()
    size, slide = WINDOWS[options.window]
    here = f"Spark {spark.version}, Java {java.version}, local[{cores()}], {platform.machine()}, {os.cpu_count()} cores"
    print(
        f"{options.window}, {size} every {slide}; {options.files} files of {options.rows:,} rows, "
        f"{options.keys:,} keys; {options.provider} state store; device {options.device}.\n{here}.",
        flush=True,
    )
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-bench-"))
    try:
        generate(folder / "rows", options)
        plain = _run(folder, options, "Spark", None, options.plain_limit)
        device = _run(folder, options, "gpuwin", options.device, None)
        for label, outcome in (("Spark", plain), ("gpuwin", device)):
            if outcome.status == "failed":
                print(f"{label} failed. {outcome.message}")
        if device.status != "finished":
            return 1
        if not device.offloaded:
            print(f"Not all of the state was on gpuwin:\n{device.explanation}")
            return 1
        figures = summary(plain, device)
        print(_sentence(plain, device))
        if options.json is not None:
            asked = {k: v for k, v in dataclasses.asdict(options).items() if k != "json"}
            whole = {"options": asked, "machine": here, **figures}
            with writing(Path(options.json)):
                Path(options.json).write_text(json.dumps(whole, indent=2) + "\n")
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def generate(folder: Path, options: BenchOptions) -> None:
    """Writes the rows: six hours of event time, up to five seconds out of order, keys at random; always the same."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    step = _SPAN // options.files
    for number in range(options.files):
        times = np.sort(random.integers(number * step, (number + 1) * step, options.rows))
        times += _START - random.integers(0, _DISORDER, options.rows)
        columns = {
            "key": random.integers(0, options.keys, options.rows),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "value": random.random(options.rows),
        }
        file = folder / f"rows-{number:05d}.parquet"
        pq.write_table(pa.table(columns), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes files by their time of change


def summary(plain: Outcome, device: Outcome) -> dict[str, Any]:
    """The figures of both sides; `ratio` is null where plain Spark did not finish."""
    sides = {
        label: {
            "status": outcome.status,
            "seconds": outcome.seconds,
            "batch_milliseconds": [b.milliseconds for b in outcome.batches],
            "state_rows": outcome.state_rows,
            "rows": outcome.rows,
        }
        for label, outcome in (("spark", plain), ("gpuwin", device))
    }
    ratio = plain.seconds / device.seconds if plain.status == "finished" else None
    return {**sides, "ratio": ratio}


def _sentence(plain: Outcome, device: Outcome) -> str:
    own = f"gpuwin: {device.seconds:.1f} s, {device.rows / device.seconds:,.0f} rows/s."
    if plain.status == "finished":
        other = f"plain Spark: {plain.seconds:.1f} s, {plain.rows / plain.seconds:,.0f} rows/s."
        return f"{other} {own} {plain.seconds / device.seconds:.1f} times as fast."
    if plain.status == "stopped":
        return f"plain Spark: stopped after {plain.seconds:.0f} s and {plain.rows:,} rows. {own}"
    return own


def _run(folder: Path, options: BenchOptions, label: str, device: str | None, limit: float | None) -> Outcome:
    size, slide = WINDOWS[options.window]
    spec = SideSpec(
        query=f"{windowed.__module__}:{windowed.__name__}",
        arguments={"size": size, "slide": slide},
        schema=SCHEMA,
        source=str(folder / "rows"),
        sink=None,
        checkpoint=str(folder / f"checkpoint-{label}"),
        device=device,
        conf={
            **spark_conf(f"local[{cores()}]", folder),
            "spark.driver.memory": "6g",
            "spark.sql.streaming.stateStore.providerClass": PROVIDERS[options.provider],
        },
    )
    line = ProgressLine(label, options.files)
    line.starting()
    outcome = run_side(spec, folder / f"{label}.log", limit, line.batch, line.wait)
    line.end(outcome)
    return outcome

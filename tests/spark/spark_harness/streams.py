"""Generated streams: seeded Parquet files in which every column has its awkward values.

A stream is a list of micro-batches, each a list of files. Every column serves both as a key and as a value: its values
come from a small pool (so that groups have several rows) that holds null and the edges of its type, but nothing whose
sum could overflow; columns that begin with ``huge`` are there for that.
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
MINUTE = 60 * SECOND

#: Where the event time of a stream starts, in microseconds. ``epoch`` crosses 1970-01-01; ``ancient`` is 1899.
BASES = {"modern": 1_700_000_000 * SECOND, "epoch": -MINUTE - 1234, "ancient": -2_240_500_000 * SECOND}

#: The columns that a query may read, as Spark's DDL.
SCHEMA = (
    "id long, ts timestamp, ntz timestamp_ntz, byte byte, short short, int int, long long, float float, double double, "
    "dec10 decimal(10,2), dec38 decimal(38,10), date date, tval timestamp, nval timestamp_ntz, str string, "
    "bool boolean, bin binary, huge long, hugedec decimal(38,10)"
)


def _d(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)


def _utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


_POOLS: dict[str, tuple[pa.DataType, list[object]]] = {
    "byte": (pa.int8(), [None, -128, -1, 0, 5, 127]),
    "short": (pa.int16(), [None, -32768, -7, 0, 12, 32767]),
    "int": (pa.int32(), [None, -(2**31), -3, 0, 41, 2**31 - 1]),
    "long": (pa.int64(), [None, -(2**52), -2, 0, 2**33 + 1, 2**53 + 1]),
    "float": (pa.float32(), [None, -0.0, 0.0, 1.5, -2.25, 3.0e7, 0.1]),
    "double": (pa.float64(), [None, -0.0, 0.0, 1.0 / 3.0, -7.125, 2.5e9, 0.1]),
    "dec10": (
        pa.decimal128(10, 2),
        [None, _d("-99999999.99"), _d("-0.01"), _d("0.00"), _d("12.30"), _d("99999999.99")],
    ),
    "dec38": (
        pa.decimal128(38, 10),
        [
            None,
            _d("-123456789012345678901234.0123456789"),
            _d("-0.0000000001"),
            _d("0.0000000000"),
            _d("7.5000000000"),
            _d("98765432109876543210987.6543210987"),
        ],
    ),
    "date": (
        pa.date32(),
        [None, *(dt.date.fromisoformat(d) for d in ("0001-01-01", "1969-12-31", "1970-01-01"))]
        + [dt.date.fromisoformat(d) for d in ("2024-02-29", "9999-12-31")],
    ),
    "tval": (
        pa.timestamp("us", "UTC"),
        [None, *(_utc(t) for t in ("1900-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999", "2024-03-10T07:30:00"))],
    ),
    "nval": (
        pa.timestamp("us"),
        [
            None,
            *(dt.datetime.fromisoformat(t) for t in ("1700-01-01T00:00:00", "1970-01-01T00:00:00.000001")),
            dt.datetime.fromisoformat("2024-03-10T02:30:00"),
        ],
    ),
    "str": (pa.string(), [None, "", "a", "ab", "ä", "z\x00z", "日本語", "x" * 300]),
    "bool": (pa.bool_(), [None, True, False, True]),
    "bin": (pa.binary(), [None, b"", b"\x00", b"\x7f", b"\x80\xff", b"ab" * 40]),
    "huge": (pa.int64(), [None, 2**63 - 1, 2**62, 1, -(2**63), -(2**62)]),
    "hugedec": (pa.decimal128(38, 10), [None, _d("9" * 28), _d("5" * 28), _d("1.5"), -_d("9" * 28)]),
}

#: Values of float and double that make most sums NaN; they are rare, so that some groups stay numbers.
_RARE = [float("nan"), float("inf"), float("-inf")]


@dataclass(frozen=True)
class Stream:
    """Micro-batches in order, each the paths of its files."""

    batches: tuple[tuple[Path, ...], ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(f for batch in self.batches for f in batch)

    def head(self, batches: int) -> Stream:
        """The first of its batches."""
        return Stream(self.batches[:batches])


@dataclass(frozen=True)
class StreamSpec:
    """What a generated stream is like. Times in microseconds.

    Every batch but the first has rows that are ``late_by`` behind; batch ``empty`` (if any) has files without rows.
    """

    seed: int = 0
    batches: int = 4
    rows: int = 90
    files: int = 1
    base: str = "modern"
    step: int = MINUTE
    late_by: int = 6 * MINUTE
    empty: int | None = 2


def table(spec: StreamSpec, batch: int, rng: np.random.Generator) -> pa.Table:
    """The rows of one batch, as one Arrow table."""
    n = 0 if batch == spec.empty else spec.rows
    time = BASES[spec.base] + batch * spec.step + rng.integers(0, 3 * spec.step, n)
    ties = rng.random(n) < 0.3
    time[ties] -= time[ties] % (10 * SECOND)
    if batch > 0:
        late = rng.random(n) < 0.15
        time[late] -= rng.integers(spec.late_by, 2 * spec.late_by, int(late.sum()))
    missing = rng.random(n) < 0.04
    columns: dict[str, pa.Array] = {
        "id": pa.array(np.arange(n) + 1_000_000 * batch),
        "ts": pa.array(time, pa.timestamp("us", "UTC"), mask=missing),
        "ntz": pa.array(time, pa.timestamp("us"), mask=missing),
    }
    for name, (dtype, pool) in _POOLS.items():
        picked = rng.integers(0, len(pool), n)
        values = [pool[i] for i in picked]
        if name in ("float", "double"):
            rare = rng.random(n)
            values = [_RARE[int(r * 150)] if r < 0.02 else v for r, v in zip(rare, values, strict=True)]
        columns[name] = pa.array(values, dtype)
    return pa.table(columns)


def write(spec: StreamSpec, folder: Path) -> Stream:
    """Writes the files of the stream. Their modification times say the order, as Spark's file source reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([spec.seed, zlib.crc32(spec.base.encode())])
    batches = []
    for b in range(spec.batches):
        rows = table(spec, b, rng)
        cuts = np.linspace(0, rows.num_rows, spec.files + 1).astype(int)
        paths = []
        for f in range(spec.files):
            path = folder / f"b{b:03d}-{f}.parquet"
            pq.write_table(rows.slice(int(cuts[f]), int(cuts[f + 1] - cuts[f])), path)
            stamp(path, b * spec.files + f)
            paths.append(path)
        batches.append(tuple(paths))
    return Stream(tuple(batches))


def write_tables(batches: Sequence[Sequence[pa.Table]], folder: Path) -> Stream:
    """A stream of the given tables: one list a micro-batch, one file a table."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for b, tables in enumerate(batches):
        paths = []
        for f, rows in enumerate(tables):
            path = folder / f"b{b:03d}-{f}.parquet"
            pq.write_table(rows, path)
            stamp(path, b * 100 + f)
            paths.append(path)
        written.append(tuple(paths))
    return Stream(tuple(written))


def stamp(path: Path, order: int) -> None:
    """Gives the file the modification time that makes it the `order`-th file of its folder."""
    os.utime(path, (1_000_000_000 + order, 1_000_000_000 + order))

"""Check of the demo's rows: against Spark's own, and against a recomputation that shares no code with either.

The recomputation takes the whole stream at once, on a grid of windows, with difference arrays: each flight adds to the
window where its influence begins and subtracts where it ends, and a running total over the windows does the rest. No
panes, no state and no batches, but for the watermark that a batch is judged by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .queries import DemoQuery

Ints = NDArray[np.int64]
MEAN_TOLERANCE: Final = 1e-9
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Check:
    """The outcome of a comparison: `difference` is None where every row is equal, else a sentence about the first."""

    rows: int
    difference: str | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def committed_files(folder: Path) -> dict[int, list[Path]]:
    """The files of each batch that Spark's Parquet sink has committed, as its log in the folder says.

    A run that was ended leaves files that are not whole, or of a batch that never was; they are not among these.
    """
    log = folder / "_spark_metadata"
    entries = [p for p in log.iterdir() if p.name.removesuffix(".compact").isdecimal()] if log.is_dir() else []
    seen: set[str] = set()
    batches: dict[int, list[Path]] = {}
    for entry in sorted(entries, key=lambda p: int(p.name.removesuffix(".compact"))):
        # The first line is the version; an entry that was compacted lists the files of those before it as well.
        names = [str(json.loads(line)["path"]).rpartition("/")[2] for line in entry.read_text().splitlines()[1:]]
        batches[int(entry.name.removesuffix(".compact"))] = [folder / n for n in names if n not in seen]
        seen.update(names)
    return batches


def read_result(folder: Path, query: DemoQuery, batches: int | None = None) -> pa.Table:
    """Rows that a run wrote to its Parquet sink, in the order of key and window.

    Args:
        folder: of the sink.
        query: that was run.
        batches: only what so many batches from the first have emitted; None for all.
    """
    files = [f for n, fs in committed_files(folder).items() if batches is None or n < batches for f in fs]
    columns = [*query.keys, "window", "departures", "mean_delay", "cancelled"]
    tables = [pq.read_table(f, columns=columns) for f in files]
    whole = pa.concat_tables(tables).combine_chunks() if tables else None
    if whole is None or not whole.num_rows:
        return _sorted(_empty(query), query)
    window = whole["window"].combine_chunks()
    bounds = [pc.struct_field(window, n).cast(pa.timestamp("us", "UTC")) for n in ("start", "end")]
    named = {**{k: whole[k] for k in query.keys}, "start": bounds[0], "end": bounds[1]}
    named |= {n: whole[n] for n in ("departures", "mean_delay", "cancelled")}
    return _sorted(pa.table(named), query)


def compare(expected: pa.Table, found: pa.Table, query: DemoQuery) -> Check:
    """Comparison of two results, row by row: keys, windows and counts exactly, means to 1e-9 relative."""
    rows = found.num_rows
    if expected.num_rows != rows:
        return Check(rows, f"{rows:,} rows, where {expected.num_rows:,} are right")
    for name in (*query.keys, "start", "end", "departures", "cancelled"):
        same = pc.equal(expected[name], found[name])
        wrong = pc.invert(pc.fill_null(same, False))
        if pc.any(wrong).as_py():
            return Check(rows, _first(expected, found, wrong, name))
    a, b = expected["mean_delay"], found["mean_delay"]
    x, y = (c.fill_null(math.nan).to_numpy() for c in (a, b))
    close = np.isclose(x, y, rtol=MEAN_TOLERANCE, atol=0.0) | (a.is_null().to_numpy() & b.is_null().to_numpy())
    if not close.all():
        return Check(rows, _first(expected, found, pa.array(~close), "mean_delay"))
    return Check(rows, None)


def recompute(batches: Sequence[pa.Table], query: DemoQuery) -> pa.Table:
    """The rows that Spark's append mode must give for these micro-batches, computed without Spark and without gpuwin.

    A flight counts in each of its windows that is still open when its batch begins (Spark judges by the watermark of
    the batch before); a window is emitted once the watermark has passed its end.
    """
    size, slide, delay = (d // _MICROSECOND for d in (query.size, query.slide, query.watermark_delay))
    flights = pa.concat_tables(batches)
    times: Ints = flights["scheduled"].cast(pa.int64()).to_numpy()
    if not len(times):
        return _empty(query)
    keys = flights.select(list(query.keys)).combine_chunks()
    groups = keys.group_by(list(query.keys), use_threads=False).aggregate([])
    groups = groups.sort_by([(k, "ascending") for k in query.keys])  # so the rows need no sorting
    code = _codes(keys, groups, query)
    # Windows are numbered by their start: window j is [j*slide, j*slide + size).
    newest = np.array([b["scheduled"].cast(pa.int64()).to_numpy().max() - delay for b in batches], dtype=np.int64)
    reached = np.maximum.accumulate(newest)
    late = np.concatenate([np.zeros(2, np.int64), reached])[: len(batches)]  # Spark's first watermark is 1970
    late_row = np.repeat(np.maximum(late, 0), [b.num_rows for b in batches])
    first = np.maximum((times - size) // slide, (late_row - size) // slide) + 1
    last = times // slide
    origin = int(first.min())
    width = int(last.max()) - origin + 2
    counts = first <= last
    minutes = flights["delay"].fill_null(0).to_numpy()
    departed = flights["delay"].is_valid().to_numpy().astype(np.int64)

    def total(value: Ints) -> Ints:
        steps = np.zeros((groups.num_rows, width), np.int64)
        np.add.at(steps, (code[counts], first[counts] - origin), value[counts])
        np.add.at(steps, (code[counts], last[counts] + 1 - origin), -value[counts])
        return steps.cumsum(axis=1)

    scheduled = total(np.ones_like(times))
    closed = (np.arange(width) + origin) * slide + size <= reached[-1]
    group, window = np.nonzero((scheduled > 0) & closed)
    departures = total(departed)[group, window]
    summed = total(minutes)[group, window].astype(np.float64)
    start = (window + origin) * slide
    mean = np.divide(summed, departures, out=np.zeros_like(summed), where=departures > 0)
    named: dict[str, pa.Array] = {k: groups[k].take(group) for k in query.keys}
    named |= {
        "start": pa.array(start, pa.timestamp("us", "UTC")),
        "end": pa.array(start + size, pa.timestamp("us", "UTC")),
        "departures": pa.array(departures),
        "mean_delay": pa.array(mean, mask=departures == 0),
        "cancelled": pa.array(scheduled[group, window] - departures),
    }
    return pa.table(named)


def _codes(keys: pa.Table, groups: pa.Table, query: DemoQuery) -> Ints:
    """The number of each row's group."""
    numbered = groups.append_column("code", pa.array(np.arange(groups.num_rows)))
    rows = keys.append_column("row", pa.array(np.arange(keys.num_rows)))
    joined = rows.join(numbered, list(query.keys), join_type="inner", use_threads=False)
    codes = np.empty(keys.num_rows, np.int64)
    codes[joined["row"].to_numpy()] = joined["code"].to_numpy()
    return codes


def _empty(query: DemoQuery) -> pa.Table:
    time = pa.timestamp("us", "UTC")
    numbers = [("departures", pa.int64()), ("mean_delay", pa.float64()), ("cancelled", pa.int64())]
    fields = [*((k, pa.string()) for k in query.keys), ("start", time), ("end", time), *numbers]
    return pa.schema(fields).empty_table()


def _sorted(table: pa.Table, query: DemoQuery) -> pa.Table:
    return table.sort_by([(k, "ascending") for k in (*query.keys, "start")]).combine_chunks()


def _first(expected: pa.Table, found: pa.Table, wrong: pa.Array, name: str) -> str:
    row = pc.index(wrong, True).as_py()
    count = pc.sum(wrong).as_py()
    return (
        f"{count:,} rows differ in {name}; the first: {found.slice(row, 1).to_pylist()[0]}, "
        f"where {expected.slice(row, 1).to_pylist()[0]} is right"
    )

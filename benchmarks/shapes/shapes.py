"""The shapes of work that are measured beside other engines: rows, keys, a window and aggregates each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

import gpuwin as gw

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
"""Microseconds."""

Kind = Literal["tumbling", "sliding", "cumulative", "session"]
Keys = Literal["int", "string", "two", "none"]


@gw.accumulation
class SumOfSquares:
    """An aggregate of a user's own."""

    state = {"total": 0.0}  # noqa: RUF012 - the form that gw.accumulation asks for

    def add(total, x):  # type: ignore[no-untyped-def]
        return total + x * x

    def merge(total, other):  # type: ignore[no-untyped-def]
        return total + other

    def result(total):  # type: ignore[no-untyped-def]
        return total


AGGREGATES = {
    "count": gw.count(),
    "sum": gw.sum("v"),
    "mean": gw.mean("v"),
    "min": gw.min("v"),
    "max": gw.max("v"),
    "std": gw.std("v"),
    "first": gw.first("v"),
    "last": gw.last("v"),
    "distinct": gw.count_distinct("u"),
    "median": gw.median("v"),
    "quantile": gw.quantile("v", 0.9),
    "top": gw.top_k("v", 3),
    "list": gw.collect_list("v"),
    "own": SumOfSquares("v"),
}
FIVE = ("count", "sum", "mean", "min", "max")
#: Of these a window is no merge of panes, so a query has to copy each row into all of its windows.
OF_ROWS = {"distinct", "median", "quantile", "top", "list", "own", "std", "first", "last"}


@dataclass(frozen=True)
class Shape:
    """One measurement.

    Attributes:
        size: of a window, its slide or step, or the gap of sessions; microseconds, as `slide` and `span`.
        span: of event time that the rows lie in.
        rows: as a share of those that were asked for; copies of rows take memory.
        disorder: how late a row may come, microseconds.
        every_window: whether the other engines have to say each sliding window that has a row, as ours does. From panes
            they say those in whose last pane something came; with many keys that is one in dozens.
        least: the time of the fastest other engine over ours that is wanted.
    """

    name: str
    kind: Kind = "tumbling"
    size: int = MINUTE
    slide: int = MINUTE
    aggregates: tuple[str, ...] = FIVE
    keys: int = 10_000
    key: Keys = "int"
    span: int = HOUR
    rows: float = 1.0
    zipf: bool = False
    nulls: float = 0.0
    disorder: int = 0
    every_window: bool = False
    batches: tuple[int, ...] = (10, 1)
    least: float = 1.5

    @property
    def key_columns(self) -> list[str]:
        """Names of the columns of the key."""
        return {"int": ["key"], "string": ["key"], "two": ["key", "key2"], "none": []}[self.key]

    @property
    def copies(self) -> bool:
        """Whether a query has to copy rows into the windows that they lie in."""
        return self.kind == "sliding" and (self.every_window or bool(OF_ROWS & set(self.aggregates)))


SHAPES = [
    Shape("count, 10 keys", aggregates=("count",), keys=10),
    Shape("five aggregates, 10 keys", keys=10),
    Shape("10,000 keys", least=5.0),
    Shape("10,000 keys, Zipf", zipf=True),
    Shape("a million keys", keys=1_000_000, least=3.0),
    Shape("a million keys in one window", keys=1_000_000, size=DAY, slide=DAY, least=3.0),
    Shape("a million keys, one sum, windows of a day", aggregates=("sum",), keys=1_000_000, size=DAY, slide=DAY,
          span=7 * DAY, least=3.0),
    Shape("10 million keys", keys=10_000_000),
    Shape("10,000 strings", key="string", least=2.0),
    Shape("a million strings", key="string", keys=1_000_000, least=2.0),
    Shape("two keys", key="two"),
    Shape("no keys", key="none"),
    Shape("nulls", nulls=0.2),
    Shape("rows up to 10 minutes late", disorder=10 * MINUTE),
    Shape("a thousand small batches", batches=(1000,)),
    Shape("std", aggregates=("std",)),
    Shape("first and last", aggregates=("first", "last")),
    Shape("exact distinct", aggregates=("distinct",)),
    Shape("median", aggregates=("median",)),
    Shape("quantile 0.9", aggregates=("quantile",)),
    Shape("top 3", aggregates=("top",)),
    Shape("list of values", aggregates=("list",)),
    Shape("an aggregate of one's own", aggregates=("own",)),
    Shape("sliding 1 h / 1 min, sum and count", "sliding", HOUR, MINUTE, ("count", "sum"), span=6 * HOUR, least=5.0),
    Shape("sliding 1 h / 1 min, a million keys", "sliding", HOUR, MINUTE, ("count", "sum"), 1_000_000, span=6 * HOUR,
          rows=0.2, every_window=True, least=3.0),
    Shape("cumulative 1 h / 10 min", "cumulative", HOUR, 10 * MINUTE, ("count", "sum"), span=6 * HOUR),
    Shape("sessions, gap 30 s", "session", 30 * SECOND, 0, ("count", "sum"), span=6 * HOUR),
    Shape("sliding 10 min / 1 min, exact distinct", "sliding", 10 * MINUTE, MINUTE, ("distinct",), 1_000, rows=0.2,
          least=20.0),
    Shape("sliding 10 min / 1 min, median", "sliding", 10 * MINUTE, MINUTE, ("median",), 1_000, rows=0.2, least=20.0),
    Shape("sliding 10 min / 1 min, quantile", "sliding", 10 * MINUTE, MINUTE, ("quantile",), 1_000, rows=0.2,
          least=20.0),
]  # fmt: skip


def rows_of(shape: Shape, n: int) -> pa.Table:
    """The rows: `ts` (int64 microseconds), the columns of the key, `v` (float64), `u` (int64), as they would come."""
    rng = np.random.default_rng(7)
    n = int(n * shape.rows)
    ts = np.sort(rng.integers(0, shape.span, n))
    if shape.disorder:
        order = np.argsort(ts + rng.integers(0, shape.disorder, n), kind="stable")
        ts = ts[order]
    key = (rng.zipf(1.2, n) % shape.keys) if shape.zipf else rng.integers(0, shape.keys, n)
    columns: dict[str, pa.Array] = {"ts": pa.array(ts)}
    if shape.key == "string":
        columns["key"] = pa.DictionaryArray.from_arrays(
            pa.array(key.astype(np.int32)), pa.array([f"customer-{i:07d}" for i in range(shape.keys)])
        ).dictionary_decode()
    elif shape.key != "none":
        columns["key"] = pa.array(key)
    if shape.key == "two":
        columns |= {"key": pa.array(key % 100), "key2": pa.array(key // 100)}
    missing = rng.random(n) < shape.nulls if shape.nulls else None
    columns["v"] = pa.array(rng.normal(size=n), mask=missing)
    columns["u"] = pa.array(rng.integers(0, 1000, n))
    used = {"ts", *shape.key_columns, *(["u"] if "distinct" in shape.aggregates else []),
            *(["v"] if set(shape.aggregates) - {"count", "distinct"} else [])}  # fmt: skip
    return pa.table({name: column for name, column in columns.items() if name in used})


def specification(shape: Shape) -> gw.WindowedAggregation:
    """The same as gpuwin takes it."""
    span = np.timedelta64
    windows = {
        "tumbling": lambda: gw.TumblingWindow(span(shape.size, "us")),
        "sliding": lambda: gw.SlidingWindow(span(shape.size, "us"), span(shape.slide, "us")),
        "cumulative": lambda: gw.CumulativeWindow(span(shape.size, "us"), span(shape.slide, "us")),
        "session": lambda: gw.SessionWindow(span(shape.size, "us")),
    }
    late = gw.BoundedOutOfOrderness(span(shape.disorder, "us"))
    return gw.WindowedAggregation(
        window=windows[shape.kind](),
        keys=shape.key_columns,
        time="ts",
        aggregates={name: AGGREGATES[name] for name in shape.aggregates},
        watermark=late,
    )

"""What goes in: every table library, every encoding, every unit of time; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import gpuwin as gw

TABLE = pa.table(
    {
        "key": ["a", "b", "a", None],
        "time": pa.array([0, 1_500, -500, 12_000], pa.timestamp("ms")),
        "value": pa.array([1, 2, 4, 8], pa.int64()),
    }
)


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.TumblingWindow("10 seconds"),
        "keys": ["key"],
        "time": "time",
        "aggregates": {"total": gw.sum("value")},
        "watermark": gw.ExplicitWatermark(),
    }
    return gw.WindowedAggregation(**{**given, **more})


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    starts = table["window_start"].cast(pa.int64()).to_pylist()
    return sorted(zip(table["key"].to_pylist(), starts, table["total"].to_pylist(), strict=True), key=repr)


EXPECTED = sorted([("a", -10_000_000, 4), ("a", 0, 1), ("b", 0, 2), (None, 10_000_000, 8)], key=repr)
FORMS: dict[str, Callable[[], Any]] = {
    "pyarrow": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 2), TABLE.slice(3)]),
    "reader": TABLE.to_reader,
    "polars": lambda: pl.from_arrow(TABLE),
    "pandas": TABLE.to_pandas,
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
    "dict": lambda: {name: TABLE[name] for name in TABLE.schema.names},
    "dictionary": lambda: TABLE.set_column(0, "key", TABLE["key"].dictionary_encode()),
    "views": lambda: TABLE.set_column(0, "key", TABLE["key"].cast(pa.string_view())),
    "seconds": lambda: TABLE.set_column(1, "time", TABLE["time"].cast(pa.timestamp("s"), safe=False)),
    "nanoseconds": lambda: TABLE.set_column(1, "time", TABLE["time"].cast(pa.timestamp("ns"))),
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_holds_arrow_data(form: str) -> None:
    table = gw.aggregate(FORMS[form](), spec())
    if form == "seconds":  # pyarrow truncates towards zero, so the time before the epoch becomes the epoch
        assert sum(table["total"].to_pylist()) == 15
    else:
        assert told(table) == EXPECTED


def test_forms_may_change_from_batch_to_batch() -> None:
    op = spec().start()
    for form in ("pyarrow", "polars", "pandas", "dictionary", "views", "nanoseconds"):
        op.process(FORMS[form]())
    assert told(op.finish()) == sorted([(k, s, 6 * v) for k, s, v in EXPECTED], key=repr)


def test_zones_and_dates() -> None:
    zoned = TABLE.set_column(1, "time", TABLE["time"].cast(pa.timestamp("ms", "Europe/Vienna")))
    out = gw.aggregate(zoned, spec())
    assert out.schema.field("window_start").type == pa.timestamp("us", "Europe/Vienna")
    assert told(out) == EXPECTED
    days = pa.table({"key": ["a"], "time": pa.array([-1], pa.date32()), "value": [1]})
    assert told(gw.aggregate(days, spec(window=gw.TumblingWindow("2 days")))) == [("a", -172_800_000_000, 1)]


def test_rows_without_a_time_are_dropped_and_counted() -> None:
    op = spec().start()
    op.process(TABLE.set_column(1, "time", pa.array([0, None, None, 1], pa.timestamp("s"))))
    assert op.metrics.rows_null_time == 2
    assert op.metrics.rows_in == 4
    assert told(op.finish()) == [("a", 0, 1), (None, 0, 8)]


def test_times_at_the_ends_of_int64() -> None:
    edge = [-(2**63), -(2**63) + 1, 2**63 - 1]
    rows = pa.table({"key": ["k"] * 3, "time": pa.array(edge, pa.timestamp("us")), "value": [1, 2, 4]})
    for window in (gw.TumblingWindow("7 hours", "1 hour"), gw.SlidingWindow("7 hours", "2 hours")):
        out = gw.aggregate(rows, spec(window=window))
        ends = out["window_end"].cast(pa.int64()).to_pylist()
        starts = out["window_start"].cast(pa.int64()).to_pylist()
        assert max(ends) == 2**63 - 1
        assert min(starts) == -(2**63)
        assert all(s < e for s, e in zip(starts, ends, strict=True))
    seconds = rows.set_column(1, "time", pa.array(edge, pa.timestamp("s")))
    assert sum(gw.aggregate(seconds, spec())["total"].to_pylist()) == 7


def test_many_keys_of_many_types() -> None:
    n = 1_000
    random = np.random.default_rng(0)
    keys = {
        "text": pa.array([None if i % 7 == 0 else f"k{i % 11}" for i in range(n)]),
        "number": pa.array(random.integers(-3, 3, n), mask=random.random(n) < 0.1),
        "day": pa.array(random.integers(0, 3, n).astype(np.int32)).cast(pa.date32()),
        "flag": pa.array(random.random(n) < 0.5),
    }
    rows = pa.table({**keys, "time": pa.array([0] * n, pa.timestamp("us")), "value": pa.array(range(n))})
    out = gw.aggregate(rows, spec(keys=list(keys)))
    expected: dict[tuple[Any, ...], int] = {}
    for row in rows.to_pylist():
        which = tuple(row[name] for name in keys)
        expected[which] = expected.get(which, 0) + row["value"]
    assert {tuple(row[name] for name in keys): row["total"] for row in out.to_pylist()} == expected


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (TABLE.drop(["value"]), "no column 'value'"),
        (TABLE.set_column(2, "value", pa.array(["1", "2", "3", "4"])), "cast it"),
        (TABLE.set_column(1, "time", TABLE["time"].cast(pa.timestamp("ms", "UTC"))), "time"),
        (pa.Table.from_arrays([*TABLE.columns, TABLE["key"]], [*TABLE.schema.names, "key"]), "more than once"),
        (42, "not int"),
        ([{"key": "a"}], "not list"),
    ],
)
def test_a_batch_that_does_not_fit(batch: Any, why: str) -> None:
    op = spec().start()
    op.process(TABLE)
    with pytest.raises(gw.SchemaError, match=why):
        op.process(batch)
    assert told(op.finish()) == EXPECTED


def test_tables_go_back_in_one_call() -> None:
    out = gw.aggregate(TABLE, spec())
    assert pl.from_arrow(out).height == out.to_pandas(types_mapper=pd.ArrowDtype).shape[0] == 4
    assert duckdb.connect().from_arrow(out).aggregate("sum(total)").fetchall() == [(15,)]

"""What goes in: every table library, every encoding, every unit of time; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
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
    "series of structs": lambda: pl.DataFrame(pl.from_arrow(TABLE)).to_struct("rows"),
    "pandas": TABLE.to_pandas,
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
    "pandas by time": lambda: TABLE.to_pandas().set_index("time"),
    "dataset": lambda: ds.dataset(TABLE),
    "scanner": lambda: ds.dataset(TABLE).scanner(),
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
        ([{"key": "a"}], r"not list; pa\.Table\.from_pylist\(rows\) makes one of rows"),
        ([pa.table({"key": ["a"]})], "not list; for several batches there is gw.run"),
        (pl.from_arrow(TABLE).lazy(), "collect"),
        (pa.table({}), "it has no columns"),
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


def test_objects_of_polars_are_refused() -> None:
    """Polars exports them as addresses, by which equal keys would be other groups."""
    frame = pl.DataFrame({"time": [1, 2], "key": pl.Series([object(), {1}], dtype=pl.Object), "value": [1, 2]})
    with pytest.raises(gw.SchemaError, match=r"'key' of the polars frame has Python objects .* drop it"):
        spec().start().process(frame)


FROM_POLARS = pl.DataFrame(
    {
        "key": pl.Series(["a", "b", "a"], dtype=pl.Categorical),
        "time": pl.Series([100_000, 0, 1], dtype=pl.Datetime("ms")),
        "value": [1, 2, 4],
        "level": pl.Series(["x", "y", "x"], dtype=pl.Enum(["x", "y"])),
        "tags": [["p"], [], ["q", "r"]],
        "text": ["long enough for a view", "b", None],
    }
)


def test_views_and_categories_of_polars() -> None:
    """Arrow gathers neither views nor dictionaries of views: neither as keys, nor as values, nor as late rows."""
    aggregates = {
        "total": gw.sum("value"),
        "key_again": gw.first("key"),
        "levels": gw.collect_set("level"),
        "tags": gw.collect_list("tags"),
        "text": gw.max("text"),
    }
    op = spec(aggregates=aggregates, watermark=gw.BoundedOutOfOrderness(), collect_late=True).start()
    op.process(FROM_POLARS[:1])
    none = op.late_rows()
    op.process(FROM_POLARS[1:])
    op = op._spec.restore(op.snapshot())
    late = op.late_rows()
    assert none.schema == late.schema
    assert late.drop_columns("time").to_pylist() == FROM_POLARS[1:].drop("time").to_dicts()
    (row,) = op.finish().to_pylist()
    told = [row[name] for name in ("key", "total", "key_again", "levels", "tags", "text")]
    assert told == ["a", 1, "a", ["x"], [["p"]], "long enough for a view"]


def test_a_dictionary_that_is_key_and_value() -> None:
    rows = TABLE.set_column(0, "key", TABLE["key"].dictionary_encode())
    aggregates = {"total": gw.sum("value"), "same": gw.max("key"), "n": gw.count_distinct("key")}
    out = gw.aggregate(rows, spec(aggregates=aggregates))
    assert out["same"].to_pylist() == out["key"].to_pylist()
    assert told(out) == EXPECTED


def test_chunks_whose_dictionaries_cannot_become_one() -> None:
    """pyarrow joins no dictionaries with nulls in them, and makes no empty array of some types of values."""
    parts = [(["a", None], [0, 1]), (["b", "a"], [0, 1])]
    chunks = [pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), pa.array(values)) for values, at in parts]
    times = pa.array(range(4), pa.timestamp("s"))
    counts = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), keys=["k"], time="ts", aggregates={"n": gw.count()}
    )
    found = gw.aggregate(pa.table({"ts": times, "k": pa.chunked_array(chunks)}), counts)
    assert sorted(zip(*found.select(["k", "n"]).to_pydict().values(), strict=True), key=str) == [
        ("a", 2), ("b", 1), (None, 1)
    ]  # fmt: skip
    type_ = pa.dictionary(pa.int32(), pa.decimal128(9, 2))
    nothing = pa.schema({"ts": pa.timestamp("s"), "k": type_}).empty_table()
    assert gw.aggregate(nothing.slice(0, 0), counts).num_rows == 0
    assert gw.aggregate(pa.table({"ts": times[:0], "k": pa.chunked_array([], type_)}), counts).num_rows == 0


def test_chunks_whose_dictionaries_of_float16_differ() -> None:
    """pyarrow joins such dictionaries to one that holds the bits of the values: 15872.0 for 1.5."""
    chunks = [pa.array([value], pa.float16()).dictionary_encode() for value in (1.5, -2.25)]
    nested = [pa.StructArray.from_arrays([chunk], ["x"]) for chunk in chunks]
    other = {"key": ["a", "b"], "time": pa.array([0, 1], pa.timestamp("s")), "value": [1, 2]}
    rows = pa.table({**other, "k": pa.chunked_array(chunks), "s": pa.chunked_array(nested)})
    aggregates = {"total": gw.sum("k"), "all": gw.collect_list("k"), "nested": gw.collect_list("s")}
    (row,) = gw.aggregate(rows, spec(keys=[], aggregates=aggregates)).to_pylist()
    assert (row["total"], row["all"]) == (-0.75, [1.5, -2.25])
    assert row["nested"] == [{"x": 1.5}, {"x": -2.25}]
    assert gw.aggregate(rows, spec(keys=["k"], aggregates={"n": gw.count()}))["k"].to_pylist() == [1.5, -2.25]
    assert late_of(rows)["k"].to_pylist() == [1.5, -2.25]


LISTS: list[Any] = [[1], None, [], [2, None], [1]]
VIEWS = {
    "views": pa.array(LISTS, pa.list_view(pa.int64())),
    "large views": pa.array(LISTS, pa.large_list_view(pa.int64())),
    "a slice": pa.array([[7], None, *LISTS], pa.list_view(pa.int64())).slice(2),
    "not in order": pa.ListViewArray.from_arrays([1, 0, 0, 2, 1], [1, 0, 0, 2, 1], pa.array([0, 1, 2, None]),
                                                 mask=pa.array([False, True, False, False, False])),
    "dictionary": pa.DictionaryArray.from_arrays([0, None, 1, 2, 0], pa.array([[1], [], [2, None]],
                                                 pa.list_view(pa.int64()))),
    "in structs": pa.array([{"x": v} for v in LISTS[:-1]] + [None], pa.struct({"x": pa.list_view(pa.int64())})),
    "in lists": pa.array([[v] for v in LISTS[:-1]] + [None], pa.list_(pa.list_view(pa.int64()))),
    "in fixed lists": pa.array([[v] for v in LISTS[:-1]] + [None], pa.list_(pa.list_view(pa.int64()), 1)),
    "in views": pa.array([[v, v] for v in LISTS[:-1]] + [None], pa.list_view(pa.list_view(pa.int64()))),
    "of text": pa.array([["a"], None, [], ["b", None], ["a"]], pa.list_view(pa.string_view())),
}  # fmt: skip


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_lists_are_lists(name: str, chunks: int) -> None:
    column = VIEWS[name]
    given = column.to_pylist()
    parts = [column] if chunks == 1 else [column.slice(0, 2), column.slice(2)]
    other = {"key": ["a"] * 5, "time": pa.array([0] * 5, pa.timestamp("s")), "value": [1] * 5}
    rows = pa.table({**other, "k": pa.chunked_array(parts)})
    aggregates = {"all": gw.collect_list("k"), "distinct": gw.count_distinct("k"), "set": gw.collect_set("k")}
    values = spec(keys=[], aggregates=aggregates)
    op = values.start()
    op.process(rows)
    op = values.restore(op.snapshot())
    (row,) = op.finish().to_pylist()
    some = [value for value in given if value is not None]
    different = [value for at, value in enumerate(some) if value not in some[:at]]
    assert (row["all"], row["distinct"], row["set"]) == (some, len(different), different)
    counts = gw.aggregate(rows, spec(keys=["k"], aggregates={"n": gw.count()}))
    assert {repr(r["k"]): r["n"] for r in counts.to_pylist()} == {repr(v): given.count(v) for v in given}
    assert "view" not in str(counts.schema)
    assert late_of(rows)["k"].to_pylist() == given


def test_views_of_lists_that_cannot_be_lists_are_refused() -> None:
    column = pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_view(pa.int64())))
    rows = pa.table({"time": pa.array([0], pa.timestamp("s")), "k": column})
    with pytest.raises(gw.SchemaError, match=r"column 'k' is map<.*: views of lists are not read in maps"):
        gw.aggregate(rows, spec(keys=["k"], aggregates={"n": gw.count()}))


def late_of(*batches: Any) -> pa.Table:
    op = spec(watermark=gw.BoundedOutOfOrderness(), collect_late=True).start()
    op.process(TABLE.slice(3))
    op.process(pa.table({"key": ["x"], "time": pa.array([10**6], pa.timestamp("s")), "value": [0]}))
    for batch in batches:
        op.process(batch)
    return op.late_rows()


def test_late_rows_of_different_schemas_are_one_table() -> None:
    row = TABLE.slice(1, 1)
    others = [
        row.set_column(1, "time", row["time"].cast(pa.timestamp("ns"))),
        row.set_column(0, "key", row["key"].dictionary_encode()),
        row.append_column("more", pa.array([1])),
        row.to_pandas()[lambda frame: frame.value > 1].set_index(pd.Index([7])),
    ]
    late = late_of(row, *others)
    assert late.schema == pa.schema(
        [("key", pa.large_string()), ("time", pa.timestamp("ns")), ("value", pa.int64()), ("more", pa.int64())]
    )
    assert late["value"].to_pylist() == [2] * 5
    twice = pa.Table.from_arrays([*row.columns, row["value"], row["value"]], [*row.schema.names, "z", "z"])
    assert late_of(twice, twice).num_rows == 2


@pytest.mark.parametrize("semantics", [gw.Semantics(), gw.Semantics.FLINK])
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.Trigger(early=gw.EveryRows(1))])
def test_late_rows_of_a_batch_are_in_order_of_arrival(semantics: gw.Semantics, emit: Any) -> None:
    """Also where rows are taken key by key."""
    given: dict[str, Any] = {"window": gw.SessionWindow("1 second"), "emit": emit, "semantics": semantics}
    op = spec(**given, watermark=gw.BoundedOutOfOrderness(), collect_late=True).start()
    for times in ([100], [1, 2, 3, 4, 5]):
        keys = ["a" if time in (1, 2, 4) else "b" for time in times]
        op.process(pa.table({"key": keys, "time": pa.array(times, pa.timestamp("s")), "value": times}))
    assert op.late_rows()["value"].to_pylist() == [1, 2, 3, 4, 5]


def test_late_rows_that_cannot_be_one_table_are_refused_before_anything_changes() -> None:
    row = TABLE.slice(1, 1)
    op = spec(watermark=gw.BoundedOutOfOrderness(), collect_late=True).start()
    op.process(pa.table({"key": ["x"], "time": pa.array([10**6], pa.timestamp("s")), "value": [0]}))
    op.process(row.append_column("more", pa.array(["text"])))
    before = op.snapshot()
    number = row.append_column("more", pa.array([1]))
    with pytest.raises(gw.SchemaError, match=r"call late_rows\(\) before"):
        op.process(number)
    assert op.snapshot() == before
    assert op.late_rows()["more"].to_pylist() == ["text"]
    op.process(number)
    assert op.late_rows()["more"].to_pylist() == [1]


def test_the_first_batch_says_what_it_lacks() -> None:
    nameless = pa.Table.from_arrays([*TABLE.columns, TABLE["value"]], [*TABLE.schema.names, "value"])
    with pytest.raises(gw.SchemaError, match="'value' is there more than once"):
        gw.aggregate(nameless, spec())
    for name in ("time", "value"):
        untyped = TABLE.set_column(TABLE.schema.names.index(name), name, pa.nulls(4))
        with pytest.raises(gw.SchemaError, match=rf"'{name}', which is null, has no type .*start\(schema=...\)"):
            gw.aggregate(untyped, spec())
        op = spec().start(schema=TABLE.schema)
        op.process(untyped)
        op.process(TABLE)
        assert sum(v or 0 for v in op.finish()["total"].to_pylist()) == 15


@pytest.mark.parametrize(
    "reads",
    [
        {
            "aggregates": {
                "n": gw.accumulation(
                    state={"n": 0}, add=lambda n, x: n + x, merge=lambda n, m: n + m, result=lambda n: n
                )("value")
            }
        },
        {"window": gw.SessionWindow(gw.column("value"))},
        {"window": gw.GlobalWindow(), "emit": gw.Trigger(gw.EveryRows(1), evict=gw.KeepNear("value", 2.0))},
    ],
    ids=["accumulation", "gap", "evictor"],
)
def test_whatever_reads_a_column_says_that_it_has_no_type_yet(reads: dict[str, Any]) -> None:
    untyped = TABLE.set_column(TABLE.schema.names.index("value"), "value", pa.nulls(4))
    views = spec(**{"aggregates": {"n": gw.count()}, **reads})
    with pytest.raises(gw.SchemaError, match=r"'value', which is null, has no type .*start\(schema=...\)"):
        gw.aggregate(untyped, views)
    views.start(schema=TABLE.schema).process(untyped)


def test_a_stream_is_several_batches() -> None:
    with pytest.raises(gw.SchemaError, match=r"gw.aggregate\(batch, spec\)"):
        gw.run(spec(), TABLE)
    with pytest.raises(gw.SpecificationError, match=r"gw.run\(spec, batches\)"):
        gw.run([TABLE], spec())  # type: ignore[arg-type]
    with pytest.raises(gw.SpecificationError, match=r"gw.aggregate\(table, spec\)"):
        gw.aggregate(spec(), TABLE)  # type: ignore[arg-type]
    assert [t.num_rows for t in gw.run(spec(), TABLE.to_reader(max_chunksize=2))] == [0, 0, 4]


@pytest.mark.parametrize(
    ("gap", "ends"),
    [
        (pa.array([2**63 - 1, None, -1], pa.duration("s")), [2**63 - 1]),
        (pa.array([2**64 - 1, 0, 5], pa.uint64()), [5, 2**63 - 1]),
    ],
)
def test_session_gaps_saturate(gap: pa.Array, ends: list[int]) -> None:
    rows = pa.table({"key": ["a", "b", "c"], "time": pa.array([0] * 3, pa.timestamp("us")), "value": gap, "gap": gap})
    out = gw.aggregate(rows, spec(window=gw.SessionWindow(gw.column("gap")), aggregates={"n": gw.count()}))
    assert sorted(out["window_end"].cast(pa.int64()).to_pylist()) == ends


@pytest.mark.parametrize("slide", ["5 seconds", "5000001 microseconds"])
def test_bounds_of_windows_saturate(slide: str) -> None:
    """Also where panes are a microsecond wide, whose numbers are times."""
    last = 2**63 - 1
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow("10 seconds", slide), time="t", aggregates={"n": gw.count()}
    )  # fmt: skip
    found = gw.aggregate(pa.table({"t": pa.array([last], pa.timestamp("us"))}), spec)
    ends = found["window_end"].cast(pa.int64()).to_pylist()
    assert ends == [last] * len(ends)
    assert all(last - 10_000_000 < start <= last for start in found["window_start"].cast(pa.int64()).to_pylist())
    assert found["n"].to_pylist() == [1] * len(ends)


def test_rows_without_bounds_are_counted() -> None:
    op = spec(window=gw.InheritedWindow(), keys=[], aggregates={"n": gw.count()}).start()
    columns = {
        "time": pa.array([1, 2], pa.timestamp("s")),
        "window_start": pa.array([0, None], pa.timestamp("s")),
        "window_end": pa.array([10, None], pa.timestamp("s")),
    }
    op.process(pa.table(columns))
    assert (op.metrics.rows_null_time, op.metrics.windows_open) == (1, 1)

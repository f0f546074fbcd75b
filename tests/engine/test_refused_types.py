"""Types of values that an aggregate, or a later batch, may not have: the error says what to do instead."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {"window": gw.TumblingWindow("10 seconds"), "time": "time", "aggregates": {"n": gw.count()}}
    return gw.WindowedAggregation(**{**given, **more})


def rows(*times: int, **columns: Any) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s")), **columns})


def test_numbers_that_become_floats() -> None:
    op = spec(aggregates={"total": gw.sum("v")}).start()
    op.process(rows(1, v=[1]))
    with pytest.raises(gw.SchemaError, match=r"is double, and was int64 in the first batch: .*start\(schema=\.\.\.\)$"):
        op.process(rows(2, v=[1.5]))
    schema = pa.schema([("time", pa.timestamp("s")), ("v", pa.float64())])
    op = spec(aggregates={"total": gw.sum("v")}).start(schema=schema)
    with pytest.raises(gw.SchemaError, match=r"is int64, and was double"):
        op.process(rows(1, v=[1]))
    join = gw.HashJoin(["k"]).start()
    join.process(left=pa.table({"k": [1], "v": [1]}))
    with pytest.raises(gw.SchemaError, match=r"start\(left_schema=\.\.\.\)$"):
        join.process(left=pa.table({"k": [1], "v": [1.5]}))


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (gw.first("s"), "take gw.first('number'), and join the rows to that number; or look for it in gw.collect_list"),
        (gw.last("s"), "take gw.last('number'), and join"),
        (gw.any_value("s"), "take gw.any_value('number'), and join"),
        (gw.min_by("s", "v"), "gw.min_by('s', 'v', 1) takes nested values, and gives a list"),
        (gw.max_by("s", "v"), "gw.max_by('s', 'v', 1) takes nested values, and gives a list"),
        (gw.max_by("v", "s", 2), "max_by of column 's', which is struct<a: int64>; it takes values that have an order"),
        (gw.max("s"), "gw.collect_list('s') takes nested values"),
        (gw.top_k("s", 2), "gw.collect_list('s') takes nested values"),
        (gw.sum("s"), "it takes numbers, decimals (decimal128) and durations"),
        (gw.max_by("v", "s"), "it takes numbers, decimals of up to 18 digits, booleans and times"),
    ],
)
def test_structs_are_refused_with_what_to_do(aggregate: Any, says: str) -> None:
    table = rows(1, v=[1], s=[{"a": 1}])
    with pytest.raises(gw.SchemaError) as caught:
        gw.aggregate(table, spec(aggregates={"x": aggregate}))
    assert says in str(caught.value)
    assert gw.aggregate(table, spec(aggregates={"x": gw.collect_list("s")}))["x"].to_pylist() == [[{"a": 1}]]


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (gw.sum("flag"), "and durations. gw.count_if('flag') counts the rows where it is true"),
        (gw.max("tagged"), "strings and binary: cast it to fixed_size_binary[16]"),
        (gw.sum("tagged"), "numbers, decimals (decimal128) and durations"),
    ],
)
def test_what_to_do_with_booleans_and_extension_types(aggregate: Any, says: str) -> None:
    table = rows(1, flag=[True], tagged=pa.array([b"0" * 16], pa.uuid()))
    with pytest.raises(gw.SchemaError) as caught:
        gw.aggregate(table, spec(aggregates={"x": aggregate}))
    assert str(caught.value).endswith(says)

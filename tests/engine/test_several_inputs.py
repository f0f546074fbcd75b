"""Aggregations and joins of several inputs: how an idle one is moved, and how `gw.run` takes their batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {"window": gw.TumblingWindow("10 seconds"), "time": "time", "aggregates": {"n": gw.count()}}
    return gw.WindowedAggregation(**{**given, **more})


def rows(*times: int, **columns: Any) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s")), **columns})


TWO = gw.MultipleInputs([gw.BoundedOutOfOrderness("0 seconds"), gw.BoundedOutOfOrderness("2 seconds")])  # type: ignore[arg-type]


def test_an_idle_input_is_moved_and_the_error_says_so() -> None:
    with pytest.raises(
        gw.SpecificationError, match=r"not EventClock.*: move an idle input by op\.advance_watermark\(t"
    ):
        gw.MultipleInputs([gw.EventClock("1 minute"), gw.EventClock("1 minute")])  # type: ignore[arg-type]
    with pytest.raises(gw.SpecificationError, match=r"not SystemClock\(\)$"):
        gw.MultipleInputs([gw.SystemClock()] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [gw.EventClock("1 minute"), (gw.EventClock(timedelta.max), gw.EventClock("1 day"))])
def test_an_idle_side_is_moved_and_the_error_says_so(clock: Any) -> None:
    for write in (
        lambda: gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", watermark=clock),
        lambda: gw.WindowJoin(gw.TumblingWindow("1 minute"), ["k"], "t", "t", watermark=clock),
    ):
        with pytest.raises(gw.SpecificationError, match=r"where a side is idle, move both by op\.advance_watermark"):
            write()
    with pytest.raises(gw.SpecificationError, match=r"not SystemClock\(\)$"):
        gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", watermark=gw.SystemClock())  # type: ignore[arg-type]


def test_run_takes_pairs_of_several_inputs() -> None:
    op = spec(watermark=TWO).start()
    came = [(0, rows(11)), (1, rows(3)), (1, rows(13)), (0, rows(21)), (1, rows(23))]
    by_hand = [op.process(batch, source=source) for source, batch in came]
    by_hand.append(op.finish())
    assert list(gw.run(spec(watermark=TWO), came)) == by_hand
    assert [table["n"].to_pylist() for table in by_hand] == [[], [], [1], [], [2], [2]]


@pytest.mark.parametrize("wrong", [rows(1), (rows(1),), [0, rows(1)], {"time": []}])
def test_run_wants_to_know_whose_rows_come(wrong: Any) -> None:
    with pytest.raises(gw.SchemaError, match=r"with MultipleInputs gw\.run takes pairs \(source, batch\)"):
        next(iter(gw.run(spec(watermark=TWO), [wrong])))
    with pytest.raises(gw.SpecificationError, match="source is the number of an input"):
        next(iter(gw.run(spec(watermark=TWO), [(2, rows(1))])))


def test_run_of_a_join_says_how_a_join_runs() -> None:
    join = gw.HashJoin(["k"])
    with pytest.raises(gw.SpecificationError, match=r"not HashJoin; a join goes by its own loop: .*left=\.\.\."):
        gw.run(join, [])  # type: ignore[arg-type]

"""State on disk gives the rows that state in memory gives, whatever the specification."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import hows, rows_named, run, steps
from streams import Options, answers, options, streams
from test_properties import EXAMPLES

import gpuwin as gw
from gpuwin import operator
from gpuwin.joins.operator import JoinOperator, spilled
from gpuwin.joins.state import JoinState, memory_of
from gpuwin.state import spill

KINDS = ["panes", "by row", "firings", "sessions", "session firings", "changes", "complete"]


@pytest.fixture
def all_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """After each batch everything that can leave memory does. Yields the bytes of each time that something did."""
    freed: list[int] = []

    def spilled(self: Any, held: Any, after: Any) -> Any:
        before = held.size()
        windows = held.spilled(1 << 62, os.fspath(tmp_path))
        assert windows.open_windows(after.progress) == held.open_windows(after.progress)
        cells, size = windows.size()
        assert cells == before[0]
        freed.append(before[1] - size)
        return operator.replace(after, windows=windows)

    monkeypatch.setattr(spill, "_LEAST", 1)
    monkeypatch.setattr(operator.WindowOperator, "_within_limits", spilled)
    yield freed
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [*KINDS, "event time", "any windows", "any sessions"])
def test_all_on_disk(kind: str, all_on_disk: list[int]) -> None:
    plain = operator.WindowOperator._within_limits

    @settings(EXAMPLES, max_examples=15)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        chosen: Options = data.draw(options(kind))
        stream = data.draw(streams())
        restored = data.draw(st.booleans())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator.WindowOperator, "_within_limits", lambda self, engine, after: after)
            expected = answers(chosen, stream)
        assert operator.WindowOperator._within_limits is plain
        assert answers(chosen, stream, restore=restored) == expected

    run()
    assert max(all_on_disk) > 0


AS_OF = ("left", "inner", "semi", "anti")
JOINS: dict[str, Callable[[str], Any]] = {
    "interval": lambda how: gw.IntervalJoin(
        ["k"], "t", "t", "-5 seconds", "5 seconds", how, watermark=gw.BoundedOutOfOrderness("9 seconds")
    ),
    "hash": lambda how: gw.HashJoin(["k"], how),
    "as of": lambda how: gw.AsOfJoin(
        ["k"], "t", "t", "9 seconds", how if how in AS_OF else "left", watermark=gw.BoundedOutOfOrderness("9 seconds")
    ),
    "sliding": lambda how: gw.WindowJoin(gw.SlidingWindow("9 seconds", "3 seconds"), ["k"], "t", "t", how),
    "session": lambda how: gw.WindowJoin(gw.SessionWindow("4 seconds"), ["k"], "t", "t", how),
}


@pytest.mark.parametrize("kind", JOINS)
def test_joins_on_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []

    def all_on_disk(self: JoinOperator, state: JoinState) -> JoinState:
        after = spilled(state, 1 << 62, os.fspath(tmp_path))
        freed.append(memory_of(state) - memory_of(after))
        return after

    monkeypatch.setattr(spill, "_LEAST", 1)

    @settings(EXAMPLES, max_examples=15)
    @given(rows_named("l"), rows_named("r"), hows, steps)
    def same(left: Any, right: Any, how: str, cuts: Any) -> None:
        expected = run(JOINS[kind](how), left, right, cuts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JoinOperator, "_within_limits", all_on_disk)
            assert run(JOINS[kind](how), left, right, cuts) == expected

    same()
    assert max(freed) > 0
    assert os.listdir(tmp_path) == []


def test_a_join_keeps_its_budget(tmp_path: Path) -> None:
    limits = gw.Limits(max_state_bytes=1_000_000, spill_to=tmp_path)
    op, free = gw.HashJoin(["k"], limits=limits).start(), gw.HashJoin(["k"]).start()
    for k in range(8):
        rows = pa.table({"k": np.arange(10_000) % 5_000, "v": np.arange(10_000) + k * 10_000})
        assert op.process(left=rows) == free.process(left=rows)
        assert op.metrics.state_bytes <= 1_000_000
        if k == 5:
            op = gw.HashJoin(["k"], limits=limits).restore(op.snapshot())
    assert free.metrics.state_bytes > 2_000_000
    asked = pa.table({"k": np.arange(0, 5_000, 100), "w": np.arange(50)})
    (here, there) = (o.process(right=asked).sort_by([("v", "ascending")]) for o in (op, free))
    assert here == there
    assert here.num_rows == 50 * 16
    before = op.snapshot()
    with pytest.raises(gw.LimitExceeded, match="nothing of the batch was applied"):
        op.process(left=pa.table({"k": np.arange(100_000), "v": np.arange(100_000)}))
    assert op.snapshot() == before


EVICTORS = [gw.KeepLast(40), gw.KeepWithin("30 seconds", after=True), gw.KeepNear("value", 500.0)]


@pytest.mark.parametrize("evictor", EVICTORS)
def test_rows_of_windows_with_an_evictor(evictor: Any, all_on_disk: list[int]) -> None:
    views = gw.WindowedAggregation(
        window=gw.SlidingWindow("60 seconds", "30 seconds"),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count(), "all": gw.collect_list("value"), "high": gw.max("name")},
        emit=gw.Trigger(early=gw.EveryRows(7), evict=evictor),
    )
    rows = pa.table(
        {
            "key": np.arange(600) % 5,
            "time": pa.array(np.arange(600)).cast(pa.timestamp("s")),
            "value": np.arange(600) * 37 % 1_000,
            "name": [f"n{k}" for k in range(600)],
        }
    )

    def told() -> list[pa.Table]:
        op = views.start()
        tables = [op.process(rows.slice(k, 100)) for k in range(0, 600, 100)]
        return [*tables, views.restore(op.snapshot()).finish()]

    here = told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator.WindowOperator, "_within_limits", lambda self, engine, after: after)
        assert told() == here
    assert max(all_on_disk) > 0


def test_a_join_on_disk_stays_within_its_limit(tmp_path: Path) -> None:
    """Though rows that waited are merged with rows on the disk, which are then in memory."""
    limits = gw.Limits(max_state_bytes=600_000, spill_to=tmp_path)
    late = gw.BoundedOutOfOrderness("40 seconds")
    op = gw.WindowJoin(gw.TumblingWindow("1 second"), ["k"], "t", "t", "semi", watermark=late, limits=limits).start()
    pairs = 0
    for second in range(60):
        rows = pa.table({"k": range(1_000), "t": pa.array([second] * 1_000, pa.timestamp("s"))})
        pairs += op.process(rows, rows).num_rows
        assert op.metrics.state_bytes <= 600_000
    assert pairs == 19_000
    assert op.finish().num_rows == 41_000

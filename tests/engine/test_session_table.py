"""Open sessions in a table give what they give in tiers, and nothing can tell where they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin_kernels import tuning

SECOND = 1_000_000
WHOLE = {
    "n": gw.count(),
    "seen": gw.count("v"),
    "total": gw.sum("v"),
    "mean": gw.mean("v"),
    "high": gw.max("v"),
    "low": gw.min("v"),
    "first": gw.first("v"),
    "last": gw.last("v"),
}
Row = tuple[int, int, int | None, int]
Taken = list[tuple[Any, ...]]


def batch(rows: list[Row]) -> pa.Table:
    key, time, value, gap = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "key": pa.array(key, pa.int64()),
            "ts": pa.array([t * SECOND for t in time], pa.int64()).view(pa.timestamp("us")),
            "v": pa.array(value, pa.int64()),
            "gap": pa.array([g * SECOND for g in gap], pa.int64()).view(pa.duration("us")),
        }
    )


def spec(gap: Any = "5 seconds", delay: int = 0, **more: Any) -> gw.WindowedAggregation:
    given_ = {"window": gw.SessionWindow(gap), "keys": ["key"], "time": "ts", "aggregates": WHOLE}
    return gw.WindowedAggregation(**{**given_, "watermark": gw.BoundedOutOfOrderness(timedelta(seconds=delay)), **more})


def rows_of(table: pa.Table) -> Taken:
    return [tuple(row.values()) for row in table.to_pylist()]


def played(a: gw.WindowedAggregation, batches: list[list[Row]], tables: bool) -> tuple[list[Taken], list[Any], bool]:
    """Results of each batch and of the end, what the metrics said, and whether a table was there at any time."""
    op, out, said, tabled = a.start(device="cpu"), [], [], False
    with pytest.MonkeyPatch.context() as patch:
        if not tables:
            patch.setattr(tuning, "TABLE_SESSIONS", -1)
        for rows in batches:
            out.append(rows_of(op.process(batch(rows))))
            metrics = op.metrics
            said.append((metrics.rows_late, metrics.windows_open, metrics.cells, op.watermark))
            tabled |= op._running.windows.state.table is not None
        op = a.restore(op.snapshot(), device="cpu")  # what waits anywhere is saved
        return [*out, rows_of(op.finish())], said, tabled


@st.composite
def streams(draw: st.DrawFn) -> list[list[Row]]:
    times, at = [], 0
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.integers(0, 4))
        times.append(at - draw(st.sampled_from([0, 0, 0, 1, 3, 6, 9, 15, 30])))
    value = st.none() | st.integers(-9, 9)
    rows = [(draw(st.integers(0, 2)), t, draw(value), draw(st.integers(0, 9))) for t in times]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    batches=streams(),
    by_row=st.booleans(),
    delay=st.sampled_from([0, 6, 30]),
    touch=st.sampled_from(["merge", "split"]),
    close=st.sampled_from(["at_end", "after_end"]),
)
def test_equals_tiers(batches: list[list[Row]], by_row: bool, delay: int, touch: str, close: str) -> None:
    semantics = gw.Semantics(session_touch=touch, close=close)
    a = spec(gw.column("gap") if by_row else "5 seconds", delay, semantics=semantics)
    found, said, _ = played(a, batches, True)
    expected, expected_said, tabled = played(a, batches, False)
    assert not tabled
    assert [sorted(rows, key=str) for rows in found] == [sorted(rows, key=str) for rows in expected]
    assert said == expected_said


def test_results_come_in_order_of_keys_and_time() -> None:
    rows = [[(k % 7, 20 * (k // 7) + k % 3, 1, 1) for k in range(70)]]
    found, _, tabled = played(spec(delay=1_000), rows, True)
    assert tabled
    assert [row[:2] for row in found[-1]] == sorted(row[:2] for row in found[-1])
    assert len(found[-1]) == 70


def test_a_bridge_over_several_sessions_keeps_their_rows() -> None:
    apart = [[(1, 10 * k, k, 1) for k in range(6)], [(2, 3, 7, 1)], [(1, 10 * k + 5, None, 1) for k in range(5)]]
    found, said, tabled = played(spec(delay=100), apart, True)
    assert tabled
    assert [s[1] for s in said] == [6, 7, 2]
    assert [(row[0], row[3], row[5]) for row in found[-1]] == [(1, 11, 15), (2, 1, 7)]


def test_a_batch_that_raises_changes_nothing() -> None:
    most = (1 << 63) - 1
    op = spec(aggregates={"total": gw.sum("v")}, delay=50).start(device="cpu")
    op.process(batch([(1, 0, most, 1), (2, 0, 5, 1)]))
    assert op._running.windows.state.table is not None
    with pytest.raises(gw.OverflowError):
        op.process(batch([(2, 1, 5, 1), (1, 1, 1, 1)]))
    op.process(batch([(1, 2, 1, 1), (1, 3, -1, 1)]))  # leaves 64 bits on the way, and comes back
    assert [row[0::3] for row in rows_of(op.finish())] == [(1, most), (2, 5)]


def test_a_branch_does_not_see_what_comes_after_it() -> None:
    op = spec(delay=50).start(device="cpu")
    op.process(batch([(1, 0, 1, 1), (2, 0, 1, 1)]))
    other = op.branch()
    op.process(batch([(1, 1, 10, 1), (3, 1, 10, 1)]))
    assert [row[5] for row in rows_of(other.finish())] == [1, 1]
    assert [row[5] for row in rows_of(op.finish())] == [11, 1, 10]


def test_rows_in_no_order_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "UNTABLED", 2)
    rng = np.random.default_rng(3)
    batches = [[(1, int(t), 1, 1) for t in rng.permutation(6_000)[:1_500] * 20] for _ in range(6)]
    a = spec("1 second", delay=1_000_000)
    op, tabled = a.start(device="cpu"), []
    for rows in batches:
        op.process(batch(rows))
        tabled.append(op._running.windows.state.table is not None)
    assert not any(tabled)
    assert rows_of(op.finish()) == played(a, batches, False)[0][-1]


def test_many_open_sessions_leave_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "TABLE_SESSIONS", 50)
    monkeypatch.setattr(tuning, "TABLE_CODES", 1_000)
    batches = [[(k + 40 * i, i, 1, 1) for k in range(40)] for i in range(5)]
    batches += [[(1, 1_000, 1, 1)], [(1, 2_000, 1, 1)], [(1, 3_000, 1, 1)]]
    op, open_, there = spec(delay=100).start(device="cpu"), [], []
    for rows in batches:
        op.process(batch(rows))
        open_.append(op.metrics.windows_open)
        there.append(op._running.windows.state.table is not None)
    assert open_ == [40, 80, 120, 160, 200, 1, 1, 1]
    assert there == [True, True, True, False, False, False, True, True]

"""Sessions over the times of others that the same batch evicted: the rows of each are its own. A batch gives what its
rows give one by one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw

Row = tuple[int, int]  # its time and its gap


def emitted(rows: list[Row], size: int, window: gw.SessionWindow, emit: Any, **more: Any) -> list[dict[str, Any]]:
    """The sessions of rows in batches of this size, with the times of their rows."""
    semantics = gw.Semantics(watermark_advance="row", **more.pop("semantics", {}))
    op = gw.WindowedAggregation(
        window=window,
        time="time",
        aggregates={"n": gw.count(), "times": gw.collect_list("of")},
        emit=emit,
        watermark=gw.BoundedOutOfOrderness("0 seconds"),
        semantics=semantics,
        **more,
    ).start(device="cpu")
    times = [t for t, _ in rows]
    table = pa.table({"time": pa.array(times, pa.timestamp("s")), "of": times, "gap": [g * 1_000_000 for _, g in rows]})
    parts = [op.process(table.slice(i, size)) for i in range(0, len(rows), size)]
    found: list[dict[str, Any]] = pa.concat_tables([*parts, op.finish()]).select(["n", "times"]).to_pylist()
    return found


def sessions(*of: list[int]) -> list[dict[str, Any]]:
    return [{"n": len(times), "times": times} for times in of]


PER_ROW = gw.SessionWindow(gw.column("gap"))
#: [11, 21) is evicted by the row at 30, and [10, 50), with it, begins before.
OVER = [(11, 10), (30, 10), (10, 40)]


@pytest.mark.parametrize("accumulation", ["accumulating", "discarding", "retracting"])
@pytest.mark.parametrize("scope", ["stream", "key"])
def test_on_update_has_the_rows_of_a_session_alone(accumulation: Any, scope: str) -> None:
    more: dict[str, Any] = {"accumulation": accumulation, "semantics": {"watermark_scope": scope}}
    found = emitted(OVER, 3, PER_ROW, gw.OnUpdate(), **more)
    assert found == sessions([11], [30, 10])


def test_on_update_emits_a_session_once_where_it_closes_and_is_kept() -> None:
    found = emitted([(0, 10), (15, 10), (1, 10), (30, 10)], 4, PER_ROW, gw.OnUpdate(), allowed_lateness="9 seconds")
    assert sorted(f["times"] for f in found) == [[0, 1], [15], [30]]


@pytest.mark.parametrize("size", [1, 2])
def test_sessions_of_an_instant_that_was_evicted_before(size: int) -> None:
    """A row at the watermark is not late by its time, and the session of that instant is gone."""
    semantics = {"late_by": "timestamp"}
    found = emitted([(5, 0), (5, 0)], size, gw.SessionWindow("0 seconds"), gw.OnClose(), semantics=semantics)
    assert found == sessions([5], [5])


@pytest.mark.parametrize("scope", ["stream", "key"])
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.EveryRow()])
def test_sessions_of_an_instant_leave_at_the_end_of_a_batch(scope: Any, emit: Any) -> None:
    """As the watermark moves then, rows at it are of one session."""
    op = gw.WindowedAggregation(
        window=gw.SessionWindow("0 seconds"),
        time="time",
        aggregates={"n": gw.count()},
        emit=emit,
        semantics=gw.Semantics(late_by="timestamp", watermark_scope=scope),
    ).start(device="cpu")
    at = pa.table({"time": pa.array([5, 5], pa.timestamp("s"))})
    op.process(at.slice(0, 1))
    assert op.process(at)["n"].to_pylist()[-1] == 2


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
def test_a_closed_session_is_evicted_before_a_later_one_gets_rows_of_its_times(size: int, accumulation: Any) -> None:
    """[5, 45) closes at 50, and is evicted at 58, before the row at 34, which lies among its rows."""
    rows = [(5, 40), (36, 9), (50, 40), (58, 3), (34, 40)]
    found = emitted(rows, size, PER_ROW, gw.OnClose(), allowed_lateness="10 seconds", accumulation=accumulation)
    assert found == sessions([5, 36], [50, 58, 34])


def test_sessions_of_an_instant_do_not_split() -> None:
    views = gw.WindowedAggregation(
        window=gw.SessionWindow("0 seconds"),
        time="t",
        aggregates={"n": gw.count(), "all": gw.collect_list("v")},
        semantics=gw.Semantics(session_touch="split"),
    )
    rows = pa.table({"t": pa.array([5, 5, 9], pa.timestamp("s")), "v": [1, 2, 3]})
    assert gw.aggregate(rows, views).select(["n", "all"]).to_pylist() == [{"n": 2, "all": [1, 2]}, {"n": 1, "all": [3]}]

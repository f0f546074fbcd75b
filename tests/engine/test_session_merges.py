"""Which sessions became one: `WindowOperator.session_merges` against sessions that are looked at one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw

GAP = 10
Row = tuple[str | None, int]


def spec(emit: Any, semantics: gw.Semantics, **more: Any) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(
        window=gw.SessionWindow(f"{GAP} seconds"),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness("1 day"),
        emit=emit,
        semantics=semantics,
        collect_merges=True,
        **more,
    )


def table(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([key for key, _ in rows], pa.string()),
            "time": pa.array([time for _, time in rows], pa.timestamp("s", "UTC")),
        }
    )


def told(merges: pa.Table) -> list[tuple[Any, ...]]:
    bounds = [merges.column(k).cast(pa.int64()).to_pylist() for k in range(1, 5)]
    seconds = ([number // 1_000_000 for number in column] for column in bounds)
    return list(zip(merges["key"].to_pylist(), *seconds, strict=True))


def expected(batches: list[list[Row]]) -> list[tuple[Any, ...]]:
    """Sessions as (key, start, end) in a list; a row takes out what it touches and puts back one."""
    sessions: list[tuple[Any, int, int]] = []
    out = []
    for key, time in (row for batch in batches for row in batch):
        near = sorted(s for s in sessions if s[0] == key and s[1] <= time + GAP and time <= s[2])
        whole = (key, min([time, *(s[1] for s in near)]), max([time + GAP, *(s[2] for s in near)]))
        sessions = [s for s in sessions if s not in near] + [whole]
        out += [(*whole, part[1], part[2]) for part in near[1:]]
    return out


KEYS = st.sampled_from(["a", "b", None])
ROWS = st.lists(st.tuples(KEYS, st.integers(-60, 60)), max_size=12)
EMISSIONS = {"close": gw.OnClose(), "each": gw.EveryRow(), "early": gw.Trigger(early=gw.EveryRows(2))}


@pytest.mark.parametrize("emit", EMISSIONS)
@pytest.mark.parametrize("watermark", ["batch", "row"])
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(ROWS, max_size=4))
def test_merges_are_those_of_sessions_looked_at_one_by_one(emit: str, watermark: Any, batches: list[list[Row]]) -> None:
    views = spec(EMISSIONS[emit], gw.Semantics(watermark_advance=watermark))
    op = views.start(schema=table([]).schema)
    found = []
    for k, batch in enumerate(batches):
        op.process(table(batch))
        if k % 2:
            op = views.restore(op.snapshot())
            found += told(op.session_merges())
    found += told(op.session_merges())
    # Where rows may fire one by one, those of different keys are taken in rounds: in order by key.
    by_key = [[m for m in merges if m[0] == key] for merges in (found, expected(batches)) for key in ("a", "b", None)]
    assert by_key[:3] == by_key[3:]
    assert op.session_merges().num_rows == 0


def test_bytewax_merged_ids() -> None:
    """Case BW-20: the third event is one gap from both sessions; sessions are told up to their last event."""
    op = spec(gw.OnClose(), gw.Semantics.BYTEWAX).start()
    op.process(table([("k", 0), ("k", 20), ("k", 10)]))
    merges = op.session_merges()
    assert told(merges) == [("k", 0, 20, 20, 20)]
    assert merges.schema.names == ["key", "window_start", "window_end", "merged_start", "merged_end"]
    assert merges.schema.field("merged_end").type == pa.timestamp("us", "UTC")


def test_a_batch_that_fails_tells_of_no_merge() -> None:
    views = gw.WindowedAggregation(
        window=gw.SessionWindow("10 seconds"),
        time="time",
        aggregates={"total": gw.sum("value")},
        watermark=gw.BoundedOutOfOrderness("1 day"),
        collect_merges=True,
    )
    op = views.start()
    large = 2**62
    op.process(pa.table({"time": pa.array([0, 20], pa.timestamp("s")), "value": [large, large - 1]}))
    with pytest.raises(gw.OverflowError):
        op.process(pa.table({"time": pa.array([10], pa.timestamp("s")), "value": [1]}))
    assert op.session_merges().num_rows == 0


def test_merges_are_kept_only_where_sessions_are_and_they_are_asked_for() -> None:
    with pytest.raises(gw.SpecificationError, match="only sessions merge"):
        gw.WindowedAggregation(gw.GlobalWindow(), time="t", aggregates={"n": gw.count()}, collect_merges=True)
    plain = gw.WindowedAggregation(gw.SessionWindow("1 second"), time="t", aggregates={"n": gw.count()})
    with pytest.raises(gw.SpecificationError, match="collect_merges=True"):
        plain.start().session_merges()

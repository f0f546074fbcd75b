"""Sessions told after each row: the engine that plays whole batches against the one that takes rows in rounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin import operator
from gpuwin.engines.sessions.every_row import EveryRowSessions, serves
from gpuwin.engines.step import EngineStart
from gpuwin.engines.triggers.sessions_in_rounds import SessionTriggerEngineInRounds

SEMANTICS = {
    "default": gw.Semantics(),
    "row": gw.Semantics(watermark_advance="row"),
    "key": gw.Semantics(watermark_scope="key", watermark_advance="row"),
    "after": gw.Semantics(session_late_check="after_merge", watermark_advance="row"),
    "split": gw.Semantics(session_touch="split", session_end="last_event"),
    "apex": gw.Semantics.APEX,
}
Row = tuple[str, int, int | None, int]


def spec(semantics: gw.Semantics, lateness: str, gap: Any) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(
        window=gw.SessionWindow(gap),
        keys=["k"],
        time="t",
        aggregates={"n": gw.count(), "s": gw.sum("v"), "hi": gw.max("v"), "end": gw.last("v")},
        watermark=gw.BoundedOutOfOrderness("4 seconds"),
        allowed_lateness=lateness,
        emit=gw.EveryRow(),
        semantics=semantics,
    )


def table(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([r[0] for r in rows], pa.string()),
            "t": pa.array([r[1] for r in rows], pa.timestamp("s")),
            "v": pa.array([r[2] for r in rows], pa.int64()),
            "gap": pa.array([r[3] * 1_000_000 for r in rows], pa.int64()),
        }
    )


def told(description: gw.WindowedAggregation, batches: list[list[Row]], engine: Any) -> tuple[list[Any], Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "engine_of", lambda plan, rule, device: EngineStart(engine(plan, rule)))
        op = description.start(device="cpu")
        found = [Counter(tuple(row.values()) for row in op.process(table(batch)).to_pylist()) for batch in batches]
        found.append(Counter(map(str, op.finish().to_pylist())))
        return found, op.metrics


rows_of_batch = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.none() | st.integers(-9, 9), st.sampled_from([0, 1, 3, 9])),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(rows_of_batch, max_size=4),
    st.sampled_from(sorted(SEMANTICS)),
    st.sampled_from(["0 seconds", "5 seconds"]),
    st.booleans(),
)
def test_both_engines_tell_the_same(batches: list[list[Row]], name: str, lateness: str, per_row: bool) -> None:
    description = spec(SEMANTICS[name], lateness, gw.column("gap") if per_row else "3 seconds")
    found, metrics = told(description, batches, EveryRowSessions)
    expected, other = told(description, batches, SessionTriggerEngineInRounds)
    assert found == expected
    assert (metrics.rows_late, metrics.rows_unassigned, metrics.windows_open) == (
        other.rows_late,
        other.rows_unassigned,
        other.windows_open,
    )


def test_a_bridge_is_told_with_both_sides() -> None:
    rows: list[Row] = [("a", 0, 1, 0), ("a", 6, 10, 0), ("a", 3, 100, 0), ("a", 4, None, 0)]
    found, _ = told(spec(gw.Semantics(), "0 seconds", "3 seconds"), [rows], EveryRowSessions)
    assert [(row[3], row[4]) for row in found[0].elements()] == [(1, 1), (1, 10), (3, 111), (4, 111)]


def test_what_it_serves() -> None:
    described = spec(gw.Semantics(), "0 seconds", "3 seconds")

    class Kept:
        keeps_rows = True

    class Cells:
        keeps_rows = False

    assert serves(described, Cells)  # type: ignore[arg-type]
    assert not serves(described, Kept)  # type: ignore[arg-type]

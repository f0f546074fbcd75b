"""Rounds of rows of a few keys, beside many open sessions: the ledger entries of the others are set aside meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.engines.triggers.triggered_sessions import TriggeredSessions

EMITS = {
    "rows": gw.Trigger(early=gw.EveryRows(3)),
    "event time": gw.Trigger(early=gw.EveryEventTime("4 seconds")),
    "late rows": gw.Trigger(early=gw.EveryRows(2), late=gw.EveryRows(1)),
    "news": gw.Trigger(early=gw.EveryRows(1), only_updated=True),
    "news in turn": gw.Trigger(early=gw.EveryEventTime("1 second"), only_updated=True),
}


def batch(rng: np.random.Generator, second: int) -> pa.Table:
    """Many rows of three keys, one each of some others; some are late, and some bridge two sessions."""
    busy, others = int(rng.integers(1, 12)), int(rng.integers(0, 6))
    keys = np.concatenate([rng.integers(0, 3, busy), rng.integers(3, 40, others)])
    seconds = np.maximum(second + rng.integers(-12, 6, len(keys)), 0)
    stamps = pa.array(seconds * 1_000_000).view(pa.timestamp("us"))
    return pa.table({"ts": stamps, "key": keys, "v": rng.integers(0, 3, len(keys))}).take(rng.permutation(len(keys)))


CASES = [(emit, kind) for emit in sorted(EMITS) for kind in ("accumulating", "discarding", "retracting")]


@pytest.mark.parametrize(
    ("emit", "accumulation"), [c for c in CASES if not (EMITS[c[0]].only_updated and c[1] == "discarding")]
)
@pytest.mark.parametrize("more", [{}, {"semantics": gw.Semantics(watermark_advance="row")}], ids=["batch", "row"])
def test_equals_rounds_with_all_entries(
    emit: str, accumulation: Any, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow("8 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "top": gw.max("v"), "all": gw.collect_list("v")},
        emit=EMITS[emit],
        accumulation=accumulation,
        allowed_lateness="10 seconds",
        watermark=gw.BoundedOutOfOrderness("3 seconds"),
        **more,
    )
    apart, set_aside = TriggeredSessions.of_ids, []

    def counted(state: TriggeredSessions, ids: np.ndarray) -> tuple[TriggeredSessions, TriggeredSessions]:
        of_these, others = apart(state, ids)
        set_aside.append(len(others.id))
        return of_these, others

    def nothing(state: TriggeredSessions, ids: np.ndarray) -> tuple[TriggeredSessions, TriggeredSessions]:
        return state, state.entries(np.empty(0, np.int64))

    found = []
    for split in (counted, nothing):
        monkeypatch.setattr(TriggeredSessions, "of_ids", split)
        rng = np.random.default_rng(3)
        op = spec.start("cpu")
        found.append([*(op.process(batch(rng, second)) for second in range(0, 90, 2)), op.finish()])
        found[-1].append(op.metrics)
    assert sum(set_aside) > 100
    assert sum(table.num_rows for table in found[0][:-1]) > 100
    for a, b in zip(*found, strict=True):
        assert a == b

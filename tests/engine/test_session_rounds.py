"""Rounds of rows of a few keys, beside many open sessions: the ledger entries of the others are set aside meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.engines.triggers.sessions_in_rounds import SessionTriggerEngineInRounds
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


@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
@pytest.mark.parametrize("late", [None, gw.EveryRows(2)], ids=str)
@pytest.mark.parametrize("semantics", [gw.Semantics(), gw.Semantics.FLINK], ids=["own", "flink"])
def test_a_round_takes_the_rows_of_a_key_until_one_may_fire(
    semantics: gw.Semantics, late: Any, accumulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow("8 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "top": gw.max("v"), "total": gw.sum("v")},
        emit=gw.Trigger(early=gw.EveryRows(5), late=late),
        accumulation=accumulation,
        allowed_lateness="10 seconds",
        watermark=gw.BoundedOutOfOrderness("3 seconds"),
        semantics=semantics,
    )
    sound, found, rounds = SessionTriggerEngineInRounds._round, [], [0, 0]
    for at, several in enumerate((True, False)):

        def counted(self: SessionTriggerEngineInRounds, *args: Any, at: int = at, several: bool = several) -> Any:
            rounds[at] += 1
            self.fires_at = self.fires_at if several else 1
            return sound(self, *args)

        monkeypatch.setattr(SessionTriggerEngineInRounds, "_round", counted)
        rng = np.random.default_rng(5)
        op = spec.start("cpu")
        batches = [batch(rng, second) for second in range(0, 60, 2)]
        hot = pa.table({"ts": pa.array([70_000_000] * 200).view(pa.timestamp("us")), "key": [1] * 200, "v": range(200)})
        found.append([*map(op.process, [*batches, hot]), op.finish()])
    assert found[0] == found[1]

    assert rounds[0] < rounds[1] - 100

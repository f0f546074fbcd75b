"""Limits of the state: refusing a batch, or going on from disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw


def batch(seed: int, rows: int = 20_000, at: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    time = at * 60_000_000 + random.integers(0, 60_000_000, rows)
    return pa.table(
        {
            "key": random.integers(0, 50_000, rows),
            "time": pa.array(time).cast(pa.timestamp("us")),
            "value": random.integers(-1000, 1000, rows),
        }
    )


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.SlidingWindow("3 minutes", "1 minute"),
        "keys": ["key"],
        "time": "time",
        "aggregates": {"n": gw.count(), "total": gw.sum("value"), "high": gw.max("value")},
    }
    return gw.WindowedAggregation(**{**given, **more})


def counts(op: gw.WindowOperator) -> gw.Metrics:
    """Without the bytes, which say how large the tables behind the keys are, whatever is in them."""
    return replace(op.metrics, state_bytes=0)


def test_a_batch_that_exceeds_a_limit_changes_nothing() -> None:
    for limits in (gw.Limits(max_state_bytes=2_000_000), gw.Limits(max_open_windows=50_000)):
        op, free = spec(limits=limits).start(), spec().start()
        assert op.process(batch(0, 5_000)) == free.process(batch(0, 5_000))
        before = (counts(op), op.snapshot())
        with pytest.raises(gw.LimitExceeded, match="nothing of it was applied"):
            op.process(batch(1, 100_000))
        assert (counts(op), op.snapshot()) == before
        assert op.process(batch(2, 1_000, at=2)) == free.process(batch(2, 1_000, at=2))
        assert op.finish() == free.finish()


@pytest.mark.parametrize("aggregates", [None, {"middle": gw.median("value"), "n": gw.count()}])
def test_a_state_that_is_spilled_gives_the_same_rows(tmp_path: Path, aggregates: Any) -> None:
    more = {} if aggregates is None else {"aggregates": aggregates}
    limit = 3_500_000
    op = spec(limits=gw.Limits(max_state_bytes=limit, spill_to=tmp_path), **more).start()
    free = spec(**more).start()
    largest = 0
    for at in range(8):
        rows = batch(at, 60_000, at)
        assert op.process(rows) == free.process(rows)
        assert op.metrics.state_bytes <= limit
        largest = max(largest, free.metrics.state_bytes)
        if at == 5:
            op = spec(limits=gw.Limits(max_state_bytes=limit, spill_to=tmp_path), **more).restore(op.snapshot())
            free = spec(**more).restore(free.snapshot())
    assert largest > limit
    assert op.finish() == free.finish()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    op = spec(limits=gw.Limits(max_state_bytes=2_500_000, spill_to=tmp_path / "missing")).start()
    op.process(batch(0, 1_000))
    before = op.snapshot()
    with pytest.raises(gw.LimitExceeded, match="cannot be written"):
        op.process(batch(1, 200_000))
    assert op.snapshot() == before


def test_what_is_not_spilled_is_refused_when_it_is_written() -> None:
    limits = gw.Limits(max_state_bytes=1, spill_to="somewhere")
    for more in ({"window": gw.SessionWindow("1 minute")}, {"emit": gw.EveryRow()}):
        with pytest.raises(gw.SpecificationError, match="not spilled"):
            spec(limits=limits, **more)
    with pytest.raises(gw.SpecificationError, match="nothing is ever spilled"):
        gw.Limits(spill_to="somewhere")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"window": gw.SessionWindow("10 seconds")},
        {"emit": gw.Trigger(early=gw.EveryRows(2))},
        {"emit": gw.OnChange()},
        {"aggregates": {"middle": gw.median("value"), "name": gw.max("name")}},
        {"aggregates": {"middle": gw.median("value")}, "emit": gw.Trigger(early=gw.EveryRows(2))},
    ],
)
def test_keys_that_come_no_more_are_forgotten(more: dict[str, Any]) -> None:
    """A stream of new keys for ever: the dictionary, and the texts, go with their windows."""
    op = spec(keys=["key"], **more).start()
    for at in range(30):
        keys = np.arange(2_000) + at * 2_000
        rows = pa.table(
            {
                "key": keys,
                "time": pa.array(np.full(2_000, at * 120_000_000)).cast(pa.timestamp("us")),
                "value": keys,
                "name": pa.array([f"{k}" for k in keys]),
            }
        )
        op.process(rows)
        op = op if at % 7 else op._spec.restore(op.snapshot())
        assert op._engine is not None
        assert len(op._engine.names(op._running.windows).keys) <= 20_000
    out = op.finish()
    assert set(out["key"].to_pylist()) <= set(range(54_000, 60_000))

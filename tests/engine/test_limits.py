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
from gpuwin.state.spill import is_on_disk


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


SPILLED: dict[str, dict[str, Any]] = {
    "sessions": {"window": gw.SessionWindow("5 minutes")},
    "sessions with rows": {"window": gw.SessionWindow("5 minutes"), "aggregates": {"middle": gw.median("value")}},
    "sessions, every row": {"window": gw.SessionWindow("5 minutes"), "emit": gw.EveryRow()},
    "sessions, retracting": {
        "window": gw.SessionWindow("5 minutes"),
        "emit": gw.Trigger(early=gw.EveryRows(2)),
        "accumulation": "retracting",
    },
    "windows, retracting": {
        "window": gw.TumblingWindow("5 minutes"),
        "emit": gw.Trigger(early=gw.EveryRows(2)),
        "accumulation": "retracting",
    },
    "windows, every row": {"window": gw.TumblingWindow("5 minutes"), "emit": gw.EveryRow()},
    "windows, late firings": {
        "window": gw.TumblingWindow("2 minutes"),
        "emit": gw.Trigger(early=gw.EveryEventTime("1 minute"), late=gw.EveryRows(1)),
        "allowed_lateness": "3 minutes",
    },
}


@pytest.mark.parametrize("name", SPILLED)
def test_a_budget_is_kept_and_the_rows_are_the_same(name: str, tmp_path: Path) -> None:
    more = SPILLED[name]
    limits = gw.Limits(max_state_bytes=1_500_000, spill_to=tmp_path)
    op, free, largest = spec(limits=limits, **more).start(), spec(**more).start(), 0
    for at in range(8):
        rows = batch(at, 8_000, at)
        assert op.process(rows) == free.process(rows)
        now, without = op.metrics, free.metrics
        assert now.state_bytes <= 1_500_000
        assert (now.windows_open, now.watermark) == (without.windows_open, without.watermark)
        largest = max(largest, without.state_bytes)
        if at == 5:
            op = spec(limits=limits, **more).restore(op.snapshot())
            free = spec(**more).restore(free.snapshot())
    assert largest > 2_500_000
    assert op.finish() == free.finish()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", SPILLED)
def test_what_fails_leaves_the_state_on_disk_and_in_memory_as_it_was(name: str, tmp_path: Path) -> None:
    """A batch that is too much even with a disk, and one that finds the folder gone."""
    more = SPILLED[name]
    folder = tmp_path / "here"
    folder.mkdir()
    op = spec(limits=gw.Limits(max_state_bytes=1_500_000, spill_to=folder), **more).start()
    free = spec(**more).start()
    for at in range(4):
        assert op.process(batch(at, 8_000, at)) == free.process(batch(at, 8_000, at))
    before = (counts(op), op.snapshot())
    many = pa.table({"key": np.arange(200_000), "time": batch(0, 200_000, 4)["time"], "value": np.arange(200_000)})
    with pytest.raises(gw.LimitExceeded, match="nothing of it was applied"):
        op.process(many)
    assert (counts(op), op.snapshot()) == before
    folder.rmdir()
    with pytest.raises(gw.LimitExceeded, match="cannot be written"):
        op.process(batch(9, 60_000, 4))
    assert (counts(op), op.snapshot()) == before
    folder.mkdir()
    assert op.process(batch(5, 2_000, 5)) == free.process(batch(5, 2_000, 5))
    assert op.finish() == free.finish()


KINDS: dict[str, dict[str, Any]] = {
    **SPILLED,
    "panes": {},
    "medians": {"aggregates": {"middle": gw.median("value"), "text": gw.max("name")}},
    "sketches": {"aggregates": {"d": gw.approx_count_distinct("value"), "q": gw.approx_quantile("value", 0.5)}},
    "changes": {"emit": gw.OnChange()},
    "an evictor": {
        "window": gw.TumblingWindow("5 minutes"),
        "emit": gw.Trigger(early=gw.EveryRows(2), evict=gw.KeepLast(3)),
    },
    "a watermark per key": {"semantics": gw.Semantics(watermark_scope="key"), "collect_late": True},
    "late rows": {"collect_late": True},
    "session merges": {"window": gw.SessionWindow("40 seconds"), "collect_merges": True},
}


def named(rows: pa.Table) -> pa.Table:
    return rows.append_column("name", pa.array([f"a name of {k}" for k in rows["key"].to_pylist()]))


@pytest.mark.parametrize("name", KINDS)
def test_windows_are_counted_before_anything_is_changed(name: str) -> None:
    op, free = (spec(**KINDS[name], **more).start() for more in ({"limits": gw.Limits(max_open_windows=9_000)}, {}))
    assert op.process(named(batch(0, 2_000))) == free.process(named(batch(0, 2_000)))
    before = (counts(op), op.snapshot())
    with pytest.raises(gw.LimitExceeded, match=r"open windows, and Limits.max_open_windows is 9000; nothing of it"):
        op.process(named(batch(1, 15_000)))
    assert (counts(op), op.snapshot()) == before
    assert op.process(named(batch(2, 1_000, at=1))) == free.process(named(batch(2, 1_000, at=1)))
    assert op.finish() == free.finish()


def held(value: Any, seen: dict[int, int]) -> None:
    """The memory behind all arrays that can be reached: address -> bytes."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        if not is_on_disk(value) and value.nbytes:
            seen[value.ctypes.data] = value.nbytes
    elif isinstance(value, pa.Array | pa.ChunkedArray | pa.Table | pa.RecordBatch):
        columns = value.columns if isinstance(value, pa.Table | pa.RecordBatch) else [value]
        for column in columns:
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                for buffer in chunk.buffers():
                    if buffer is not None and buffer.size:
                        seen[buffer.address] = buffer.size
    elif isinstance(value, dict):
        for item in value.values():
            held(item, seen)
    elif isinstance(value, list | tuple | set):
        for item in value:
            held(item, seen)
    elif type(value).__module__.startswith("gpuwin"):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for item in (*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in names)):
            held(item, seen)


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_of_the_state_are_those_that_it_holds(name: str) -> None:
    op = spec(**KINDS[name], watermark=gw.BoundedOutOfOrderness("30 seconds")).start()
    for at in (0, 2, 1, 3, 0, 2):
        op.process(named(batch(at, 10_000, at)))
    seen: dict[int, int] = {}
    held(op._running, seen)
    real, said = sum(seen.values()), op.metrics.state_bytes
    assert said > 300_000
    assert real < 1.25 * said + 100_000
    if name != "an evictor":  # which counts what Python takes for its tuples
        assert said < 1.25 * real + 100_000


def test_a_folder_that_cannot_be_written_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    op = spec(limits=gw.Limits(max_state_bytes=2_500_000, spill_to=tmp_path / "missing")).start()
    op.process(batch(0, 1_000))
    before = op.snapshot()
    with pytest.raises(gw.LimitExceeded, match="cannot be written"):
        op.process(batch(1, 200_000))
    assert op.snapshot() == before


def test_a_folder_without_a_limit_is_refused() -> None:
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
def test_keys_that_come_no_more_are_evicted(more: dict[str, Any]) -> None:
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
        assert op._running.windows is not None
        assert len(op._running.windows.names().keys) <= 26_000  # of 60,000; three times those alive at a look
    out = op.finish()
    assert set(out["key"].to_pylist()) <= set(range(54_000, 60_000))


@pytest.mark.parametrize("emit", [gw.OnClose(), gw.OnUpdate(), gw.Complete(), gw.EveryRow(), gw.OnChange()], ids=repr)
def test_more_windows_than_memory_holds_are_refused(emit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour every millisecond is 3,600,000 windows a row: on a machine of 32 MB that is an error, and no crash."""
    monkeypatch.setattr("gpuwin.state.room.physical_memory", lambda: 32 << 20)
    op = gw.WindowedAggregation(
        window=gw.SlidingWindow("1 hour", "1 millisecond"), time="time", aggregates={"n": gw.count()}, emit=emit
    ).start(device="cpu")
    row = pa.table({"time": pa.array([0], pa.timestamp("s"))})
    call: Any = op.process
    if isinstance(emit, gw.OnClose | gw.OnChange):
        op.process(row)
        call = op.advance_watermark
    before = op.snapshot()
    with pytest.raises(gw.LimitExceeded, match="more memory than this machine has"):
        call(row if call == op.process else 10**15)
    assert op.snapshot() == before


@pytest.mark.parametrize("emit", [gw.OnClose(), gw.OnChange()], ids=repr)
def test_windows_that_no_row_is_in_need_no_memory(emit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 1970 and 2024 there are 1.7 billion seconds, in none of which there is a row."""
    monkeypatch.setattr("gpuwin.state.room.physical_memory", lambda: 32 << 20)
    views = gw.WindowedAggregation(
        window=gw.SlidingWindow("3 seconds", "1 second"), time="time", aggregates={"n": gw.count()}, emit=emit
    )
    rows = pa.table({"time": pa.array([0, 0, 1_704_067_200], pa.timestamp("s"))})
    found = gw.aggregate(rows, views)["n"].to_pylist()
    assert found == ([2, 0, 1, 0] if isinstance(emit, gw.OnChange) else [2, 2, 2, 1, 1, 1])


@pytest.mark.parametrize("lateness", [None, "1 second"])
def test_texts_of_sessions_that_are_gone_leave_memory(lateness: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwin.state.heap.ANYWAY", 0)
    op = gw.WindowedAggregation(
        window=gw.SessionWindow("1 second"),
        keys=["key"],
        time="time",
        aggregates={"last": gw.max("name")},
        **({} if lateness is None else {"allowed_lateness": lateness}),
    ).start(device="cpu")
    emitted, sizes = [], []
    for step in range(20):
        time = pa.array([step * 10_000_000] * 2).view(pa.timestamp("us"))
        rows = pa.table({"time": time, "key": [0, 1], "name": [f"{step} a", f"{step} b"]})
        emitted += op.process(rows)["last"].to_pylist()
        held: Any = op._running.windows.state
        assert held.heap is held.sessions.heap
        sizes.append(len(held.heap))
    emitted += op.finish()["last"].to_pylist()
    assert sorted(emitted) == sorted(f"{step} {name}" for step in range(20) for name in "ab")
    assert max(sizes) <= 8, sizes


def test_the_bytes_of_late_rows_and_merges_are_carried_along() -> None:
    """They are not counted anew with each batch, and always what a count would find."""
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow("10 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness("20 seconds"),
        collect_late=True,
        collect_merges=True,
    )

    def batch(*seconds: int) -> pa.Table:
        stamps = pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us"))
        return pa.table({"ts": stamps, "key": [1] * len(seconds)})

    def held(op: gw.WindowOperator) -> int:
        running = op._running
        counted = sum(table.nbytes for table in (*running.late, *running.merges))
        assert running.waiting_bytes == counted
        assert op.metrics.state_bytes == running.windows.size()[1] + counted  # type: ignore[union-attr]
        return counted

    op = spec.start("cpu")
    sizes = []
    for rows in (batch(100, 115), batch(110), batch(1, 2, 130), batch(145), batch(3, 138)):
        op.process(rows)
        sizes.append(held(op))
    assert sizes == sorted(sizes)
    with pytest.raises(gw.SchemaError):
        op.process(batch(4).drop_columns("key"))
    assert held(op) == sizes[-1]
    other = op.branch()
    again = spec.restore(op.snapshot(), device="cpu")
    assert held(again) == sizes[-1]
    assert other.late_rows().num_rows == 3
    merges = held(other)
    assert 0 < merges < sizes[-1]
    assert other.session_merges().num_rows == 2
    assert held(other) == 0
    assert op.session_merges().num_rows == 2
    assert held(op) == sizes[-1] - merges

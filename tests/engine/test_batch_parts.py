"""Large batches are cut where windows close between their rows, and nothing can tell that they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.batch.parts import is_oversized, joined_ends, part_ends, parts_of, step_ends
from gpuwin.engines import closing_panes
from gpuwin.engines.sessions import closing as closing_sessions
from gpuwin.engines.sessions import rows as session_rows
from gpuwin.state.panes import pane_state as panes
from gpuwin_kernels import tuning

SECOND = 1_000_000
FOR_EVER = (1 << 63) - 1
WINDOWS = {
    "tumbling": gw.TumblingWindow("1 minute"),
    "sliding": gw.SlidingWindow("3 minutes", "1 minute"),
    "with gaps": gw.SlidingWindow("1 minute", "90 seconds"),
    "cumulative": gw.CumulativeWindow("4 minutes", "1 minute"),
    "session": gw.SessionWindow("7 seconds"),
}
SUMS: dict[str, Any] = {
    "n": gw.count(),
    "i": gw.sum("i"),
    "lo": gw.min("i"),
    "text": gw.max("text"),
    "first": gw.first("i"),
    "last": gw.last("i"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries of keys are rebuilt as soon as it pays."""
    for module, name in ((panes, "FEW_KEYS"), (session_rows, "_FEW_KEYS")):
        monkeypatch.setattr(module, name, 8)


def batch(rng: np.random.Generator, begin: int, rows: int = 900) -> pa.Table:
    """Ten minutes in some disorder, with a few late rows, keys that come and go, and nulls in all columns."""
    seconds = begin + np.sort(rng.integers(0, 600, rows)) - rng.integers(0, 5, rows)
    seconds[rng.integers(0, rows, 9)] -= 900
    key = seconds // 40 % 11 * 3 + rng.integers(0, 3, rows)
    return pa.table(
        {
            "ts": pa.array(seconds * SECOND, mask=rng.random(rows) < 0.01).view(pa.timestamp("us")),
            "key": pa.array(key, mask=rng.random(rows) < 0.02),
            "i": pa.array(rng.integers(-99, 99, rows), mask=rng.random(rows) < 0.1),
            "text": pa.array([f"t{x}" for x in rng.integers(0, 99, rows)]),
        }
    )


def run(spec: gw.WindowedAggregation, stream: list[pa.Table]) -> list[Any]:
    """Everything that an operator tells about a stream."""
    op = spec.start(device="cpu")
    told: list[Any] = []
    for table in stream:
        told += [op.process(table), op.late_rows()]
        seen = op.metrics
        told.append((seen.rows_in, seen.rows_late, seen.window_rows_late, seen.rows_null_time, seen.rows_unassigned))
        told += [seen.windows_open, op.watermark, spec.restore(op.snapshot(), device="cpu").finish()]
    return [*told, op.finish()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("delay", ["0 seconds", "90 seconds"])
@pytest.mark.parametrize("rows_kept", [False, True])
@pytest.mark.parametrize("window", list(WINDOWS))
def test_a_cut_batch_gives_what_a_whole_one_gives(
    window: str, rows_kept: bool, delay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    stream = [batch(rng, begin) for begin in (0, 550, 1200)]
    stream.append(stream[-1].slice(0, 40))
    spec = gw.WindowedAggregation(
        window=WINDOWS[window],
        keys=["key"],
        time="ts",
        aggregates=SUMS | ({"all": gw.collect_list("i")} if rows_kept else {}),
        watermark=gw.BoundedOutOfOrderness(delay),
        collect_late=True,
    )
    cuts: list[int] = []

    def spied(*args: Any) -> list[tuple[int, int, int]]:
        found = parts_of(*args)
        cuts.append(len(found))
        return found

    for module in (closing_panes, closing_sessions):
        monkeypatch.setattr(module, "parts_of", spied)
    whole = run(spec, stream)
    assert not cuts
    monkeypatch.setattr(tuning, "BATCH_ROWS", 60)
    parted = run(spec, stream)
    assert (max(cuts) > 5) if window != "session" or not rows_kept else not cuts
    assert sum(told.num_rows for told in whole if isinstance(told, pa.Table)) > 200
    for a, b in zip(whole, parted, strict=True):
        assert a.equals(b) if isinstance(a, pa.Table) else a == b


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", ["tumbling", "session"])
def test_a_sum_that_comes_back_within_the_batch(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "BATCH_ROWS", 4)
    seconds = [0, 0, 0, 0, 61, 61, 61, 61, 121, 121, 121, 62, 62, 62, 62, 300]
    most = (1 << 62) - 1 << 1
    values = [1, 1, 1, 1, most, 1, 1, 1, 2, 2, 2, -5, 1, 1, 1, 1]  # the second minute is too much for some time

    def rows(*values: int) -> pa.Table:
        stamps = pa.array(np.array(seconds) * SECOND).view(pa.timestamp("us"))
        return pa.table({"ts": stamps, "key": ["k"] * len(seconds), "i": values})

    spec = gw.WindowedAggregation(window=WINDOWS[window], keys=["key"], time="ts", aggregates={"i": gw.sum("i")})
    op = spec.start(device="cpu")
    assert op.process(rows(*values))["i"].to_pylist() == [4, most + 1, 6]
    op = spec.start(device="cpu")
    op.process(rows(*[1] * 16).slice(0, 2))
    before = op.metrics, op.snapshot()
    with pytest.raises(gw.OverflowError):
        op.process(rows(*[9 if v == -5 else v for v in values]))
    assert (op.metrics, op.snapshot()) == before
    assert op.finish()["i"].to_pylist() == [2]


def test_where_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "BATCH_ROWS", 3)
    time = np.array([0, 1, 2, 3, 9, 4, 5, 6, 7, 8, 9])

    def minutes(rest: int) -> int:
        return rest // 3

    assert parts_of(time[:5], minutes, 1) == [(0, 5, FOR_EVER)]
    assert not is_oversized(5)
    assert parts_of(time, minutes, 1) == [(0, 3, 3), (3, 9, 8), (9, 11, FOR_EVER)]
    assert parts_of(time, minutes, 2) == [(0, 9, 8), (9, 11, FOR_EVER)]
    assert parts_of(time[::-1].copy(), minutes, 1) == [(0, 11, FOR_EVER)]


@pytest.mark.parametrize("n", [1, 5, 8, 9, 10, 11, 12, 17, 18, 31])
def test_ends_of_parts(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part has the ends of its rows, whatever steps it was put together of."""
    monkeypatch.setattr(tuning, "BATCH_ROWS", 4)
    for seed in range(9):
        time = np.random.default_rng(seed).integers(-99, 99, n)
        time = time if seed % 2 else np.sort(time)
        ends = step_ends(time)
        assert joined_ends(ends) == (time.min(), time.max())
        for least in (1, 40, 150):
            parts = parts_of(time, lambda rest: rest, least, ends)
            assert parts == parts_of(time, lambda rest: rest, least)
            for lo, hi, _ in parts:
                assert part_ends(ends, lo, hi - lo) == (time[lo:hi].min(), time[lo:hi].max())

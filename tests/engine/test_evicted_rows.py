"""Rows that an evictor leaves to a window, against a plain model, and what of the state a batch looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin.engines import evicting
from gpuwin.engines.evicting import EvictingEngine, EvictingWindows
from gpuwin.state.rows import held_windows
from gpuwin.state.rows.slices import RowSlices

EVICTORS = [
    gw.KeepLast(1),
    gw.KeepLast(30),  # so that rows lie on both sides of what is made room for at once
    gw.KeepLast(10**6),
    gw.KeepWithin("4 seconds"),
    gw.KeepNear("v", 3.0),
]


def left(evictor: Any, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rows (time, value) that the evictor leaves of these."""
    if isinstance(evictor, gw.KeepLast):
        return rows[-evictor.rows :]
    if isinstance(evictor, gw.KeepWithin):
        return [row for row in rows if row[0] > max(time for time, _ in rows) - 4]
    return [row for row in rows if not rows[-1][1] - row[1] >= 3.0]


def spec(evictor: Any, every: int, **more: Any) -> gw.WindowedAggregation:
    start: dict[str, Any] = {"window": gw.GlobalWindow(), "watermark": gw.ExplicitWatermark(), **more}
    return gw.WindowedAggregation(
        time="t",
        keys=["k"],
        aggregates={"all": gw.collect_list("v"), "total": gw.sum("f"), "n": gw.count()},
        emit=gw.Trigger(early=gw.EveryRows(every), on_time=False, evict=evictor),
        **start,
    )


Row = tuple[int, int, int]


def table(rows: list[Row]) -> pa.Table:
    """Rows (key, time, value)."""
    keys, times, values = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    value = pa.array(values, pa.int64())
    time = pa.array(times, pa.timestamp("s"))
    return pa.table({"k": pa.array(keys, pa.int64()), "t": time, "v": value, "f": value.cast(pa.float64(), safe=False)})


def modelled(evictor: Any, every: int, batches: list[list[Row]]) -> list[list[tuple[int, list[int]]]]:
    """Key and values of each firing, by batch."""
    windows, counts, told = dict[int, list[tuple[int, int]]](), dict[int, int](), []
    for batch in batches:
        found = []
        for key, time, value in batch:
            rows = [*windows.get(key, []), (time, value)]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] % every == 0:
                kept = left(evictor, rows)
                seen, rows = rows if evictor.after else kept, kept
                found.append((key, [value for _, value in seen]))
            windows[key] = rows
        told.append(found)
    return told


ROWS = st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 9))
HOT = st.integers(50, 260).map(lambda n: [(0, k // 9, k * 7 % 10) for k in range(n)])  # one key, in order


@pytest.mark.parametrize("rows_at_once", [1, 50, 1 << 20])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("evictor", EVICTORS, ids=str)
@given(st.lists(st.lists(ROWS, max_size=30) | HOT, max_size=5), st.integers(1, 4))
@settings(deadline=None, max_examples=10)
def test_firings_see_the_rows_of_a_plain_model(
    evictor: Any, after: bool, rows_at_once: int, batches: list[list[Row]], every: int
) -> None:
    evictor = type(evictor)(*[getattr(evictor, name) for name in evictor.__match_args__[:-1]], after=after)
    windowed = spec(evictor, every)
    op, found = windowed.start(schema=table([]).schema), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evicting, "_ROWS", rows_at_once)
        for number, batch in enumerate(batches):
            rows = op.process(table(batch)).to_pylist()
            assert all((row["n"], row["total"]) == (len(row["all"]), sum(row["all"])) for row in rows)
            found.append([(row["k"], row["all"]) for row in rows])
            if number % 2:
                op = windowed.restore(op.snapshot())
    assert found == modelled(evictor, every, batches)


def checked(state: EvictingWindows) -> None:
    """Asserts that what the state keeps of its windows is what they say."""
    held = state.windows
    rows, first = held.rows()
    uses = np.bincount(rows, minlength=len(state.pool))
    np.testing.assert_array_equal(state.uses, uses)
    assert not len(uses) or len(uses) <= 2 * np.count_nonzero(uses) + 64
    assert len(held.places) <= 1.5 * len(rows) + 1024
    assert held.places.nbytes <= 10 * len(held.places) + 64  # no part of all that the batch brought
    for at in range(len(held)):
        assert (np.diff(rows[first[at] : first[at + 1]]) > 0).all()
    by = list(zip(held.window.tolist(), held.code.tolist(), strict=True))
    assert by == sorted(set(by))


WINDOWS = [gw.TumblingWindow("10 seconds"), gw.SlidingWindow("10 seconds", "2 seconds"), gw.GlobalWindow()]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("evictor", EVICTORS, ids=str)
@pytest.mark.parametrize("lateness", ["0 seconds", "20 seconds"])
def test_the_state_counts_the_uses_of_its_rows(
    window: Any, evictor: Any, lateness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, states = EvictingEngine._applied, list[EvictingWindows]()

    def applied(self: EvictingEngine, *args: Any) -> Any:
        state, results = sound(self, *args)
        checked(state)
        states.append(state)
        return state, results

    monkeypatch.setattr(EvictingEngine, "_applied", applied)
    some = np.random.default_rng(7)
    watermark = gw.BoundedOutOfOrderness("3 seconds")
    windowed = spec(evictor, 2, window=window, allowed_lateness=lateness, watermark=watermark)
    op = windowed.start(schema=table([]).schema)
    for at in (0, 0, 3, 5, 60, 60, 75, 70, 300):
        n = int(some.integers(1, 150))
        columns = some.integers(0, 4, n), at + some.integers(-9, 4, n), some.integers(0, 10, n)
        rows = table(list(zip(*(column.tolist() for column in columns), strict=True)))
        branch = op.branch()
        here = op.process(rows)
        assert branch.process(rows) == here  # the state of before is as it was
        if at == 5:
            op = windowed.restore(op.snapshot())
    op.finish()
    assert len(states) >= 19
    assert not len(states[-1].windows)
    assert not len(states[-1].pool)


def test_a_small_batch_writes_only_the_windows_that_it_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a batch that fails, again and again, leaves no more memory behind than one."""
    written, states = list[int](), list[EvictingWindows]()
    joined, sound = evicting.joined_stretches, EvictingEngine._applied

    def counted(*args: Any) -> Any:
        out = joined(*args)
        written.append(len(out[0]))
        return out

    def applied(self: EvictingEngine, *args: Any) -> Any:
        states.append(sound(self, *args)[0])
        return states[-1], []

    op = spec(gw.KeepLast(10), 1).start(device="cpu")
    op.process(table([(k % 1000, k, k) for k in range(5000)]))
    monkeypatch.setattr(evicting, "joined_stretches", counted)
    monkeypatch.setattr(held_windows, "joined_stretches", counted)
    before = op.snapshot()
    del written[:]
    ahead = op.branch()
    for at in range(20):
        ahead.process(table([(at, 0, 0)]))
    assert sum(written) < 20 * 30  # of 5000 rows
    assert op.snapshot() == before
    monkeypatch.setattr(EvictingEngine, "_applied", applied)
    for _ in range(20):
        branch = op.branch()
        branch.process(table([(1, 0, 0)]))
    assert len({state.windows.places.nbytes for state in states}) == 1
    assert op.snapshot() == before


def test_firings_are_computed_with_few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of one window that see rows one after the other share them until then."""
    sizes = list[int]()
    sound = evicting.RowSlices

    def sliced(code: np.ndarray, *more: Any) -> RowSlices:
        sizes.append(len(code))
        return sound(code, *more)

    whole = spec(gw.KeepLast(20), 1).start().process(table([(0, k, k) for k in range(200)]))
    monkeypatch.setattr(evicting, "RowSlices", sliced)
    monkeypatch.setattr(evicting, "_ROWS", 100)
    parted = spec(gw.KeepLast(20), 1).start().process(table([(0, k, k) for k in range(200)]))
    assert max(sizes) <= 100
    assert sum(sizes) == sum(range(1, 20)) + 20 * 181
    assert parted.combine_chunks() == whole.combine_chunks()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("evictor", EVICTORS, ids=str)
@given(st.lists(st.lists(ROWS, max_size=30) | HOT, max_size=5), st.integers(1, 4))
@settings(deadline=None, max_examples=15)
def test_rows_that_firings_share_are_merged_once(
    evictor: Any, after: bool, batches: list[list[Row]], every: int
) -> None:
    evictor = type(evictor)(*[getattr(evictor, name) for name in evictor.__match_args__[:-1]], after=after)
    aggregates = {"n": gw.count(), "total": gw.sum("v"), "least": gw.min("f"), "mean": gw.mean("f")}
    windowed = replace(spec(evictor, every), aggregates=aggregates)
    op, found = windowed.start(schema=table([]).schema), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evicting, "_SHARED", 0)
        patch.setattr(EvictingEngine, "_result", None)
        for batch in batches:
            rows = op.process(table(batch)).to_pylist()
            found.append([(row["k"], row["n"], row["total"], row["least"], round(row["mean"], 9)) for row in rows])
    assert found == [
        [(key, len(seen), sum(seen), float(min(seen)), round(sum(seen) / len(seen), 9)) for key, seen in firings]
        for firings in modelled(evictor, every, batches)
    ]


def test_a_sum_that_no_firing_sees_may_leave_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first three rows, which are a block."""
    half = 2**62
    windowed = replace(spec(gw.KeepLast(3), 2), aggregates={"total": gw.sum("v")})
    monkeypatch.setattr(evicting, "_SHARED", 0)
    values = [half, 0, half, half - 1, -half, half, half, -half]
    assert windowed.start().process(table([(0, 0, v) for v in values]))["total"].to_pylist() == [
        sum(values[max(at - 3, 0) : at]) for at in (2, 4, 6, 8)
    ]
    with pytest.raises(gw.OverflowError):
        windowed.start().process(table([(0, 0, half), (0, 0, half)]))


FAR = st.sampled_from([-(2**63), -(2**63) + 1, -5, -1, 0, 1, 2, 2**62, 2**63 - 2, 2**63 - 1])
THRESHOLDS = st.sampled_from([-(2**65), -(2**63), -3, -0.5, 0, 0.5, 1, 2.5, 2**63, 2**64 - 1, 2**64, 1e300])


@given(st.lists(FAR | st.none(), min_size=1, max_size=8), THRESHOLDS | st.sampled_from([np.inf, -np.inf]))
@settings(deadline=None, max_examples=200)
def test_values_near_the_last_one_at_the_ends_of_int64(values: list[int | None], threshold: float) -> None:
    windowed = gw.WindowedAggregation(
        window=gw.GlobalWindow(),
        time="t",
        aggregates={"all": gw.collect_list("n")},
        emit=gw.Trigger(gw.EveryRows(1), on_time=False, evict=gw.KeepNear("v", threshold)),
    )
    n = len(values)
    columns = {"t": pa.array([0] * n, pa.timestamp("us")), "v": pa.array(values, pa.int64()), "n": range(n)}
    found = windowed.start().process(pa.table(columns))["all"].to_pylist()
    expected, held = [], list[int]()
    for at, last in enumerate(values):
        held = [k for k in [*held, at] if (v := values[k]) is None or last is None or not last - v >= threshold]
        expected += [held] if held else []
    assert found == expected

"""Open sessions against plain lists: cutting, playing, merging, tracing, closing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.state.heap import BytesHeap
from gpuwin.state.sessions.assignment import Assignment, assign
from gpuwin.state.sessions.session_state import SessionState, SessionTrace
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout((CellColumn("sum", "sum", "int64"), CellColumn("least", "min", "int64")))
Row = tuple[int, int, int, int]  # code, time, gap, value


@dataclass
class Plain:
    """One session of the oracle."""

    start: int
    last: int
    end: int
    values: list[int]
    id: int = -1
    parts: list[int] = field(default_factory=list)


class Oracle:
    """Rows one by one against lists of sessions: every session is looked at for every row."""

    def __init__(self, touch: str) -> None:
        self.touch = touch
        self.open: dict[int, list[Plain]] = {}

    def touches(self, s: Plain, t: int, end: int, begun: bool) -> bool:
        """`begun`: whether a session begins at t. Malhar then asks for none behind it."""
        if self.touch == "merge":
            return t <= s.end and s.start <= end
        if self.touch == "split":
            return t < s.end and s.start < end
        if s.start <= t:
            return t < s.end
        return s.start < end if begun else s.start <= end

    def row(self, row: Row, bound: int, after_merge: bool = False) -> bool:
        c, t, gap, value = row
        sessions = self.open.setdefault(c, [])
        begun = any(s.start == t and s.end > bound for s in sessions)
        met = [s for s in sessions if s.end > bound and self.touches(s, t, t + gap, begun)]
        whole = Plain(
            min([t] + [s.start for s in met]),
            max([t] + [s.last for s in met]),
            max([t + gap] + [s.end for s in met]),
            [value] + [v for s in met for v in s.values],
        )
        if after_merge and whole.end <= bound:
            return False
        for s in met:
            sessions.remove(s)
        sessions.append(whole)
        return True

    def close(self, bound: int) -> list[tuple[int, int, int, int, int, int]]:
        out = self.listed(bound)
        for c in self.open:
            self.open[c] = [s for s in self.open[c] if s.end > bound]
        return out

    def listed(self, bound: int | None = None) -> list[tuple[int, int, int, int, int, int]]:
        return sorted(
            (c, s.start, s.last, s.end, sum(s.values), min(s.values))
            for c, sessions in self.open.items()
            for s in sessions
            if bound is None or s.end <= bound
        )


def cells(slot: np.ndarray, values: np.ndarray, m: int) -> tuple[CellArrays, ...]:
    total, least = np.zeros(m, np.int64), np.full(m, np.iinfo(np.int64).max)
    kept = slot >= 0
    np.add.at(total, slot[kept], values[kept])
    np.minimum.at(least, slot[kept], values[kept])
    return CellArrays((total,), None), CellArrays((least,), None)


def columns_of(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    a = np.array(rows, np.int64).reshape(-1, 4)
    code, time, gap, value = (np.ascontiguousarray(a[:, j]) for j in range(4))
    return code.astype(np.int32), time, gap, value


def listed(batch: SessionBatch) -> list[tuple[int, ...]]:
    """Rows of sessions, which come in the order of code and start. One that has closed may start with another."""
    arrays = (batch.code, batch.start, batch.last, batch.end, batch.columns[0].values[0], batch.columns[1].values[0])
    rows = list(zip(*(a.tolist() for a in arrays), strict=True))
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
    return sorted(rows)


def step(state: SessionState, a: Assignment, value: np.ndarray) -> tuple[SessionState, SessionTrace]:
    return state.merge(a, cells(a.slot, value, len(a.code)))


rows_of_batch = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-60, 60), st.sampled_from([1, 3, 5, 20]), st.integers(-9, 9)), max_size=25
) | st.lists(st.tuples(st.just(0), st.integers(-30, 30), st.just(5), st.integers(-9, 9)), min_size=2, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(rows_of_batch, max_size=6), st.sampled_from(["merge", "split"]), st.booleans(), st.booleans())
def test_merging_batches_is_merging_rows(batches: list[list[Row]], touch: str, one_gap: bool, close: bool) -> None:
    oracle, state = Oracle(touch), SessionState.empty(LAYOUT)
    bound = -1000
    for k, batch in enumerate(batches):
        rows = [(c, t, 5 if one_gap else g, v) for c, t, g, v in batch]
        rows = [r for r in rows if r[1] + r[2] > bound]
        code, time, gap, value = columns_of(rows)
        before = listed(state.ending(None, None))
        new, trace = step(state, assign(code, time, 5 if one_gap else gap, touch), value)  # type: ignore[arg-type]
        assert listed(state.ending(None, None)) == before
        check_trace(state, new, trace)
        state = new
        for row in rows:
            oracle.row(row, bound)
        assert listed(state.ending(None, None)) == oracle.listed()
        bound = -40 + 15 * k if close else bound
        closed, state = state.close(bound)
        assert listed(closed) == oracle.close(bound)
    assert state.cells == len(oracle.listed())


def check_trace(old: SessionState, new: SessionState, trace: SessionTrace) -> None:
    """What a trace says is what happened: replaced sessions were open, made ones are, and each lies within what
    replaced it.
    """
    was = dict(zip(old.ending(None, None).id.tolist(), listed(old.ending(None, None)), strict=True))
    now = dict(zip(new.ending(None, None).id.tolist(), listed(new.ending(None, None)), strict=True))
    made = dict(zip(trace.sessions.id.tolist(), listed(trace.sessions), strict=True))
    gone = dict(zip(trace.replaced.id.tolist(), listed(trace.replaced), strict=True))
    assert gone.items() <= was.items()
    assert made.items() <= now.items()
    assert now == {**{k: v for k, v in was.items() if k not in gone}, **made}
    assert trace.offsets[0] == 0
    assert trace.offsets[-1] == len(trace.replaced)
    for j in range(len(trace.sessions)):
        lo, hi = trace.offsets[j], trace.offsets[j + 1]
        parts = trace.replaced.take(np.arange(lo, hi))
        assert (np.diff(parts.start) > 0).all()
        assert (parts.start >= trace.sessions.start[j]).all()
        assert (parts.end <= trace.sessions.end[j]).all()
        if hi > lo:
            assert trace.sessions.id[j] == parts.id[0]
        else:
            assert int(trace.sessions.id[j]) not in was
    assert new.next_id > max([*now, -1])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(rows_of_batch, max_size=5),
    st.sampled_from(["merge", "split", "forward_split"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_playing_rows_one_by_one(
    batches: list[list[Row]], touch: str, after_merge: bool, one_gap: bool, data: st.DataObject
) -> None:
    oracle, state = Oracle(touch), SessionState.empty(LAYOUT)
    bound = -70
    for batch in batches:
        bounds = []
        kept = []
        for c, t, g, v in batch:
            g = 5 if one_gap else g
            bound += data.draw(st.integers(0, 6))
            if not after_merge and t + g <= bound:
                continue  # the caller's late check
            bounds.append(bound)
            kept.append((c, t, g, v))
        code, time, gap, value = columns_of(kept)
        a = state.play(
            code,
            time,
            5 if one_gap else gap,
            np.array(bounds, np.int64),
            touch=touch,  # type: ignore[arg-type]
            late="after_merge" if after_merge else "before_merge",
            keep_steps=True,
        )
        accepted = [oracle.row(row, b, after_merge) for row, b in zip(kept, bounds, strict=True)]
        assert (a.slot >= 0).tolist() == accepted
        check_steps(a, value)
        state, _ = step(state, a, value)
        assert listed(state.ending(None, None)) == oracle.listed()
        closed, state = state.close(bound)
        assert listed(closed) == oracle.close(bound)


def check_steps(a: Assignment, value: np.ndarray) -> None:
    """Replaying the steps row by row ends in the sessions of the assignment."""
    steps = a.steps
    assert steps is not None
    totals = np.zeros(steps.sessions, np.int64)
    totals[: len(steps.old)] = steps.old.columns[0].values[0]
    merges = steps.merges.tolist()
    final: dict[int, tuple[int, int, int, int]] = {}
    for i in range(len(value)):
        while merges and merges[0][0] == i:
            _, into, absorbed = merges.pop(0)
            totals[into] += totals[absorbed]
        if steps.session[i] >= 0:
            totals[steps.session[i]] += value[i]
            slot = int(a.slot[i])
            final[slot] = (int(steps.start[i]), int(steps.last[i]), int(steps.end[i]), int(totals[steps.session[i]]))
    assert not merges
    old_total = np.zeros(len(a.code), np.int64)
    old = np.zeros(len(a.code), np.int64)
    np.add.at(old_total, a.slot[a.slot >= 0], value[a.slot >= 0])
    for slot, (start, last, end, total) in final.items():
        assert (a.start[slot], a.last[slot], a.end[slot]) == (start, last, end)
        old[slot] = total - old_total[slot]
    assert a.joined_slot is not None
    if not len(a.joined_slot):
        assert not old.any()


def test_apex_touch_depends_on_arrival() -> None:
    """Two events one gap apart: ascending arrival splits them, descending arrival merges them."""
    zeros, gap = np.zeros(2, np.int32), 10
    empty = SessionState.empty(LAYOUT)
    up = empty.play(zeros, np.array([0, 10]), gap, -100, touch="forward_split")
    down = empty.play(zeros, np.array([10, 0]), gap, -100, touch="forward_split")
    assert up.start.tolist() == [0, 10]
    assert up.end.tolist() == [10, 20]
    assert down.start.tolist() == [0]
    assert down.end.tolist() == [20]


def test_one_gap_apart() -> None:
    code, time = np.zeros(2, np.int32), np.array([0, 10_000])
    assert assign(code, time, 10_000).end.tolist() == [20_000]
    assert assign(code, time, 10_000, "split").end.tolist() == [10_000, 20_000]
    with pytest.raises(ValueError, match="order of arrival"):
        assign(code, time, 10_000, "forward_split")


def test_a_late_row_is_rescued_only_after_the_merge() -> None:
    """XS-04: W = 4900, a live session with events at 1000 and 2000, gap 3000; then an event at 1500."""
    state, _ = step(
        SessionState.empty(LAYOUT), assign(np.zeros(2, np.int32), np.array([1000, 2000]), 3000), np.array([1, 1])
    )
    late = state.play(np.zeros(1, np.int32), np.array([1500]), 3000, 4900, late="after_merge")
    assert late.slot.tolist() == [0]
    lone = state.play(np.ones(1, np.int32), np.array([1500]), 3000, 4900, late="after_merge")
    assert lone.slot.tolist() == [-1]
    assert len(lone.code) == 0


def test_emptied_sessions_still_merge_but_bring_nothing() -> None:
    """FL-18: the session is emptied after the first firing, stays and is joined."""
    code = np.zeros(1, np.int32)
    state, _ = step(SessionState.empty(LAYOUT), assign(code, np.array([11_600]), 3000), np.array([5]))
    emitted = state.ending(None, 14_600)
    state = state.emptied(emitted)
    assert state.ending(None, None).filled.tolist() == [0]
    state, trace = step(state, assign(code, np.array([10_000]), 3000), np.array([1]))
    assert listed(trace.sessions) == [(0, 10_000, 11_600, 14_600, 1, 1)]
    assert trace.sessions.filled.tolist() == [1]
    assert trace.sessions.id.tolist() == emitted.id.tolist()


def test_time_saturates() -> None:
    far = np.iinfo(np.int64).max
    a = assign(np.zeros(2, np.int32), np.array([far - 3, -far]), 10)
    assert a.end.tolist() == [-far + 10, far]
    b = SessionState.empty(LAYOUT).play(np.zeros(2, np.int32), np.array([far - 3, -far]), 10, -far - 1)
    assert b.end.tolist() == [-far + 10, far]
    state, _ = step(SessionState.empty(LAYOUT), a, np.array([1, 2]))
    assert len(state.close(far)[0]) == 2


def test_close_with_a_bound_per_key_and_of_codes() -> None:
    code = np.arange(6, dtype=np.int32)
    state, _ = step(SessionState.empty(LAYOUT), assign(code, np.full(6, 100), 10), code.astype(np.int64))
    bounds = np.array([110, 109, 111, -(2**63), 110, 0])
    closed, left = state.close(bounds)
    assert closed.code.tolist() == [0, 2, 4]
    assert left.used_codes().tolist() == [1, 3, 5]
    assert left.of_codes(np.array([5, 0, 1], np.int32)).code.tolist() == [1, 5]


def test_ending_uses_its_index_and_the_scan_alike() -> None:
    rng = np.random.default_rng(11)
    code, time = rng.integers(0, 3000, 9000).astype(np.int32), rng.integers(0, 10**6, 9000)
    state, _ = step(SessionState.empty(LAYOUT), assign(code, time, 50), np.ones(9000, np.int64))
    everything = state.ending(None, None)
    for k in range(12):
        lo, hi = sorted(rng.integers(0, 10**6, 2).tolist())
        inside = (everything.end > lo) & (everything.end <= hi)
        assert state.ending(lo, hi).id.tolist() == everything.id[inside].tolist()
        if k == 8:
            state = state.evict(200_000)
            everything = everything.take(np.flatnonzero(everything.end > 200_000))
    assert state.ending(None, None).id.tolist() == everything.id.tolist()


@pytest.mark.parametrize("rows", [300_000, 5_000])
@pytest.mark.parametrize("disorder", [0, 400, 10**9])
def test_large_batches_take_other_paths_to_the_same_sessions(rows: int, disorder: int) -> None:
    """Two threads, the sort for rows in no order, and the sort for a sparse dictionary: all equal a plain sort and gap
    test.
    """
    rng = np.random.default_rng(rows + disorder)
    code = rng.integers(0, 400, rows).astype(np.int32)
    if rows < 10_000:
        code *= 1000
    time = np.sort(rng.integers(0, rows * 5, rows))
    time = rng.permutation(time) if disorder == 10**9 else time + rng.integers(-disorder, disorder + 1, rows)
    a = assign(code, time, 1000)
    order = np.lexsort((time, code))
    c, t = code[order], time[order]
    begins = np.concatenate(([True], (c[1:] != c[:-1]) | (t[1:] - t[:-1] > 1000)))
    assert a.code.tolist() == c[begins].tolist()
    assert a.start.tolist() == t[begins].tolist()
    slot = np.empty(rows, np.int64)
    slot[order] = np.cumsum(begins) - 1
    assert (a.slot == slot).all()
    last = t[np.concatenate((np.flatnonzero(begins)[1:], [rows])) - 1]
    assert a.last.tolist() == last.tolist()
    assert a.end.tolist() == (last + 1000).tolist()


def test_new_codes() -> None:
    code = np.array([2, 5, 9], np.int32)
    state, _ = step(SessionState.empty(LAYOUT), assign(code, np.array([1, 2, 3]), 10), np.array([1, 2, 3]))
    new = np.full(10, -1, np.int32)
    new[code] = [0, 1, 2]
    moved = state.recoded(new)
    assert [r[1:] for r in listed(moved.ending(None, None))] == [r[1:] for r in listed(state.ending(None, None))]
    assert moved.used_codes().tolist() == [0, 1, 2]


def test_a_batch_costs_what_it_touches() -> None:
    """10 rows against a million open sessions leave all but the small tiers alone, and 10,000 sessions of one key are
    no cliff.
    """
    many = 1_000_000
    code = np.arange(many, dtype=np.int32)
    state, _ = step(SessionState.empty(LAYOUT), assign(code, np.full(many, 10**6), 10), np.ones(many, np.int64))
    large = state.tiers[0].sessions
    for k in range(20):
        rows = np.arange(10, dtype=np.int32) * 1000 + k
        state, trace = step(state, assign(rows, np.full(10, 10**6 + 5), 10), np.ones(10, np.int64))
        assert len(trace.replaced) == 10
        assert state.tiers[0].sessions is large
        assert state.cells == many
    assert sum(len(tier.sessions) for tier in state.tiers[1:]) < 1000
    one = np.zeros(10_000, np.int32)
    state, _ = step(SessionState.empty(LAYOUT), assign(one, np.arange(10_000) * 100, 10), np.ones(10_000, np.int64))
    assert state.cells == 10_000
    state, trace = step(state, assign(one[:1], np.array([777 * 100 + 10]), 10), np.ones(1, np.int64))
    assert len(trace.replaced) == 1


def test_a_state_survives_arrow() -> None:
    rng = np.random.default_rng(2)
    state = SessionState.empty(LAYOUT)
    for _ in range(5):
        code, time = rng.integers(0, 9, 40).astype(np.int32), rng.integers(0, 3000, 40)
        state, _ = step(state, assign(code, time, 20), rng.integers(0, 9, 40))
    state = state.evict(500).emptied(state.of_codes(np.array([3], np.int32)))
    back = SessionState.from_arrow(LAYOUT, state.to_arrow())
    assert back.next_id == state.next_id
    for a, b in zip(back.ending(None, None).bounds(), state.ending(None, None).bounds(), strict=True):
        assert a.tolist() == b.tolist()
    assert listed(back.ending(None, None)) == listed(state.ending(None, None))
    assert SessionState.from_arrow(LAYOUT, SessionState.empty(LAYOUT).to_arrow()).cells == 0
    with pytest.raises(ValueError, match="not a state of sessions"):
        SessionState.from_arrow(CellLayout(LAYOUT.columns[:1]), state.to_arrow())


def test_a_bridge_keeps_the_id_of_the_earliest_and_says_what_it_replaced() -> None:
    """SP-53 (every hop is exactly the gap) and BW-20: the merged ids."""
    state, first = step(
        SessionState.empty(LAYOUT),
        assign(np.array([0, 0, 0, 1], np.int32), np.array([24, 12, 0, 6]), 5),
        np.array([4, 2, 1, 100]),
    )
    assert first.sessions.id.tolist() == [0, 1, 2, 3]
    rows = np.array([17, 5, 7, 19, 19])
    state, trace = step(state, assign(np.zeros(5, np.int32), rows, 5), np.array([8, 16, 32, 64, 128]))
    assert listed(trace.sessions) == [(0, 0, 24, 29, 255, 1)]
    assert trace.sessions.id.tolist() == [0]
    assert trace.replaced.id.tolist() == [0, 1, 2]
    assert trace.offsets.tolist() == [0, 3]
    assert listed(state.ending(None, None)) == [(0, 0, 24, 29, 255, 1), (1, 6, 6, 11, 100, 100)]


def test_rows_are_merged_into_the_state_they_were_played_on() -> None:
    code = np.zeros(1, np.int32)
    state = SessionState.empty(LAYOUT)
    played = state.play(code, np.array([5]), 10, -100)
    moved, _ = step(state, played, np.array([1]))
    with pytest.raises(ValueError, match="played against another state"):
        step(moved, played, np.array([1]))


@pytest.mark.parametrize("nullable", [False, True])
def test_bytes_of_sessions_that_are_gone_leave_the_heap(nullable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwin.state.heap.ANYWAY", 0)
    layout = CellLayout((CellColumn("least", "min", "bytes", nullable=nullable),))
    heap = BytesHeap()
    state = SessionState.empty(layout, heap)
    for batch in range(4):
        code = np.arange(3000, dtype=np.int32)
        words = [f"{batch}.{i}" for i in range(3000)]
        valid = (code % 2).astype(np.uint8) if nullable else None
        cells = (CellArrays((heap.put(pa.array(words)),), valid),)
        state, _ = state.merge(assign(code, np.full(3000, batch * 100), 10), cells)
        state = state.evict(batch * 100 - 50)
    smaller = state.with_smaller_heap()
    assert smaller.heap is not None
    assert len(smaller.heap) == (1500 if nullable else 3000)
    assert len(heap) == 12_000
    was, now = state.ending(None, None).columns[0], smaller.ending(None, None).columns[0]
    assert smaller.heap.take(now.values[0], now.valid, pa.string()) == heap.take(was.values[0], was.valid, pa.string())
    assert smaller.with_smaller_heap() is smaller

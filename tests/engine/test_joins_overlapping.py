"""Window joins whose rows are in several windows: the rows and their order, however few are listed at a time, and how
many are listed at all.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import LEFT, RIGHT, SECOND, Row, grid_windows, rows_named, seconds, table

from gpuwin.joins import WindowJoin
from gpuwin.joins.kernels import CPU, Arrays, OnCpu
from gpuwin.joins.spans import Spans, in_parts
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.watermarks import ExplicitWatermark
from gpuwin.vocabulary.windows import CumulativeWindow, SlidingWindow, TumblingWindow
from gpuwin_kernels import tuning

GRIDS = [
    SlidingWindow("10 seconds", "3 seconds"),
    SlidingWindow("12 seconds", "2 seconds", "1 second"),
    SlidingWindow("40 seconds", "1 second"),
    SlidingWindow("4 seconds", "9 seconds", "-2 seconds"),
    CumulativeWindow("12 seconds", "4 seconds", "1 second"),
    TumblingWindow("10 seconds"),
]
KEEPS = {"all": slice(None), "first": slice(0, 1), "last": slice(-1, None)}
HOWS = ["inner", "left", "right", "full", "cogroup"]
LISTING = OnCpu.assign_windows


def in_order(
    sides: tuple[list[Row], list[Row]], keys: list[Any], window: Any, how: str, keep: str, after: int, upto: int
) -> list[Any]:
    """Rows of the windows that end after `after`, up to `upto`, seconds: all members listed, and then paired."""
    found: list[Any] = []
    for key in keys:
        mine = [[r for r in rows if (r[0] or r[2][0]) == key] for rows in sides]  # null keys of each side are a key
        windows = {w for rows in mine for r in rows for w in grid_windows(window, r[1])}  # type: ignore[arg-type]
        for start, end in sorted(w for w in windows if after < w[1] <= upto):
            left, right = (
                [r[2] for r in sorted(rows, key=lambda r: r[1] or 0) if start <= r[1] < end][KEEPS[keep]]  # type: ignore[operator]
                for rows in mine
            )
            name = None if key in ("l", "r") else key
            pairs: list[Any] = list(itertools.product(left, right))
            if not right and how in ("left", "full"):
                pairs = [(a, None) for a in left]
            elif not left and how in ("right", "full"):
                pairs = [(None, b) for b in right]
            elif how == "cogroup":
                pairs = [(tuple(left), tuple(right))]
            found += [(name, start, end, *pair) for pair in pairs]
    return found


def rows_of(result: pa.Table) -> list[Any]:
    columns = [result.column(n).to_pylist() for n in ("k", "window_start", "window_end", "l", "r")]
    return [tuple(seconds(v) for v in row) for row in zip(*columns, strict=True)]


@settings(max_examples=300, deadline=None)
@given(
    rows_named("l", ["a", "b", "c", None]),
    rows_named("r", ["a", "b", "d", None]),
    st.integers(0, 12),
    st.sampled_from(GRIDS),
    st.sampled_from(HOWS),
    st.sampled_from(list(KEEPS)),
    st.sampled_from([1, 2, 7, 40, 1 << 20]),
    st.lists(st.integers(-40, 80), max_size=3).map(sorted),
)
def test_rows_come_by_key_and_window(
    left: list[Row], right: list[Row], half: int, window: Any, how: Any, keep: Any, most: int, watermarks: list[int]
) -> None:
    spec = WindowJoin(window, ["k"], "t", "t", how, watermark=ExplicitWatermark(), keep=keep)
    op = spec.start(left_schema=LEFT, right_schema=RIGHT, device="cpu")
    batches = (left[:half], right[:half]), (left[half:], right[half:])
    for some in batches:
        op.process(left=table(some[0], LEFT), right=table(some[1], RIGHT))
    came = [r[0] for some in batches for rows in some for r in rows if r[0] is not None and grid_windows(window, r[1])]  # type: ignore[arg-type]
    keys = ["l", "r", *dict.fromkeys(came)]
    after = -1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "JOIN_MEMBERS", most)
        for at in watermarks:
            found = rows_of(op.advance_watermark(at * SECOND))
            assert found == in_order((left, right), keys, window, how, keep, after, at)
            after = max(after, at)
        assert rows_of(op.finish()) == in_order((left, right), keys, window, how, keep, after, 1000)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the members that were listed, call by call."""
    sizes: list[int] = []

    def counted(self: OnCpu, time: np.ndarray, first: np.ndarray, beyond: np.ndarray) -> Arrays:
        row, window = LISTING(self, time, first, beyond)
        sizes.append(len(row))
        return row, window

    monkeypatch.setattr(OnCpu, "assign_windows", counted)
    return sizes


HOUR = SlidingWindow("1 hour", "1 second")


def joined(how: Any, left: list[Row], right: list[Row], keep: Any = "all") -> int:
    spec = WindowJoin(HOUR, ["k"], "t", "t", how, watermark=ExplicitWatermark(), keep=keep)
    op = spec.start(left_schema=LEFT, right_schema=RIGHT, device="cpu")
    op.process(left=table(left, LEFT), right=table(right, RIGHT))
    return op.finish().num_rows


def test_rows_that_meet_none_are_not_listed(listed: list[int]) -> None:
    left: list[Row] = [("a", 0, "l0"), ("b", 5, "l1"), ("c", 0, "l2")]
    right: list[Row] = [("d", 0, "r0"), ("b", 3605, "r1"), ("c", -3600, "r2"), ("c", 3600, "r3")]
    assert joined("inner", left, right) == 0
    assert sum(listed) == 0
    assert joined("left", left, right) == sum(listed) == 3 * 3600
    listed.clear()
    assert joined("right", left, right) == sum(listed) == 4 * 3600


def test_rows_are_listed_in_windows_of_pairs_alone(listed: list[int]) -> None:
    """A row whose partners are far to both sides of it is not listed in the windows between."""
    left: list[Row] = [("a", 0, "l0")]
    right: list[Row] = [("a", -3598, "r0"), ("a", 3597, "r1"), ("a", 3597, "r2")]
    assert joined("inner", left, right) == 2 + 3 + 3
    assert listed == [2 + 3, 2 + 3 + 3]
    listed.clear()
    assert joined("left", left, right) == 3600 + 3
    assert listed == [3600, 2 + 3 + 3]


@pytest.mark.parametrize(
    ("how", "keep", "rows"), [("inner", "last", 3609), ("full", "all", 3600 * 20), ("cogroup", "all", 3609)]
)
def test_members_are_listed_some_at_a_time(
    listed: list[int], monkeypatch: pytest.MonkeyPatch, how: str, keep: str, rows: int
) -> None:
    left: list[Row] = [("a", i, f"l{i}") for i in range(10)]
    other = "b" if how == "full" else "a"
    right: list[Row] = [(other, i, f"r{i}") for i in range(10)]
    monkeypatch.setattr(tuning, "JOIN_MEMBERS", 1000)
    assert joined(how, left, right, keep) == rows
    assert sum(listed) == 3600 * 20
    assert max(listed) < 1000 + 20


windows = st.one_of(
    st.integers(-9, 9), st.integers(INT64_MIN + 1, INT64_MIN + 9), st.integers(INT64_MAX - 19, INT64_MAX - 9)
)
spans_of_a_side = st.lists(st.tuples(st.integers(2, 4), windows), max_size=8).map(sorted)


def spans_of(rows: list[tuple[int, int]], size: int) -> Spans:
    code, first = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    run = RowRun.of_sorted(code.astype(np.int32), first, first, ()) if rows else None
    return Spans(run, np.arange(len(rows)), code.astype(np.int32), first, first + size)


def members_of(spans: Spans) -> list[tuple[int, int, int]]:
    """(code, window, row) of all members, sorted."""
    if spans.run is None:
        return []
    row, window = spans.listed(CPU)
    return sorted(zip(spans.run.code[row].tolist(), window.tolist(), row.tolist(), strict=True))


@settings(max_examples=300, deadline=None)
@given(spans_of_a_side, spans_of_a_side, st.integers(1, 9), st.integers(1, 30))
def test_ranges_of_spans(a: list[tuple[int, int]], b: list[tuple[int, int]], size: int, most: int) -> None:
    """Spans in ranges: all members once, in order, few in each; and those that are met."""
    left, right = spans_of(a, size), spans_of(b, size)
    parts = list(in_parts(left, right, most))
    assert [m for part in parts for m in members_of(part[0])] == members_of(left)
    assert [m for part in parts for m in members_of(part[1])] == members_of(right)
    for mine, theirs in parts:
        assert mine.members + theirs.members < most + len(a) + len(b) + 1
    groups = [members_of(mine) + members_of(theirs) for mine, theirs in parts]
    filled = [sorted(g) for g in groups if g]
    assert all(x[-1][:2] < y[0][:2] for x, y in itertools.pairwise(filled)), "a window of a key lies in two ranges"
    theirs = {m[:2] for m in members_of(right)}
    assert members_of(left.met_by(right)) == [m for m in members_of(left) if m[:2] in theirs]

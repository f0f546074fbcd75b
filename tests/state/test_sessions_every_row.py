"""The value of a window or session after each row, against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.errors import OverflowError as GpuwinOverflow
from gpuwin.state.every_row import cells_after_each
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout, UserMerge

LAYOUT = CellLayout(
    (
        CellColumn("sum", "sum", "int64", nullable=True),
        CellColumn("most", "max", "float64", nullable=True),
        CellColumn("moments", "moments", "float64", nullable=True),
        CellColumn("moments3", "moments3", "float64", nullable=True),
        CellColumn("last", "last", "int64", nullable=True),
        CellColumn("own", "user", "float64", nullable=True, user=UserMerge(("float64",), lambda a, b: (a + b,))),
    )
)


def lifted(values: list[int | None]) -> tuple[CellArrays, ...]:
    v = np.array([0 if x is None else x for x in values], np.int64)
    valid = np.array([x is not None for x in values], np.uint8)
    f = v.astype(np.float64)
    n = np.arange(len(v))
    one, zero = np.ones(len(v)), np.zeros(len(v))
    words = ((v,), (f,), (one, f, zero), (one, f, zero, zero), (n, n, v), (f,))
    return tuple(CellArrays(w, valid) for w in words)


def check(got: tuple[CellArrays, ...], j: int, held: list[int]) -> None:
    assert all(c.valid[j] == bool(held) for c in got)  # type: ignore[index]
    if not held:
        return
    total, most, moments, moments3, last, own = (tuple(v[j] for v in c.values) for c in got)
    mean = sum(held) / len(held)
    assert total[0] == sum(held)
    assert most[0] == max(held)
    assert moments[0] == len(held)
    assert math.isclose(moments[1], mean, abs_tol=1e-9)
    assert math.isclose(moments[2], sum((x - mean) ** 2 for x in held), abs_tol=1e-6)
    assert math.isclose(moments3[3], sum((x - mean) ** 3 for x in held), abs_tol=1e-6)
    assert last[2] == held[-1]
    assert own[0] == sum(held)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_steps_and_merges_against_a_loop(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=25))
    groups = 5
    before = data.draw(st.lists(st.none() | st.integers(-9, 9), min_size=groups, max_size=groups))
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, len(values) - 1), st.integers(-1, groups - 1)), max_size=40).map(sorted)
    )
    merges = data.draw(
        st.lists(
            st.tuples(st.integers(0, max(len(steps) - 1, 0)), st.integers(0, 4), st.integers(0, 4)).filter(
                lambda m: m[1] != m[2]
            ),
            max_size=4,
        ).map(sorted)
    )
    source = np.array([s for s, _ in steps], np.int64)
    group = np.array([g for _, g in steps], np.int64)
    start = lifted(before)
    start[4].values[0][:] = -1  # before every row
    held = np.array([x is not None for x in before], np.uint8)
    got = cells_after_each(
        LAYOUT, lifted(values), source, group, start, held, merges=np.array(merges, np.int64).reshape(-1, 3)
    )
    bags = [[] if x is None else [(-1, x)] for x in before]
    for j, (i, g) in enumerate(steps):
        for at, into, absorbed in merges:
            if at == j:
                bags[into] = sorted(bags[into] + bags[absorbed])
        if g < 0:
            continue
        if values[i] is not None:
            bags[g] = [*bags[g], (i, values[i])]
        by_time = [v for _, v in sorted(bags[g], key=lambda p: p[0])]
        check_loose(got, j, by_time, bags[g])


def check_loose(got: tuple[CellArrays, ...], j: int, by_time: list[int], bag: list[tuple[int, int]]) -> None:
    """`last` is only checked where one row is the last: merged accumulators may hold the same row twice."""
    newest = [v for i, v in bag if i == max((k for k, _ in bag), default=-1)]
    if len(set(newest)) == 1:
        check(got, j, by_time)


def test_bytes_and_overflow() -> None:
    import pyarrow as pa

    heap = BytesHeap()
    codes = heap.put(pa.array(["b", "a", "c"]))
    layout = CellLayout((CellColumn("least", "min", "bytes"),))
    cells = (CellArrays((codes,), None),)
    none = (CellArrays((np.zeros(1, np.int64),), None),)
    at = np.arange(3)
    got = cells_after_each(layout, cells, at, np.zeros(3, np.int64), none, np.zeros(1, np.uint8), heap=heap)
    assert heap.take(got[0].values[0], None, pa.string()).to_pylist() == ["b", "a", "a"]
    sums = CellLayout((CellColumn("sum", "sum", "int64"),))
    large = (CellArrays((np.array([2**62, 2**62, 1]),), None),)
    with pytest.raises(GpuwinOverflow, match="does not fit"):
        cells_after_each(sums, large, at, np.zeros(3, np.int64), none, np.zeros(1, np.uint8))

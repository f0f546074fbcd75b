"""Merging two runs in one pass gives what merging them column by column does."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap
from gpuwin.state.panes.runs import Run
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.run_merge import can_merge
from gpuwin_kernels.layout import STATISTICS, CellArrays, CellColumn, CellLayout, UserMerge

LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64", nullable=True),
        CellColumn("d", "sum", "int128", nullable=True),
        CellColumn("lo", "min", "float64", nullable=True),
        CellColumn("hi", "max", "int128"),
        CellColumn("word", "max", "bytes", nullable=True),
        CellColumn("f", "first", "int64", nullable=True),
        CellColumn("r", "registers", "int64", nullable=True),
        *(CellColumn(merge, merge, "float64") for merge in STATISTICS),
    )
)


def random_run(rng: np.random.Generator, cells: int, heap: BytesHeap) -> Run:
    at = np.sort(rng.choice(4 * 50, cells, replace=False))
    columns = []
    for column in LAYOUT.columns:
        words = []
        for k, word in enumerate(column.words):
            if column.dtype == "bytes" and k == len(column.words) - 1:
                words.append(rng.integers(0, len(heap), cells))
            elif word == "float64":
                words.append(rng.choice([1.5, -0.0, 0.0, np.nan, -7.0, 3.25], cells))
            else:
                words.append(rng.integers(0, 9, cells).astype(word))
        valid = rng.integers(0, 2, cells).astype(np.uint8) if column.nullable else None
        if valid is not None:
            for word in words:
                word[valid == 0] = 0
        columns.append(CellArrays(tuple(words), valid))
    return Run(at // 50 - 2, (at % 50).astype(np.int32), tuple(columns))


@pytest.fixture
def heap() -> BytesHeap:
    import pyarrow as pa

    heap = BytesHeap()
    heap.put(pa.array([b"", b"a", b"ab", b"b\x00", b"b"], pa.large_binary()))
    return heap


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("seed", range(6))
def test_one_pass_equals_column_by_column(
    seed: int, threads: int, heap: BytesHeap, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_run(rng, int(rng.integers(1, 150)), heap), random_run(rng, int(rng.integers(1, 150)), heap)
    assert can_merge(LAYOUT)
    monkeypatch.setattr(tuning, "MERGE_AT_ONCE", 1 << 40)
    expected = a.merged(b, LAYOUT, heap)
    monkeypatch.setattr(tuning, "MERGE_AT_ONCE", 1)
    if threads > 1:
        monkeypatch.setattr(tuning, "SPLIT_ROWS", 2)
        monkeypatch.setattr(tuning, "threads", lambda: threads)
    found = a.merged(b, LAYOUT, heap)
    np.testing.assert_array_equal(found.pane, expected.pane)
    np.testing.assert_array_equal(found.code, expected.code)
    for x, y in zip(found.columns, expected.columns, strict=True):
        if x.valid is not None:
            np.testing.assert_array_equal(x.valid, y.valid)
        for v, w in zip(x.values, y.values, strict=True):
            np.testing.assert_array_equal(v, w)


def test_a_sum_that_leaves_its_type_is_an_error_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = CellLayout((CellColumn("s", "sum", "int64"),))
    runs = [
        Run(np.zeros(1, np.int64), np.zeros(1, np.int32), (CellArrays((np.array([value]),), None),))
        for value in ((1 << 63) - 1, 1)
    ]
    for at_once in (1, 1 << 40):
        monkeypatch.setattr(tuning, "MERGE_AT_ONCE", at_once)
        with pytest.raises(OverflowError, match="does not fit 64 bits"):
            runs[0].merged(runs[1], layout)


def test_merges_of_the_user_are_left_to_the_other_way() -> None:
    user = UserMerge(("int64",), lambda a, b: (a + b,))
    assert not can_merge(CellLayout((CellColumn("u", "user", "int64", user=user),)))

"""Totals of ranges of cells are those of a plain merge, for every merge, with and without levels of nodes."""

from __future__ import annotations

import numpy as np
import pytest
from device_arrays import LAYOUT, assert_same_cells, random_cells, uploaded

from gpuwin.state.cells import merge_cells, take_cells
from gpuwin_kernels.cuda import ranges
from gpuwin_kernels.cuda.runtime import to_device
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout, UserMerge


def expected(
    layout: CellLayout, columns: tuple[CellArrays, ...], lo: np.ndarray, hi: np.ndarray
) -> tuple[CellArrays, ...]:
    rows = np.concatenate([np.arange(a, b) for a, b in zip(lo, hi, strict=True)])
    return merge_cells(layout, take_cells(columns, rows), np.repeat(np.arange(len(lo)), hi - lo), len(lo))


@pytest.mark.parametrize(("cells", "queries"), [(1, 1), (40, 25), (1000, 12), (3000, 8)])
def test_totals(cells: int, queries: int) -> None:
    rng = np.random.default_rng(cells)
    columns = random_cells(rng, cells)
    lo = rng.integers(0, cells, queries)
    hi = np.minimum(lo + 1 + rng.integers(0, cells, queries), cells)
    found = ranges.totals(LAYOUT, uploaded(columns), to_device(lo), to_device(hi))
    assert_same_cells(LAYOUT, expected(LAYOUT, columns, lo, hi), found)


def test_every_length_around_a_node() -> None:
    layout = CellLayout((CellColumn("n", "sum", "int64"),))
    columns = (CellArrays((np.arange(130),), None),)
    lo = np.repeat([0, 1, 31, 32, 33], 6)
    hi = np.minimum(lo + np.tile([1, 31, 32, 33, 64, 97], 5), 130)
    found = ranges.totals(layout, uploaded(columns), to_device(lo), to_device(hi))
    assert_same_cells(layout, expected(layout, columns, lo, hi), found)


def test_an_exact_sum_that_leaves_its_type_is_reported() -> None:
    layout = CellLayout((CellColumn("ok", "sum", "int64"), CellColumn("s", "sum", "int64")))
    huge = np.full(100, 1 << 60)
    columns = uploaded((CellArrays((np.ones(100, np.int64),), None), CellArrays((huge,), None)))
    assert ranges.totals(layout, columns, to_device(np.array([0])), to_device(np.array([7])))
    with pytest.raises(ranges.RangeOverflow) as error:
        ranges.totals(layout, columns, to_device(np.array([0, 0])), to_device(np.array([7, 100])))
    assert error.value.column == 1


def test_statistics_and_bits() -> None:
    rng = np.random.default_rng(5)
    statistics = ("moments3", "moments4", "comoments", "correlation")
    bits = ("bit_and", "bit_or", "bit_xor", "registers")
    layout = CellLayout(
        (*(CellColumn(m, m, "float64") for m in statistics), *(CellColumn(m, m, "int64", nullable=True) for m in bits))
    )
    n = 300
    columns = tuple(
        CellArrays((rng.integers(0, 4, n).astype(float), *(rng.normal(size=n) for _ in c.words[1:])), None)
        if c.dtype == "float64"
        else CellArrays((rng.integers(0, 1 << 60, n),), rng.integers(0, 2, n).astype(np.uint8))
        for c in layout.columns
    )
    lo = np.array([0, 7, 100])
    hi = np.array([300, 9, 180])
    found = ranges.totals(layout, uploaded(columns), to_device(lo), to_device(hi))
    assert_same_cells(layout, expected(layout, columns, lo, hi), found)


def test_a_merge_of_the_user() -> None:
    def merge(n: int, top: float, m: int, other: float) -> tuple[int, float]:
        return n + m, max(top, other)

    layout = CellLayout((CellColumn("u", "user", "int64", user=UserMerge(("int64", "float64"), merge)),))
    columns = (CellArrays((np.arange(90), np.random.default_rng(0).normal(size=90)), None),)
    found = ranges.totals(layout, uploaded(columns), to_device(np.array([3, 0])), to_device(np.array([5, 90])))
    n, top = (w.copy_to_host() for w in found[0].values)
    np.testing.assert_array_equal(n, [7, 89 * 45])
    np.testing.assert_array_equal(top, [columns[0].values[1][3:5].max(), columns[0].values[1].max()])

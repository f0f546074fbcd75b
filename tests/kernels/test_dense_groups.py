"""Groups that are found in a table are those that sorting finds."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin.state import Run
from gpuwin.state.panes import runs
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.dense_groups import dense_groups
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LEAST, MOST = -(1 << 63), (1 << 63) - 1
LAYOUT = CellLayout(
    (CellColumn("s", "sum", "float64"), CellColumn("n", "sum", "int64"), CellColumn("x", "max", "int64"))
)


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: request.param)
    monkeypatch.setattr(tuning, "SORT_ROWS", 0)


@pytest.mark.parametrize("first", [LEAST, -2, MOST - 4])
@pytest.mark.parametrize("n", [1, 2, 100, tuning.SPLIT_ROWS + 5])
def test_groups(n: int, first: int) -> None:
    rng = np.random.default_rng(n)
    pane, code = first + rng.integers(0, 5, n), rng.integers(0, 700, n).astype(np.int32)
    found = dense_groups(pane, code)
    assert found is not None
    group, out_pane, out_code = found
    cells = list(zip(pane.tolist(), code.tolist(), strict=True))
    want = sorted(set(cells))
    assert list(zip(out_pane.tolist(), out_code.tolist(), strict=True)) == want
    number = {cell: k for k, cell in enumerate(want)}
    assert group.tolist() == [number[cell] for cell in cells]
    assert (group.dtype, out_pane.dtype, out_code.dtype) == (np.int64, np.int64, np.int32)


def test_no_table_is_made_for_few_cells_of_many() -> None:
    pane = np.array([LEAST, MOST])
    assert dense_groups(pane, np.zeros(2, np.int32)) is None
    assert dense_groups(np.zeros(2, np.int64), np.array([0, (1 << 31) - 2], np.int32)) is None


def test_runs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: what falls into a cell is added in the order in which it came."""
    n = 5_000
    rng = np.random.default_rng(3)
    values = CellArrays((rng.normal(size=n),), None), CellArrays((rng.integers(0, 9, n),), None)
    columns = (*values, CellArrays((rng.integers(-9, 9, n),), None))
    for codes in (1, 40, 2_000, n):
        pane = rng.integers(-2, 3, n) if codes < n else np.zeros(n, np.int64)
        code = (rng.integers(0, codes, n) if codes < n else rng.permutation(n)).astype(np.int32)
        dense = Run.from_cells(LAYOUT, pane, code, columns)
        with monkeypatch.context() as patched:
            patched.setattr(runs, "dense_groups", lambda *_: None)
            by_order = Run.from_cells(LAYOUT, pane, code, columns)
        for a, b in zip((dense.pane, dense.code), (by_order.pane, by_order.code), strict=True):
            assert a.tobytes() == b.tobytes()
        for a, b in zip(dense.columns, by_order.columns, strict=True):
            assert [x.tobytes() for x in a.arrays] == [x.tobytes() for x in b.arrays]

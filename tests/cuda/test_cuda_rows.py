"""Rows to cells on the device equal the CPU's, in each regime, for each kind of input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import assert_same_cells

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cpu.rows import aggregate_rows as on_cpu
from gpuwin_kernels.cuda import rows as module
from gpuwin_kernels.cuda.rows import REACH, aggregate_rows
from gpuwin_kernels.cuda.runtime import to_device, to_host, waits
from gpuwin_kernels.layout import CellColumn, CellLayout

N = 48
LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64", nullable=True),
        CellColumn("lo", "min", "float64", nullable=True),
        CellColumn("hi", "max", "float64", nullable=True),
        CellColumn("i", "sum", "int64", nullable=True),
        CellColumn("w", "sum", "int128", nullable=True),
        CellColumn("least", "min", "int64", nullable=True),
        CellColumn("most", "max", "int64"),
        CellColumn("u", "sum", "int128"),
    )
)
EDGES = [np.nan, -0.0, 0.0, np.inf, -np.inf, 5e-324, -1.5]


def random_inputs(rng: np.random.Generator) -> list[RowInput]:
    floats = rng.choice([*EDGES, *rng.normal(size=9)], N)
    integers = rng.choice([-(1 << 63), (1 << 63) - 1, 0, -1, 7], N) // 64
    wide = np.stack((rng.integers(-(1 << 63), (1 << 63) - 1, N), rng.integers(-3, 3, N)), axis=1)
    bitmap = np.packbits(rng.random(N + 5) < 0.7, bitorder="little")
    value, whole = RowInput(floats, bitmap, 5), RowInput(integers)
    unsigned = RowInput(rng.integers(0, 1 << 63, N).astype(np.uint64) * np.uint64(2))
    return [RowInput(None), value, value, value, whole, RowInput(wide, bitmap, 3), whole, whole, unsigned]


@pytest.mark.parametrize(
    ("regime", "codes", "span"), [("few", 3, 4), ("dense", 50, 40), ("hashed", 50, 4_000), ("hashed", 3, 1 << 45)]
)
def test_regimes(regime: str, codes: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(span % 97)
    if regime == "dense":
        monkeypatch.setattr(tuning, "CUDA_SHARED_BYTES", 0)
    code, time = rng.integers(0, codes, N).astype(np.int32), rng.integers(-10 * span, 10 * span, N)
    inputs = random_inputs(rng)
    expected = on_cpu(LAYOUT, inputs, code, time, 10, 3, codes=codes)
    found = aggregate_rows(LAYOUT, inputs, code, time, 10, 3, codes=codes)
    np.testing.assert_array_equal(to_host(found.pane), expected.pane)
    np.testing.assert_array_equal(to_host(found.code), expected.code)
    assert_same_cells(LAYOUT, expected.columns, found.columns, regime)


@pytest.mark.parametrize(("regime", "codes", "span"), [("few", 3, 4), ("dense", 50, 40), ("hashed", 50, 4_000)])
def test_a_count_stands_for_flags(regime: str, codes: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no input has nulls; and not where one has, or nothing is counted."""
    rng = np.random.default_rng(span)
    if regime == "dense":
        monkeypatch.setattr(tuning, "CUDA_SHARED_BYTES", 0)
    value, whole = RowInput(rng.choice([*EDGES, *rng.normal(size=9)], N)), RowInput(rng.integers(-9, 9, N))
    nulls = RowInput(rng.normal(size=N), np.packbits(rng.random(N) < 0.5, bitorder="little"))
    layout = CellLayout(
        (
            CellColumn("w", "sum", "int64", nullable=True),
            CellColumn("n", "sum", "int64"),
            CellColumn("lo", "min", "float64", nullable=True),
            CellColumn("hi", "max", "int64"),
        )
    )
    code, time = rng.integers(0, codes, N).astype(np.int32), rng.integers(-10 * span, 10 * span, N)
    for inputs, short in (
        ([whole, RowInput(None), value, whole], True),
        ([whole, RowInput(None), nulls, whole], False),
        ([whole, whole, value, whole], False),
    ):
        spec, _, _ = module._inputs(layout, inputs)
        assert (spec.counter is not None) == short
        expected = on_cpu(layout, inputs, code, time, 10, 3, codes=codes)
        found = aggregate_rows(layout, inputs, code, time, 10, 3, codes=codes)
        np.testing.assert_array_equal(to_host(found.pane), expected.pane)
        np.testing.assert_array_equal(to_host(found.code), expected.code)
        assert_same_cells(layout, expected.columns, found.columns, regime)
    four = CellLayout((CellColumn("n", "sum", "int64"), *(CellColumn(n, n, "float64") for n in ("sum", "min", "max"))))
    assert module._inputs(four, [RowInput(None), value, value, value])[0].width == 4


def test_rows_that_are_on_the_device_already() -> None:
    rng = np.random.default_rng(3)
    layout = CellLayout((LAYOUT.columns[0],))
    code, time = rng.integers(0, 4, N).astype(np.int32), rng.integers(-99, 99, N)
    found = aggregate_rows(layout, [RowInput(None)], to_device(code), to_device(time), 25, codes=4)
    expected = on_cpu(layout, [RowInput(None)], code, time, 25, codes=4)
    np.testing.assert_array_equal(to_host(found.pane), expected.pane)
    assert_same_cells(layout, expected.columns, found.columns)


def test_a_sum_may_leave_64_bits_on_its_way_and_not_in_the_end() -> None:
    layout = CellLayout((CellColumn("s", "sum", "int64"),))
    code, time = np.zeros(4, np.int32), np.zeros(4, np.int64)
    values = np.array([(1 << 63) - 1, 5, -6, -1])
    found = aggregate_rows(layout, [RowInput(values)], code, time, 10, codes=1)
    np.testing.assert_array_equal(to_host(found.columns[0].values[0]), [(1 << 63) - 3])
    with pytest.raises(SumOverflow):
        aggregate_rows(layout, [RowInput(values[:2])], code[:2], time[:2], 10, codes=1)


def test_what_does_not_fit_is_refused() -> None:
    layout = CellLayout((CellColumn("n", "sum", "int64"),))
    rows = np.zeros(2, np.int32), np.array([0, REACH])
    with pytest.raises(ValueError, match="split the rows"):
        aggregate_rows(layout, [RowInput(None)], *rows, 10, codes=1)
    with pytest.raises(ValueError, match="1 codes for 2 times"):
        aggregate_rows(layout, [RowInput(None)], rows[0][:1], rows[1], 10, codes=1)
    assert len(aggregate_rows(layout, [RowInput(None)], rows[0][:0], rows[1][:0], 10, codes=1).pane) == 0


REGIMES: list[tuple[str, dict[str, int]]] = [
    ("few", {}),
    ("dense", {"CUDA_SHARED_BYTES": 0}),
    ("hashed", {"CUDA_SHARED_BYTES": 0, "DENSE_ANYWAY": 0, "CUDA_DENSE_SPARSITY": 0}),
]


@pytest.mark.parametrize(("regime", "numbers"), REGIMES)
def test_a_call_waits_for_the_device_once(
    regime: str, numbers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in numbers.items():
        monkeypatch.setattr(tuning, name, value)
    used: list[str] = []
    plain = module.launch_over

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        used.append(kernel.__name__)
        plain(kernel, *arguments, **options)

    monkeypatch.setattr(module, "launch_over", noted)
    layout = CellLayout((CellColumn("n", "sum", "int64"), CellColumn("s", "sum", "int64", nullable=True)))
    inputs = [RowInput(None), RowInput(np.arange(6))]
    code, time = to_device(np.arange(6, dtype=np.int32) % 2), to_device(np.arange(6))
    before = waits()
    aggregate_rows(layout, inputs, code, time, 3, codes=2, span=(0, 5))
    assert used == [regime]
    assert waits() - before == 1  # how many cells there are, and whether a sum left its type


@pytest.mark.parametrize("origin", [0, 7, 39])
@pytest.mark.parametrize("end", [-(1 << 63), (1 << 63) - 200])
def test_times_at_the_ends_of_int64(end: int, origin: int) -> None:
    rng = np.random.default_rng(origin)
    layout = CellLayout((CellColumn("n", "sum", "int64"),))
    code, time = rng.integers(0, 3, N).astype(np.int32), end + rng.integers(0, 200, N)
    expected = on_cpu(layout, [RowInput(None)], code, time, 40, origin, codes=3)
    assert set(expected.pane.tolist()) == {(int(t) - origin) // 40 for t in time}
    found = aggregate_rows(layout, [RowInput(None)], code, time, 40, origin, codes=3)
    np.testing.assert_array_equal(to_host(found.pane), expected.pane)
    assert_same_cells(layout, expected.columns, found.columns)

"""Joins on the device list what those of the CPU list, in the same order; int64 extremes, and sides without rows."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin_kernels.cpu import joins as cpu
from gpuwin_kernels.cuda import joins
from gpuwin_kernels.cuda.runtime import to_device, to_host

INT64 = np.iinfo(np.int64)


def sorted_pairs(rng: np.random.Generator, rows: int, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    code, at = rng.integers(0, 4, rows).astype(np.int32), rng.choice(values, rows)
    order = np.lexsort((at, code))
    return code[order], at[order]


def assert_same(expected: tuple[np.ndarray, ...], found: tuple[object, ...]) -> None:
    assert len(expected) == len(found)
    for number, (x, y) in enumerate(zip(expected, found, strict=True)):
        host = to_host(y)
        assert host.dtype == x.dtype
        np.testing.assert_array_equal(x, host, f"result {number}")


@pytest.mark.parametrize(
    ("rows", "wanted", "share"), [(40, 25, 0.3), (30, 20, 1.0), (0, 5, 0.0), (20, 0, 0.0), (1, 9, 0.0)]
)
def test_probe(rows: int, wanted: int, share: float) -> None:
    rng = np.random.default_rng(rows + wanted)
    ends = np.array([INT64.min, INT64.max])
    code, time = sorted_pairs(rng, rows, np.concatenate((np.arange(-12, 12), ends)))
    live = (rng.random(rows) >= share).astype(np.uint8)
    want_code = rng.integers(0, 5, wanted).astype(np.int32)  # one of them is of no row
    least = rng.choice(np.concatenate((np.arange(-14, 14), ends)), wanted)
    most = np.where(
        rng.random(wanted) < 0.2,
        INT64.max,
        np.minimum(least, INT64.max - 9) + rng.integers(-3, 9, wanted) * (least > INT64.min),
    )
    gone = np.packbits(live == 0, bitorder="little")
    expected = cpu.probe(code, time, gone, want_code, least, most)
    assert share in (0.0, 1.0) or len(expected[0]) > 8  # the case is not empty
    assert_same(expected, joins.probe(*map(to_device, (code, time, live, want_code, least, most))))


@pytest.mark.parametrize(("rows", "wanted"), [(40, 25), (0, 5), (20, 0), (1, 9)])
def test_newest(rows: int, wanted: int) -> None:
    rng = np.random.default_rng(rows + wanted)
    times = np.concatenate((np.arange(-12, 12), [INT64.min, INT64.max]))
    code, time = sorted_pairs(rng, rows, times)
    want_code, most = rng.integers(0, 5, wanted).astype(np.int32), rng.choice(times, wanted)  # one of them is of no row
    expected = cpu.newest(code, time, want_code, most)
    assert rows < 40 or 5 < np.count_nonzero(expected >= 0) < wanted  # the case is not empty
    assert_same((expected,), (joins.newest(*map(to_device, (code, time, want_code, most))),))


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_assign_windows(rows: int) -> None:
    rng = np.random.default_rng(rows)
    first = rng.integers(-20, 20, rows)
    first[: rows // 3] = INT64.max - 5
    beyond = first + rng.integers(-2, 5, rows)  # some rows are in no window
    expected = cpu.assign_windows(np.zeros(rows, np.int64), first, beyond)
    assert_same(expected, joins.assign_windows(to_device(first), to_device(beyond)))


SIDES = [(30, 25), (1, 1), (0, 20), (20, 0), (0, 0)]
WINDOWS = np.array([INT64.min, -3, -2, -1, 0, 1, 2, INT64.max])


@pytest.mark.parametrize("keep_right", [False, True])
@pytest.mark.parametrize("keep_left", [False, True])
@pytest.mark.parametrize("sides", SIDES)
def test_pair_groups(sides: tuple[int, int], keep_left: bool, keep_right: bool) -> None:
    rng = np.random.default_rng(sum(sides))
    both = [*sorted_pairs(rng, sides[0], WINDOWS), *sorted_pairs(rng, sides[1], WINDOWS)]
    expected = cpu.pair_groups(*both, keep_left, keep_right)
    assert_same(expected, joins.pair_groups(*map(to_device, both), keep_left, keep_right))


@pytest.mark.parametrize("sides", SIDES)
def test_union_groups(sides: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(sides))
    both = [*sorted_pairs(rng, sides[0], WINDOWS), *sorted_pairs(rng, sides[1], WINDOWS)]
    assert_same(cpu.union_groups(*both), joins.union_groups(*map(to_device, both)))

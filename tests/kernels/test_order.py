"""Orders of rows by a number, and by code and time, against NumPy's stable sorts."""

import numpy as np
import pytest

from gpuwin_kernels.cpu import packed_order
from gpuwin_kernels.cpu.order import merged_live, order_by_part, order_in_threads, stable_order
from gpuwin_kernels.cpu.packed_order import order_within_codes
from gpuwin_kernels.cpu.slices import float_keys


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (1, 1), (5, 3), (1000, 2), (1000, 200), (10, 5000)])
def test_rows_keep_their_order_within_a_part(rows: int, parts: int, dtype: type) -> None:
    part = np.random.default_rng(rows + parts).integers(0, parts, rows).astype(dtype)
    order, first = order_by_part(part, parts)
    assert order.tolist() == np.argsort(part, kind="stable").tolist()
    assert np.diff(first).tolist() == np.bincount(part, minlength=parts).tolist()
    assert (first[0], first[-1]) == (0, rows)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [0, 1, 2, 40, 3_000, 40_000])
@pytest.mark.parametrize("bits", [0, 1, 5, 20, 31])
def test_stable_order(bits: int, rows: int, dtype: type) -> None:
    rng = np.random.default_rng(bits)
    wide = bits if dtype is np.int32 else 2 * bits + 1
    key = rng.integers(-(1 << wide), 1 << wide, rows).astype(dtype)
    for values in (key, np.sort(key), np.sort(key)[::-1].copy()):
        assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


@pytest.mark.parametrize("codes", [1, 3, 1000, 150_000, 10_000_000])
@pytest.mark.parametrize("rows", [10, 200_000])
@pytest.mark.parametrize("times", ["rising", "nearly", "falling", "any", "one"])
def test_order_by_all_threads(times: str, rows: int, codes: int) -> None:
    rng = np.random.default_rng(rows + codes)
    code = rng.integers(0, codes, rows).astype(np.int32)
    rising = np.arange(rows, dtype=np.int64)
    key = {
        "rising": rising,
        "nearly": rising + rng.integers(-9, 9, rows),
        "falling": rising[::-1].copy(),
        "any": rng.integers(-(2**62), 2**62, rows),
        "one": np.zeros(rows, np.int64),
    }[times]
    assert np.array_equal(order_in_threads(code, key), np.lexsort((key, code)))


def nested(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Keys of which nearly all lie in a small part of the range, and of these nearly all in a small part again."""
    key = np.zeros(rows, np.int64)
    for depth in range(7):
        some = rng.random(rows) < 0.02
        key[some] = rng.integers(0, 1 << (62 - 9 * depth), int(some.sum()))
    return key


@pytest.mark.parametrize("codes", [1, 3_000])
@pytest.mark.parametrize("rows", [0, 1, 3_000, 200_000])
@pytest.mark.parametrize("keys", ["floats", "wide", "narrow", "nested", "lower bits", "equal", "nearly"])
@pytest.mark.parametrize("room", [12, 64])
def test_order_within_codes(room: int, keys: str, rows: int, codes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where words have no room for the keys."""
    monkeypatch.setattr(packed_order, "_LEAST_BITS", room)
    rng = np.random.default_rng(rows + codes)
    code = np.sort(rng.integers(0, codes, rows)).astype(np.int32)
    key = {
        "floats": lambda: float_keys(rng.normal(size=rows)),
        "wide": lambda: rng.integers(-(2**63), 2**63 - 1, rows, endpoint=True),
        "narrow": lambda: rng.integers(-3_000_000, 3_000_000, rows),
        "nested": lambda: nested(rng, rows),
        "lower bits": lambda: (rng.integers(0, 5, rows) << 60) + rng.integers(0, 3_000, rows),
        "equal": lambda: np.full(rows, -5),
        "nearly": lambda: np.arange(rows) * 1_000_000_000 + rng.integers(0, 9_000_000_000, rows),
    }[keys]()
    assert np.array_equal(order_within_codes(code, key), np.lexsort((key, code)))


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0), (30, 200), (90_000, 150_000), (150_000, 90_000)])
@pytest.mark.parametrize("codes", [1, 50, 100_000])
def test_rows_that_are_gone_or_too_old_leave_a_merge(sizes: tuple[int, int], codes: int) -> None:
    rng = np.random.default_rng(sum(sizes) + codes)

    def some(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        code, key = rng.integers(0, codes, rows).astype(np.int32), rng.integers(0, 1_000, rows)
        order = np.lexsort((key, code))
        return code[order], key[order], np.packbits(rng.random(rows) < 0.2, bitorder="little")

    a, b = some(sizes[0]), some(sizes[1])
    code, key = np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))
    gone = [np.unpackbits(side[2], count=size, bitorder="little") for side, size in zip((a, b), sizes, strict=True)]
    order = np.lexsort((key, code))  # stable: rows of a come first among equals
    for least, most in ((-1, 1_000), (300, 2**63 - 1), (300, 700), (1_000, 2_000), (-5, -1)):
        kept = (np.concatenate(gone) == 0) & (key >= least) & (key <= most)
        assert np.array_equal(merged_live(a, b, least, most), order[kept[order]])
    nothing = np.zeros_like(a[2]), np.zeros_like(b[2])
    assert np.array_equal(merged_live((*a[:2], nothing[0]), (*b[:2], nothing[1]), -1, 1_000), order)

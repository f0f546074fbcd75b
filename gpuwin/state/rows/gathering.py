"""Items of several arrays of one length at the same places, gathered by all threads; or of several pairs of arrays,
which nobody has to join before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import fixed_values
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import take_of_two
from gpuwin_kernels.cpu.parallel import each, ranges

_FEW = 4_096  # rows that one thread has gathered before others have begun


def gathered(
    numbers: Sequence[np.ndarray], values: Sequence[pa.Array], at: np.ndarray
) -> tuple[list[np.ndarray], list[pa.Array]]:
    """The items of each array at the places `at` (int64). A column of fixed width without nulls is shared out by rows,
    any other is one thread's.
    """
    places = pa.array(at)
    if len(at) < _FEW:
        return [a.take(at) for a in numbers], [v.take(places) for v in values]
    found = [empty(len(at), a.dtype) for a in numbers]
    jobs = _by_rows(numbers, found, at)
    taken: list[pa.Array] = [None] * len(values)

    def take(column: int) -> None:
        taken[column] = values[column].take(places)

    for column, array in enumerate(values):
        raw = _plain_numbers(array)
        if raw is None:
            jobs.append(partial(take, column))
        else:
            out = empty(len(at), raw.dtype)
            jobs += _by_rows([raw], [out], at)
            taken[column] = pa.Array.from_buffers(array.type, len(at), [None, pa.py_buffer(out)])
    _share_out(jobs, len(at))
    return found, taken


def gathered_of_two(
    numbers: Sequence[tuple[np.ndarray, np.ndarray]], values: Sequence[tuple[pa.Array, pa.Array]], at: np.ndarray
) -> tuple[list[np.ndarray], list[pa.Array]]:
    """As `gathered`, of pairs of arrays: a place from the length of the first one on is one of the second. The arrays
    of numbers have items of 4 or 8 bytes.
    """
    if numbers and sum(map(len, numbers[0])) < _FEW:
        return gathered([np.concatenate(pair) for pair in numbers], [pa.concat_arrays(pair) for pair in values], at)
    found = [empty(len(at), a.dtype) for a, _ in numbers]
    jobs = [job for pair, out in zip(numbers, found, strict=True) for job in _by_rows_of_two(*pair, out, at)]
    taken: list[pa.Array] = [None] * len(values)

    def take(column: int) -> None:
        taken[column] = pa.concat_arrays(values[column]).take(pa.array(at))

    for column, (a, b) in enumerate(values):
        first, second = _plain_numbers(a), _plain_numbers(b)
        if first is None or second is None:
            jobs.append(partial(take, column))
        else:
            out = empty(len(at), first.dtype)
            jobs += _by_rows_of_two(first, second, out, at)
            taken[column] = pa.Array.from_buffers(a.type, len(at), [None, pa.py_buffer(out)])
    _share_out(jobs, len(at))
    return found, taken


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of one type, at least one, one behind the other."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _by_rows(arrays: Sequence[np.ndarray], found: Sequence[np.ndarray], at: np.ndarray) -> list[Callable[[], object]]:
    """Jobs that gather each array, a part of the places each."""
    return [
        partial(np.take, array, at[lo:hi], out=out[lo:hi], mode="clip")  # which writes to `out` at once
        for array, out in zip(arrays, found, strict=True)
        for lo, hi in ranges(len(at))
    ]


def _by_rows_of_two(a: np.ndarray, b: np.ndarray, found: np.ndarray, at: np.ndarray) -> list[Callable[[], object]]:
    """Jobs that gather from two arrays, a part of the places each."""
    word = np.dtype(f"u{a.dtype.itemsize}")
    first, second, out = alias_of(a.view(word)), alias_of(b.view(word)), found.view(word)
    return [partial(take_of_two, first, second, at, lo, hi, out) for lo, hi in ranges(len(at))]


def _share_out(jobs: Sequence[Callable[[], object]], rows: int) -> None:
    """Runs jobs, by all threads where the rows are many."""
    shares = tuning.threads() if rows >= tuning.SPLIT_ROWS else 1
    each(_run, [jobs[share::shares] for share in range(shares)])


def _run(jobs: Sequence[Callable[[], object]]) -> None:
    for job in jobs:
        job()


def _plain_numbers(array: pa.Array) -> np.ndarray | None:
    """The items of a column of 4 or 8 bytes each and without nulls; None for any other."""
    type_ = array.type
    plain = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)
    if not plain or array.null_count or type_ == pa.month_day_nano_interval() or type_.bit_width not in (32, 64):
        return None
    return fixed_values(array, np.dtype(f"u{type_.bit_width // 8}"))

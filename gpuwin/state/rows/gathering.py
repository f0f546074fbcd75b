"""Items of several arrays of one length at the same places, gathered by all threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import fixed_values
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges


def gathered(
    numbers: Sequence[np.ndarray], values: Sequence[pa.Array], at: np.ndarray
) -> tuple[list[np.ndarray], list[pa.Array]]:
    """The items of each array at the places `at` (int64). A column of fixed width without nulls is shared out by rows,
    any other is one thread's.
    """
    found = [empty(len(at), a.dtype) for a in numbers]
    jobs = _by_rows(numbers, found, at)
    taken: list[pa.Array] = [None] * len(values)
    places = pa.array(at)

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
    shares = tuning.threads() if len(at) >= tuning.SPLIT_ROWS else 1
    each(_run, [jobs[share::shares] for share in range(shares)])
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

"""A few threads for kernels that release the interpreter lock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np

from gpuwin_kernels import tuning

T = TypeVar("T")
R = TypeVar("R")


@cache
def _pool(process: int, name: str = "gpuwin") -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, tuning.threads() - 1), thread_name_prefix=name)


def each(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """function of each part, the first on the calling thread; results in order. `function` must not call `each`."""
    if len(parts) == 1 or tuning.threads() == 1:
        return [function(part) for part in parts]
    return _each(_pool(os.getpid()), function, parts)  # a forked child needs threads of its own


def _each(pool: ThreadPoolExecutor, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    others = [pool.submit(function, part) for part in parts[1:]]
    try:
        first = function(parts[0])
    finally:
        rest = [other.exception() for other in others]  # arrays of the caller are in use until all are done
    for error in rest:
        if error is not None:
            raise error
    return [first, *(other.result() for other in others)]


def ranges(n: int, least: int = tuning.SPLIT_ROWS) -> list[tuple[int, int]]:
    """n rows cut into one range for each thread, but none of fewer than `least` / 2 rows."""
    parts = max(1, min(tuning.threads(), 2 * n // max(least, 1)))
    if parts == 1:
        return [(0, n)]
    edges = [n * k // parts for k in range(parts + 1)]
    return list(itertools.pairwise(edges))


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copies uint8[n] to uint8[n], from `tuning.COPY_BYTES` by several threads. A function that `each` calls may call
    it: its threads are others.
    """
    parts = min(tuning.threads(), 2 * len(source) // tuning.COPY_BYTES)
    if parts <= 1:
        np.copyto(target, source)
        return
    line = 64  # no two threads write to one line of a cache
    edges = [len(source) * k // parts // line * line for k in range(parts)] + [len(source)]

    def share(edge: tuple[int, int]) -> None:
        np.copyto(target[slice(*edge)], source[slice(*edge)])

    _each(_pool(os.getpid(), "gpuwin-copy"), share, list(itertools.pairwise(edges)))

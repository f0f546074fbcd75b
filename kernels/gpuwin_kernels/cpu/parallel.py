"""A few threads for kernels that release the interpreter lock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from gpuwin_kernels import tuning

T = TypeVar("T")
R = TypeVar("R")


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, tuning.threads() - 1), thread_name_prefix="gpuwin")


def each(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """function of each part, the first on the calling thread; results in order. `function` must not call `each`."""
    if len(parts) == 1 or tuning.threads() == 1:
        return [function(part) for part in parts]
    pool = _pool(os.getpid())  # a forked child needs threads of its own
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

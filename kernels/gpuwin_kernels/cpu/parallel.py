"""A few threads for kernels that release the interpreter lock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import itemgetter
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar, cast

import numpy as np

from gpuwin_kernels import tuning

T = TypeVar("T")
R = TypeVar("R")
_Tasks = SimpleQueue[Callable[[], None]]


@cache
def _threads(process: int, name: str = "gpuwin") -> _Tasks:
    """Tasks for all threads but the calling one. Raises RuntimeError where none can be started.

    The threads are daemons: those of `concurrent.futures` take no more tasks once the main thread has ended, though
    others of a program may go on.
    """
    tasks: _Tasks = SimpleQueue()
    for started in range(max(1, tuning.threads() - 1)):
        try:
            Thread(target=_work, args=(tasks,), name=name, daemon=True).start()
        except RuntimeError:
            if not started:
                raise
            break
    return tasks


def _work(tasks: _Tasks) -> None:
    while True:
        tasks.get()()


def each(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """function of each part, the first on the calling thread; results in order. `function` must not call `each`."""
    if len(parts) == 1 or tuning.threads() == 1:
        return [function(part) for part in parts]
    return _each("gpuwin", function, parts)


def _each(name: str, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    try:
        tasks = _threads(os.getpid(), name)  # a forked child needs threads of its own
    except RuntimeError:  # a process that ends starts no threads any more, nor does one that has too many
        return [function(part) for part in parts]
    answers: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()

    def answer(k: int) -> None:
        try:
            answers.put((k, function(parts[k]), None))
        except BaseException as error:
            answers.put((k, None, error))

    for k in range(1, len(parts)):
        tasks.put(partial(answer, k))
    try:
        first = function(parts[0])
    finally:
        rest = [answers.get() for _ in parts[1:]]  # arrays of the caller are in use until all are done
    rest.sort(key=itemgetter(0))
    for _, _, error in rest:
        if error is not None:
            raise error
    return [first, *(cast("R", result) for _, result, _ in rest)]


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

    _each("gpuwin-copy", share, list(itertools.pairwise(edges)))

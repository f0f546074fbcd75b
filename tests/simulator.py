"""Numba's simulator, with the threads of a block run one after the other instead of each as a thread of Python's.

Starting Python threads, and asking each of them in a loop whether it has ended, was most of what simulated kernels
took. A kernel that waits for the other threads of its block (`syncthreads`) still runs as Numba runs it. The order
within a block is a fixed shuffle: a kernel whose result depends on who comes first is found more readily than by the
simulator's own order, which is nearly always that of the threads' numbers.
"""

from __future__ import annotations

import functools
import random
import threading
from types import CodeType, FunctionType
from typing import Any

import numpy as np


def run_threads_in_turn() -> None:
    """From now on, in this process. Nothing changes where CUDA is not simulated."""
    from numba import config

    if not config.ENABLE_CUDASIM:
        return
    from numba.cuda.simulator.kernel import BlockManager
    from numba.cuda.simulator.kernelapi import Dim3

    at_once = BlockManager.run

    @functools.cache
    def waits(function: Any) -> bool:
        return any("sync" in name for f in _called_by(function, set()) for name in _names(f.__code__))

    @functools.cache
    def order(size: tuple[int, int, int]) -> list[tuple[Any, int]]:
        points = [(Dim3(x, y, z), x + size[0] * (y + size[1] * z)) for x, y, z in np.ndindex(size)]
        random.Random(1).shuffle(points)
        return points

    def run(self: Any, grid_point: tuple[int, ...], *arguments: Any) -> None:
        if waits(self._f):
            at_once(self, grid_point, *arguments)
            return
        thread: Any = threading.current_thread()  # the simulator asks it who it is
        thread.blockIdx = Dim3(*grid_point)
        for thread.threadIdx, thread.thread_id in order(tuple(self._block_dim)):
            self._f(*arguments)

    BlockManager.run = run


def _called_by(function: Any, known: set[Any]) -> set[Any]:
    """The function, and the functions of Python and of the device that it may call."""
    function = getattr(function, "fn", function)  # what Numba's simulator has wrapped
    if isinstance(function, FunctionType) and function not in known:
        known.add(function)
        for cell in function.__closure__ or ():
            _called_by(cell.cell_contents, known)
        for name in _names(function.__code__):
            _called_by(function.__globals__.get(name), known)
    return known


def _names(code: CodeType) -> list[str]:
    """The global names and the attributes that the code speaks of."""
    return [*code.co_names, *(name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c))]

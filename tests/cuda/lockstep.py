"""Threads of a device function in step: each does one access to memory that they share, then the next one does.

Numba's simulator, as the tests use it, runs one thread after the other, so no thread ever finds a slot free that
another one has found free as well. On a device hundreds of thousands do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

MOST_ACCESSES = 200_000
"""So many, and the threads are taken to go round for ever."""


class _Turns:
    """Whose turn it is, among threads that go round."""

    def __init__(self, n: int) -> None:
        self._mine = [threading.Semaphore(0) for _ in range(n)]
        self._alive = list(range(n))
        self._who = threading.local()
        self._left = MOST_ACCESSES

    def run(self, call: Callable[[int], None]) -> None:
        failed: list[BaseException] = []

        def one(number: int) -> None:
            self._who.number = number
            self._mine[number].acquire()
            try:
                call(number)
            except BaseException as error:
                failed.append(error)
            following = self._following(number)
            self._alive.remove(number)
            if following != number:
                self._mine[following].release()

        threads = [threading.Thread(target=one, args=(number,)) for number in list(self._alive)]
        for thread in threads:
            thread.start()
        self._mine[0].release()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def _following(self, number: int) -> int:
        return self._alive[(self._alive.index(number) + 1) % len(self._alive)]

    def passed_on(self) -> None:
        """Called by a thread after each access: the others do theirs before it goes on."""
        self._left -= 1
        if self._left < 0:
            raise AssertionError("the threads do not end")
        number = self._who.number
        following = self._following(number)
        if following != number:
            self._mine[following].release()
            self._mine[number].acquire()


class Shared:
    """An array whose every access is a step."""

    def __init__(self, turns: _Turns, array: np.ndarray) -> None:
        self.array, self.shape, self._turns = array, array.shape, turns

    def __getitem__(self, at: int) -> Any:
        found = self.array[at]
        self._turns.passed_on()
        return found

    def changed(self, at: int, to: Callable[[Any], Any]) -> Any:
        """What was there before; one step."""
        found = self.array[at]
        self.array[at] = to(found)
        self._turns.passed_on()
        return found


def run_in_step(function: Any, arguments: Sequence[Sequence[Any]], *shared: np.ndarray) -> list[Any]:
    """What a device function returns to threads with these arguments, in which `shared` arrays are shared memory."""
    turns = _Turns(len(arguments))
    memory = {id(array): Shared(turns, array) for array in shared}
    atomic = SimpleNamespace(
        add=lambda array, at, by: array.changed(at, lambda x: x + by),
        sub=lambda array, at, by: array.changed(at, lambda x: x - by),
        cas=lambda array, at, old, new: array.changed(at, lambda x: new if x == old else x),
    )
    plain = _plain(function, SimpleNamespace(atomic=atomic))
    found: list[Any] = [None] * len(arguments)

    def call(number: int) -> None:
        with np.errstate(over="ignore"):
            found[number] = plain(*(memory.get(id(argument), argument) for argument in arguments[number]))

    turns.run(call)
    return found


def _plain(function: Any, cuda: Any) -> FunctionType:
    """A device function as Python's, and so are those that it calls."""
    python = getattr(function, "fn", None) or getattr(function, "py_func", None) or function._dispatcher.py_func
    names = dict(python.__globals__) | {"cuda": cuda}
    for name in python.__code__.co_names:
        called = names.get(name)
        if hasattr(called, "fn") or hasattr(called, "py_func") or hasattr(called, "_dispatcher"):
            names[name] = _plain(called, cuda)
    return FunctionType(python.__code__, names, python.__name__, python.__defaults__, python.__closure__)

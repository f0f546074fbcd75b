"""What is said of functions that Numba compiles: which of them can raise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from gpuwin_kernels.cpu.raising import may_raise

TABLE = np.array([1.0, 2.0, 3.0])
FLOATS = ("float64", "float64")
INTS = ("int64", "int64")


@numba.njit
def divided(a: float, b: float) -> float:
    return a / b


@numba.njit(error_model="numpy")
def divided_without_an_error(a: float, b: float) -> float:
    return a / b


def raises(a: float, b: float) -> float:
    if a < 0.0:
        raise ValueError("negative")
    return a + b


def by_a_helper(a: float, b: float) -> float:
    return divided(a, b) if a > b else a


def allocates(a: float, b: float) -> float:
    values = np.empty(2)
    values[0] = a
    values[1] = b
    return values.sum()


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (raises, FLOATS),
        (by_a_helper, FLOATS),
        (allocates, FLOATS),
        (lambda a, b: a / b, FLOATS),
        (lambda a, b: a % b, FLOATS),
        (lambda a, b: a // b, INTS),
        (lambda a, b: (a, a % b), INTS),
        (lambda a, b: a**b, INTS),
    ],
)
def test_what_may_raise(function: Callable[..., Any], types: tuple[str, ...]) -> None:
    assert may_raise(numba.njit(function), types)


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda a, b: a + b, INTS),
        (lambda a, b: (max(a, b), a * b), FLOATS),
        (lambda a, b: a / 60e6 + b % 7.0, FLOATS),
        (lambda a, b: a // 7 + b**2, INTS),
        (lambda a, b: a if b == 0.0 else a / b, FLOATS),
        (lambda a, b: 0.5 ** (a - b), FLOATS),
        (lambda a, b: math.log(math.exp(a) + b) + TABLE[1], FLOATS),
        (lambda a, b: divided_without_an_error(a, b), FLOATS),
    ],
)
def test_what_cannot(function: Callable[..., Any], types: tuple[str, ...]) -> None:
    assert not may_raise(numba.njit(function), types)


def test_of_arguments_that_are_taken_together() -> None:
    """As the engine wraps a merge that returns a number, not a tuple."""
    inner = numba.njit(lambda a, b: a + b)
    assert not may_raise(numba.njit(lambda *both: (inner(*both),)), FLOATS)
    assert may_raise(numba.njit(lambda *both: (divided(*both),)), FLOATS)


def test_nothing_is_known_of_what_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.core.config, "DISABLE_JIT", 1)
    assert may_raise(lambda a, b: a - b, FLOATS)

"""Whole numbers in specifications: Python's or NumPy's, never a bool or a span of time."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard

import numpy as np

from gpuwin.errors import SpecificationError


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is such a number."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.timedelta64)


def whole(value: object, what: str, least: int) -> int:
    """The number as an int. Raises SpecificationError, naming it as `what`, for anything else and for less than
    `least`."""
    if not is_whole(value) or value < least:
        raise SpecificationError(f"{what} is a whole number of at least {least}, not {value!r}")
    return int(value)

"""Whole numbers in specifications: Python's or NumPy's, never a bool or a span of time."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from gpuwin.errors import SpecificationError


def whole(value: object, what: str, least: int) -> int:
    """The number as an int. Raises SpecificationError, naming it as `what`, for anything else and for less than
    `least`."""
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, Integral) or value < least:
        raise SpecificationError(f"{what} is a whole number of at least {least}, not {value!r}")
    return int(value)

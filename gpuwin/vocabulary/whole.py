"""Numbers in specifications: Python's or NumPy's, never a bool or a span of time."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import INT64_MAX


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is a whole number of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.timedelta64)


def is_real(value: object) -> TypeGuard[Real]:
    """Whether a value is a number, whole or not."""
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def whole(value: object, what: str, least: int) -> int:
    """The number as an int. Raises SpecificationError, naming it as `what`, for anything else and for less than
    `least`, or what does not fit int64."""
    if not is_whole(value) or not least <= int(value) <= INT64_MAX:
        raise SpecificationError(f"{what} is a whole number of at least {least} that fits int64, not {value!r}")
    return int(value)

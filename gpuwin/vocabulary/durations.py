"""Durations: Spark interval strings, `timedelta`, `numpy.timedelta64`. Never a bare number, never a calendar unit."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import numpy as np

from gpuwin.errors import SpecificationError

Duration = str | timedelta | np.timedelta64

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

_MICROS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_NUMPY: Final = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18} | {
    "m": 60 * 10**18,
    "h": 3_600 * 10**18,
    "D": 86_400 * 10**18,
    "W": 604_800 * 10**18,
}  # attoseconds
_CALENDAR: Final = ("month", "year", "quarter")
_PART: Final = re.compile(r"([+-]?)\s*([0-9]+)(?:\.([0-9]{1,6}))?\s*([a-z]+)")
_EXAMPLE: Final = 'write a string such as "10 minutes" or "1 hour 30 minutes", a timedelta or a numpy.timedelta64'


def _parse(text: str) -> int:
    rest = text.strip().lower()
    if rest.startswith("interval "):
        rest = rest.removeprefix("interval ").lstrip()
    if not rest:
        raise SpecificationError(f"an empty string is not a duration: {_EXAMPLE}")
    total = 0
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise SpecificationError(f"{text!r} is not a duration: {_EXAMPLE}")
        sign, whole, fraction, word = part.groups()
        unit = word if word in _MICROS else word.removesuffix("s")
        if unit in _CALENDAR:
            raise SpecificationError(
                f"{text!r}: a {unit} has no fixed length; write it in days (a month in Spark's watermark is 31 days), "
                "or, of windows, gw.CalendarWindow(size, timezone)"
            )
        if unit not in _MICROS:
            raise SpecificationError(f"{text!r}: unknown unit {word!r}; units are {', '.join(_MICROS)}")
        micros = int(whole) * _MICROS[unit]
        if fraction is not None:
            if unit != "second":
                raise SpecificationError(f"{text!r}: only seconds may have a fraction")
            micros += int(fraction.ljust(6, "0"))
        total += -micros if sign == "-" else micros
        rest = rest[part.end() :].lstrip(" ,")
    return total


def _within(micros: int, written: object) -> timedelta:
    try:
        return timedelta(microseconds=micros)
    except OverflowError as error:
        raise SpecificationError(f"{written!r} is too long for a duration; timedelta.max means for ever") from error


def numpy_micros(value: np.timedelta64 | np.datetime64) -> int | None:
    """Microseconds of what is not NaT, floored and exact, where NumPy's own cast wraps around. None: its unit has no
    fixed length.
    """
    unit, many = np.datetime_data(value)
    if unit not in _NUMPY:
        return None
    return int(value.astype(np.int64)) * many * _NUMPY[unit] // _NUMPY["us"]


def as_timedelta(value: Duration, what: str = "a duration") -> timedelta:
    """Duration as a `timedelta`, floored to microseconds.

    Raises SpecificationError for a bare number, a calendar unit (month, year), NaT, or text that is not a duration.
    """
    if type(value) is timedelta:
        return value
    if isinstance(value, timedelta):  # a pandas Timedelta, say: written, compared and pickled differently
        return timedelta(value.days, value.seconds, value.microseconds)
    if isinstance(value, np.timedelta64):
        length = None if np.isnat(value) else numpy_micros(value)
        if length is None:
            raise SpecificationError(f"{what} cannot be {value!r}: it has no fixed length")
        return _within(length, value)
    if isinstance(value, str):
        return _within(_parse(value), value)
    raise SpecificationError(f"{what} cannot be {value!r}, which has no unit: {_EXAMPLE}")


def micros(value: timedelta) -> int:
    """Duration in microseconds, int64; a longer one (`timedelta.max`) saturates."""
    exact = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return max(INT64_MIN, min(INT64_MAX, exact))


def saturating_add(a: int, b: int) -> int:
    """Sum of a and b within int64."""
    return max(INT64_MIN, min(INT64_MAX, a + b))

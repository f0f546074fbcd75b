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
_CALENDAR: Final = ("month", "year", "quarter")
_PART: Final = re.compile(r"([+-]?)\s*(\d+)(?:\.(\d{1,6}))?\s*([a-z]+)")
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
                f"{text!r}: a {unit} has no fixed length; write it in days (a month in Spark's watermark is 31 days)"
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


def as_timedelta(value: Duration, what: str = "a duration") -> timedelta:
    """The duration as a `timedelta`, floored to microseconds.

    Raises SpecificationError for a bare number, a calendar unit (month, year), NaT, or text that is not a duration.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, np.timedelta64):
        unit, _ = np.datetime_data(value)
        if np.isnat(value) or unit in ("generic", "Y", "M"):
            raise SpecificationError(f"{what} cannot be {value!r}: it has no fixed length")
        micros = int(value.astype("timedelta64[us]").astype(np.int64))
        return timedelta(microseconds=micros)
    if isinstance(value, str):
        try:
            return timedelta(microseconds=_parse(value))
        except OverflowError as error:
            raise SpecificationError(f"{value!r} is too long for a duration; timedelta.max means for ever") from error
    raise SpecificationError(f"{what} cannot be {value!r}, which has no unit: {_EXAMPLE}")


def micros(value: timedelta) -> int:
    """int64 microseconds; what is longer (`timedelta.max`) saturates."""
    exact = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return max(INT64_MIN, min(INT64_MAX, exact))


def saturating_add(a: int, b: int) -> int:
    """a + b within int64."""
    return max(INT64_MIN, min(INT64_MAX, a + b))

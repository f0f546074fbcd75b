"""Points in time, and clocks, as a user writes them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, numpy_micros
from gpuwin.vocabulary.whole import is_whole

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(time: Any) -> int:
    """Microseconds since the epoch of a datetime (UTC where it has no zone), a date, a `numpy.datetime64` or an int.

    Raises SpecificationError for anything else, NaT, and what does not fit int64.
    """
    if is_whole(time):
        return _fitting(int(time), time)
    if isinstance(time, np.datetime64) and not np.isnat(time):
        micros = numpy_micros(time)
        if micros is None:  # of months or years
            days = time.astype("datetime64[D]")
            micros = numpy_micros(days) if days.astype(time.dtype) == time else None
        return _fitting(micros, time)
    if not isinstance(time, date) or time != time:  # NaT of pandas is a date, and equals nothing
        raise SpecificationError(f"a watermark is a datetime or int microseconds, not {time!r}")
    if isinstance(time, datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        passed = aware - _EPOCH
        return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
    return (time.toordinal() - _EPOCH.toordinal()) * 86_400_000_000


def _fitting(micros: int | None, time: object) -> int:
    """Microseconds, unless they are none that int64 has: None is beyond it in any case. The least is no instant."""
    if micros is None or not INT64_MIN < micros <= INT64_MAX:
        raise SpecificationError(f"a watermark must fit int64 microseconds, and is {time}")
    return micros


def check_clock(clock: object) -> None:
    """Raises SpecificationError for a clock that cannot be called. None: that of the system."""
    if clock is not None and not callable(clock):
        raise SpecificationError(f"clock is a function that returns int microseconds, not {clock!r}")

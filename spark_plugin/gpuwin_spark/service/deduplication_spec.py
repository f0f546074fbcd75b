"""Specification of a deduplication, as Spark sends it, and the rows that come for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN

from .plain import validity_of, values_of
from .protocol import ProtocolError

#: A key and a row as the bytes that they have in Spark, and the event time of the row in microseconds.
ROWS: Final = pa.schema([("key", pa.binary()), ("time", pa.int64()), ("row", pa.binary())])
#: An entry of the log: a key, and the time until which it is remembered.
KEYS: Final = pa.schema([("key", pa.binary()), ("until", pa.int64())])
#: What comes out.
FIRSTS: Final = pa.schema([("row", pa.binary())])


@dataclass(frozen=True)
class DeduplicationSpec:
    """One `dropDuplicates`, or `dropDuplicatesWithinWatermark`.

    delay: of the latter, for how long after its event time a key is remembered, microseconds. Of the former None, and
    `evicts` says whether the event time is a part of the key, which is then remembered until the watermark passes it.
    """

    delay: int | None
    evicts: bool

    @property
    def window_steps(self) -> dict[int, int]:
        """By column, the distance in which its values come: none."""
        return {}

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> DeduplicationSpec:
        """Reads and checks the specification in a request. Raises ProtocolError where it is none."""
        delay, evicts = fields.get("delay"), fields.get("evicts")
        within = isinstance(delay, int) and not isinstance(delay, bool) and 0 <= delay <= INT64_MAX
        if not isinstance(evicts, bool) or not (delay is None or (within and evicts)):
            raise ProtocolError("the specification of a deduplication is malformed")
        return cls(delay, evicts)

    def until(self, time: pa.Array) -> np.ndarray:
        """Times until which the keys of rows with these event times are remembered: int64[n], never the least. A null
        is the time 0 to `dropDuplicatesWithinWatermark`, as in Spark, and else no time: nothing evicts it.
        """
        if not self.evicts:
            return np.full(len(time), INT64_MAX)
        known = validity_of(time) != 0
        if self.delay is None:
            return np.where(known, np.maximum(values_of(time), INT64_MIN + 1), INT64_MAX)
        return np.minimum(np.where(known, values_of(time), 0), INT64_MAX - self.delay) + self.delay

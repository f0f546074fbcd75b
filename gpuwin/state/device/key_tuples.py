"""Keys of one column or several on the device: the codes of the columns, combined two at a time by dictionaries of
pairs, as on the host. All are looked up without a wait, on the expectation that no column has a new value. A pair with
a code that is not known yet is passed over, and looked up again once it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from gpuwin.state.device.key_columns import Found, MirroredKeys, any_new, device_column, finished
from gpuwin.state.keys.columns import take_tuples
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.key_table import LookedUp
from gpuwin_kernels.cuda.key_tuples import paired
from gpuwin_kernels.cuda.keys import IntRows
from gpuwin_kernels.cuda.runtime import to_host


@dataclass(frozen=True, slots=True)
class _Steps:
    columns: list[Found]
    pairs: list[LookedUp[IntRows]]


class DeviceTuples:
    """Dense codes of tuples of values, in the order of their first rows."""

    def __init__(self, types: Sequence[pa.DataType], room: int = 0) -> None:
        """`room`: so many tuples are expected. Raises ValueError for types that the device does not encode."""
        one = len(types) == 1
        self._columns = [device_column(type_, room if one else 0) for type_ in types]
        self._pairs = [MirroredKeys(room) for _ in types[1:]]

    def looked_up(self, arrays: Sequence[pa.Array], gone: DeviceArray | None) -> Found:
        """Rows whose tuples are looked up, without a wait. `gone`: uint8[n], rows that are passed over, or None."""
        columns = [column.looked_up(array, gone) for column, array in zip(self._columns, arrays, strict=True)]
        codes, steps = columns[0].codes, _Steps(columns, [])
        for found, pairs in zip(columns[1:], self._pairs, strict=True):
            steps.pairs.append(_looked_up(pairs, codes, found.codes))
            codes = steps.pairs[-1].codes
        counters = (*chain.from_iterable(found.counters for found in columns), *(p.counters for p in steps.pairs))
        return Found(codes, counters, steps)

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray:
        """Codes, int32[n] on the device. After new values, pairs are looked up again, for a wait each."""
        steps: _Steps = found.steps
        rest, first = iter(counters), len(counters) - len(steps.pairs)
        codes, again = steps.columns[0].codes, any_new(counters[:first])
        for number, (column, known) in enumerate(zip(self._columns, steps.columns, strict=True)):
            other = column.finished(known, [next(rest) for _ in known.counters])
            if not number:
                codes = other
                continue
            pairs, pair, counted = self._pairs[number - 1], steps.pairs[number - 1], counters[first + number - 1]
            if again:
                pair = _looked_up(pairs, codes, other)
                counted = to_host(pair.counters)
            codes = finished(pairs.keys, pair, counted)
            again = again or any_new([counted])
        return codes

    def take(self, codes: np.ndarray) -> list[pa.Array]:
        """Columns of these codes. Waits for keys that never came back."""
        return take_tuples(self._columns, [pairs.values for pairs in self._pairs], codes)

    def __len__(self) -> int:
        return len(self._pairs[-1].keys if self._pairs else self._columns[0])

    @property
    def growths(self) -> int:
        """Number of times that rows found a table full."""
        return sum(c.growths for c in self._columns) + sum(p.keys.growths for p in self._pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return sum(c.nbytes for c in self._columns) + sum(p.nbytes for p in self._pairs)


def _looked_up(pairs: MirroredKeys, high: DeviceArray, low: DeviceArray) -> LookedUp[IntRows]:
    values, unknown = paired(high, low)
    return pairs.keys.looked_up(values, gone=unknown)


__all__ = ["DeviceTuples"]

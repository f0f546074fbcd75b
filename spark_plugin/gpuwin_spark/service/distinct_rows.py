"""The share of rows that would be cells of their own, from a sample of the cells.

Where almost every row would be one, as where keys are as many as rows, to look for equal ones below the shuffle costs
more than it saves above it. Engines that aggregate in two steps ask the same, and skip the first
(Larson, "Data reduction by partial preaggregation", ICDE 2002).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import fixed_values

#: Fewer rows are aggregated in any case.
_LEAST: Final = 1 << 15
#: One in so many cells is looked at, with all of its rows: whatever their order, the share is that of all.
_SAMPLE: Final = np.uint64(64)
#: Cells to rows from which rows are handed on as they are.
_SHARE: Final = 0.8
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def are_mostly_apart(keys: Sequence[pa.Array], pane: np.ndarray) -> bool:
    """Whether at least four in five rows have a (key, pane) that no other has, as far as a sample says.

    Args:
        keys: columns of n rows. Other keys than integers, dates and times are not looked at, nor any with nulls.
        pane: int64[n].
    """
    if len(pane) < _LEAST or not all(is_looked_at(array.type) and not array.null_count for array in keys):
        return False
    columns = [fixed_values(array, np.dtype(f"i{array.type.bit_width // 8}")) for array in keys]
    if math.prod(int(column.max()) - int(column.min()) + 1 for column in (pane, *columns)) < 2 * len(pane):
        return False  # there are no more cells than that
    mixed = pane.view(np.uint64) * _ODD
    for column in columns:
        mixed ^= mixed >> np.uint64(32)
        mixed += column.astype(np.int64).view(np.uint64)
        mixed *= _ODD
    mixed ^= mixed >> np.uint64(29)
    mixed *= _ODD
    seen = mixed[mixed < np.uint64((1 << 64) - 1) // _SAMPLE]
    return len(np.unique(seen)) >= _SHARE * len(seen)


def is_looked_at(kind: pa.DataType) -> bool:
    """Whether keys of a type are: integers, dates and times."""
    of = pa.types
    return bool(of.is_integer(kind) or of.is_date32(kind) or of.is_timestamp(kind))

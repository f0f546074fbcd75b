"""Rows of windows, which the results of holistic aggregates are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

Order = Literal["arrival", "time"]


@dataclass(frozen=True)
class RowSlices:
    """Rows of some windows: window w holds rows [lo[w], hi[w]) of the other arrays. Windows may overlap where all rows
    lie by code and time.

    `by`: the order of the rows of a window, which is that of arrival, or of time and then arrival.
    """

    code: np.ndarray  # int32[rows]
    time: np.ndarray  # int64[rows]
    seq: np.ndarray  # int64[rows]
    values: tuple[pa.Array, ...]
    lo: np.ndarray  # int64[windows]
    hi: np.ndarray  # int64[windows]
    by: Order = "time"

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.values[0])

"""Rows of a cell that stay, where the aggregates that read them look at some of them only.

The rows of a cell share all windows. So a row that no window could show because of the other rows of its cell is not
kept: where different values are asked for, one whose values came before; where the largest are, one that is below as
many as are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.rows.slices import Order
from gpuwin.state.rows.sortable import equality_keys, order_keys, valid_mask
from gpuwin_kernels.cpu.order import order_by_code


class KeptRows(Protocol):
    """Rule for the rows of a cell that stay."""

    def places(self, cell: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array]) -> np.ndarray:
        """Places of the rows that stay, int64, ascending. `cell`: int32[n], ascending; `seq`: arrivals, int64[n];
        `values`: n of each column.
        """


@dataclass(frozen=True)
class FirstOfEquals:
    """The first by time or by arrival of rows with equal values. Rows of a cell come by time, then arrival."""

    by: Order

    def places(self, cell: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array]) -> np.ndarray:
        if len(values) == 1 and not values[0].null_count:
            key = equality_keys(values[0])
        else:
            key = KeyDictionary([v.type for v in values]).encode(list(values), len(seq)).astype(np.int64)
        order = order_by_code(cell, key)  # stable
        cell, key, seq = cell[order], key[order], seq[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (cell[1:] != cell[:-1]) | (key[1:] != key[:-1])
        if self.by == "arrival" and bool(((seq[1:] < seq[:-1]) & ~begins[1:]).any()):
            group = (np.cumsum(begins) - 1).astype(np.int32)
            order = order[order_by_code(group, seq)]
        return np.sort(order[begins])


@dataclass(frozen=True)
class Largest:
    """The k rows with the largest values of the one column, of equal values the newest."""

    k: int

    def places(self, cell: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array]) -> np.ndarray:
        (column,) = values
        at = np.flatnonzero(valid_mask(column))
        if not len(at):
            return at
        cell = cell[at]
        order = order_by_code(cell, order_keys(column)[at])  # stable: the newest is last
        cell = cell[order]
        ends = np.append(np.flatnonzero(cell[1:] != cell[:-1]) + 1, len(at))
        behind = np.repeat(ends, np.diff(ends, prepend=0)) - 1 - np.arange(len(at))
        return np.sort(at[order[behind < self.k]])

"""Heap of bytes for minima, maxima, firsts and lasts over strings and binary: cells hold codes into it.

A text that no cell holds any more is dead, and stays until it pays to look which ones are: `gpuwin.state.dead_texts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import bytes_array, bytes_of
from gpuwin.state.keys.tables import BytesTable
from gpuwin_kernels.layout import CellArrays, CellLayout

ENTRY_BYTES = 64
"""Bytes that a text takes beside its own, about."""
ANYWAY = 1 << 20
"""Bytes of texts in use for which nobody looks."""


class BytesHeap:
    """Heap of bytes, append-only; a value is stored once, however many cells hold it. Codes are compared through
    `offsets` and `data`, as unsigned bytes.
    """

    least = 0
    """Bytes in use when it was last looked which texts are dead: they are looked for again at twice as many."""

    def __init__(self) -> None:
        self._table = BytesTable()

    def put(self, array: pa.Array) -> np.ndarray:
        """Codes of a string or binary array (large, view or dictionary-encoded too), int64[n]; the code of a null means
        nothing.
        """
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        codes = self._table.encode(*bytes_of(array))
        return codes.astype(np.int64)

    def entered(self, data: np.ndarray, offsets: np.ndarray) -> BytesHeap:
        """This heap, with the strings data[offsets[i]:offsets[i + 1]], all different and new, under the next codes."""
        self._table.encode(data, offsets)
        return self

    def take(self, codes: np.ndarray, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
        """The values of `codes` (int64[n]) as an array of `type_`, null where `valid` (uint8[n]) is 0."""
        if valid is not None:
            codes = np.where(valid != 0, codes, 0)
        if len(self) == 0:
            return pa.nulls(len(codes), type_)
        return bytes_array(*self._table.take(codes, short=True), valid, type_)

    def with_texts_of(self, layout: CellLayout, columns: Sequence[CellArrays]) -> BytesHeap:
        """Heap from which to take the texts of these cells of the host: this one."""
        return self

    def kept(self, used: np.ndarray) -> tuple[BytesHeap, np.ndarray]:
        """A heap of the entries `used` (distinct codes) only, and the map from old codes to new ones (int64)."""
        heap = BytesHeap()
        renumbered = np.zeros(max(len(self), 1), np.int64)
        if len(used):
            renumbered[used] = heap._table.encode(*self._table.take(used))
        heap.least = heap.used
        return heap, renumbered

    def length_of(self, codes: np.ndarray) -> int:
        """Bytes that these entries (distinct codes) take, about."""
        return int((self.offsets[codes + 1] - self.offsets[codes]).sum()) + ENTRY_BYTES * len(codes)

    @property
    def used(self) -> int:
        """Bytes that all entries take, about."""
        return int(self._table.offsets[len(self)]) + ENTRY_BYTES * len(self)

    @property
    def is_due(self) -> bool:
        """Whether it pays to look which texts are dead."""
        return self.used > 2 * self.least + ANYWAY

    @property
    def data(self) -> np.ndarray:
        """Bytes of all entries, one after the other, uint8."""
        return self._table.data

    @property
    def offsets(self) -> np.ndarray:
        """Begins of entries, int64: entry c is data[offsets[c]:offsets[c + 1]]."""
        return self._table.offsets

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def __len__(self) -> int:
        return self._table.count

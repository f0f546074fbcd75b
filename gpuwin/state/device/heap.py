"""Heap of bytes on the device: texts go there as they are, and only those of results come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.state.appended import Appended
from gpuwin.state.buffers import bytes_array, bytes_of, copied, fixed_values
from gpuwin.state.cells import Columns
from gpuwin.state.device.key_columns import finished
from gpuwin.state.heap import ENTRY_BYTES, BytesHeap
from gpuwin.state.keys.dictionary import FEWER
from gpuwin.state.keys.tables import strings_at
from gpuwin_kernels.cuda import byte_heap as kernel
from gpuwin_kernels.cuda import key_values, primitives
from gpuwin_kernels.cuda.byte_keys import ByteRows, DeviceByteKeys, HeapArrays
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.key_tuples import by_index
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.rows import list_used
from gpuwin_kernels.cuda.runtime import (
    OutOfDeviceMemory,
    empty,
    kept,
    launch,
    to_device,
    to_host,
    to_words,
    zeros,
)
from gpuwin_kernels.layout import CellArrays, CellLayout

_DICTIONARIES = 4  # Arrow dictionaries whose codes are kept
_STEP = 1 << 12
"""Bytes: rooms for texts are multiples of it, so that blocks of the pool fit again."""


class DeviceHeap(BytesHeap):
    """`BytesHeap` on the device: append-only, with dense codes. It moves between host and device with its codes."""

    def __init__(self, room: int = 0) -> None:
        """`room`: so many texts are expected. Raises OutOfDeviceMemory."""
        self._texts = DeviceByteKeys(room)
        # Kept alive, so that they can be known by their addresses.
        self._dictionaries: list[tuple[pa.Array, DeviceArray]] = []
        self._expected: int | None = None  # bytes of the texts that are taken at a time: no result depends on it
        self._data, self._offsets = (
            Appended(np.empty(0, np.uint8)),
            Appended(np.zeros(1, np.int64)),
        )  # texts that came back

    @staticmethod
    def of(heap: BytesHeap) -> DeviceHeap:
        """This heap on the device, with the same codes. Raises OutOfDeviceMemory."""
        if isinstance(heap, DeviceHeap):
            return heap
        n = len(heap)
        there = DeviceHeap(n)
        if n:
            offsets = heap.offsets[: n + 1]
            there._enter(ByteRows(to_words(heap.data[: offsets[n]]), to_device(offsets), 0, empty(0, np.uint8)))
        return there

    def on_host(self) -> BytesHeap:
        """This heap in host memory, with the same codes."""
        return BytesHeap().entered(self.data, self.offsets)

    # -- codes of rows -----------------------------------------------------------------------------------------------

    def put(self, array: pa.Array) -> np.ndarray:
        return to_host(self.codes_of(array))

    def codes_of(self, array: pa.Array) -> DeviceArray:
        """Codes as of `put`, which stay on the device. Waits once, and more often for texts that are new; not for a
        dictionary that came before.
        """
        if pa.types.is_dictionary(array.type):
            if not array.null_count and len(array.dictionary) <= FEWER * len(array):
                dtype = np.dtype(array.indices.type.to_pandas_dtype())
                index = to_device(fixed_values(array.indices, dtype).astype(np.int64, copy=False))
                code_of = self._codes_of_dictionary(array.dictionary)
                return key_values.whole(by_index(index, empty(0, np.uint8), 0, empty(0, np.uint8), code_of))
            array = array.dictionary_decode()
        return key_values.whole(self._codes_of(array))

    def _codes_of_dictionary(self, dictionary: pa.Array) -> DeviceArray:
        """Codes of the values of a dictionary, int32, on the device; those of a dictionary that comes again are
        known.
        """
        for known, codes in self._dictionaries:
            if known.equals(dictionary):
                return codes
        with kept():
            codes = self._codes_of(dictionary)
        self._dictionaries = [*self._dictionaries[1 - _DICTIONARIES :], (copied(dictionary), codes)]
        return codes

    def _codes_of(self, array: pa.Array) -> DeviceArray:
        """Codes, int32[n], on the device."""
        if not len(array):
            return empty(0, np.int32)
        data, offsets = bytes_of(array)
        base = int(offsets[0])
        words = to_words(data[base : int(offsets[-1])])
        return self._enter(ByteRows(words, to_device(offsets), base, empty(0, np.uint8)))

    def _enter(self, rows: ByteRows) -> DeviceArray:
        found = self._texts.looked_up_rows(rows)
        return finished(self._texts, found, to_host(found.counters))

    # -- what it holds -----------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> HeapArrays:
        """Arrays for kernels: they hold the texts of all codes that there are, however many come later."""
        return self._texts.heap

    def take(self, codes: np.ndarray, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
        return self._fetched([(codes, valid)]).take(codes, valid, type_)

    def with_texts_of(self, layout: CellLayout, columns: Sequence[CellArrays]) -> BytesHeap:
        """Heap that has the texts of these cells on the host. Waits once, if they are about as long as those of the
        last time or shorter; else twice.
        """
        some = [c for column, c in zip(layout.columns, columns, strict=True) if column.dtype == "bytes"]
        return self._fetched([(c.values[-1], c.valid) for c in some]) if some else self

    def _fetched(self, cells: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> Fetched:
        """Texts of these codes (int64[n]), where they are valid (uint8[n], None: all)."""
        try:
            return self._gathered(cells)
        except OutOfDeviceMemory:  # the host picks them from all texts
            none = len(self) == 0
            some = [(c, np.zeros_like(c) if none else c if v is None else np.where(v != 0, c, 0)) for c, v in cells]
            offsets = np.zeros(2, np.int64) if none else self.offsets
            return Fetched(self, [(c, *strings_at(self.data, offsets, codes)) for c, codes in some])

    def _gathered(self, cells: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> Fetched:
        wanted = to_device(np.concatenate([c if v is None else np.where(v != 0, c, -1) for c, v in cells]))
        words, begin = kernel.taken(self.arrays, wanted, self._expected)
        data, offsets = read(words.view(np.uint8), begin)
        size = int(offsets[-1])
        if size > len(data):
            words, _ = kernel.taken(self.arrays, wanted, size)
            data = to_host(words.view(np.uint8))
        self._expected = (size + size // 8 + _STEP) // _STEP * _STEP
        ends = np.cumsum([len(c) for c, _ in cells]).tolist()
        return Fetched(self, [(c, data, offsets[e - len(c) : e + 1]) for (c, _), e in zip(cells, ends, strict=True)])

    def kept(self, used: np.ndarray) -> tuple[BytesHeap, np.ndarray]:
        new_code = np.zeros(max(len(self), 1), np.int64)
        new_code[used] = np.arange(len(used))
        return self._of(to_device(np.asarray(used, np.int64))), new_code

    def _of(self, codes: DeviceArray) -> DeviceHeap:
        """Heap of the texts of these codes (int32[m] or int64[m] on the device, all different), in this order."""
        heap = DeviceHeap(len(codes))
        if len(codes):
            words, offsets = kernel.taken(self.arrays, codes)
            heap._enter(ByteRows(words, offsets, 0, empty(0, np.uint8)))
        heap.least = heap.used
        return heap

    @property
    def used(self) -> int:
        return self._texts.string_bytes + ENTRY_BYTES * len(self)

    def _mirror(self) -> None:
        known = len(self._offsets) - 1
        if known < len(self):
            data, ends = self._texts.host_keys(known, len(self._data))
            self._data.append(data)
            self._offsets.append(ends)

    @property
    def data(self) -> np.ndarray:
        """Bytes in host memory, for merges that the host does itself; each text comes back once. Waits if there are new
        ones.
        """
        self._mirror()
        return self._data.values

    @property
    def offsets(self) -> np.ndarray:
        """Offsets in host memory, as `data`."""
        self._mirror()
        return self._offsets.values

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return self._texts.nbytes + self._data.nbytes + self._offsets.nbytes

    def __len__(self) -> int:
        return len(self._texts)


class Fetched(BytesHeap):
    """Texts of some cells that have come to the host: for each array of codes the bytes, the begin of each text, and
    the end of the last.
    """

    def __init__(self, heap: DeviceHeap, parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
        self._heap = heap
        self._parts = parts

    def take(self, codes: np.ndarray, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
        for known, data, offsets in self._parts:
            if known is codes:
                return bytes_array(data[offsets[0] : offsets[-1]], offsets - offsets[0], valid, type_)
        return self._heap.take(codes, valid, type_)


class CodesThere(BytesHeap):
    """Heap on the device for the rows of a batch, whose codes stay there; a column that is read twice is put once."""

    def __init__(self, heap: DeviceHeap) -> None:
        self._heap = heap
        self._known: list[tuple[pa.Array, np.ndarray]] = []

    def put(self, array: pa.Array) -> np.ndarray:
        for known, codes in self._known:
            if known is array:
                return codes
        there: Any = self._heap.codes_of(array)
        found: np.ndarray = there  # of the device, as the arrays of `CellArrays` are
        self._known.append((array, found))
        return found


def heap_of(layout: CellLayout, heap: BytesHeap) -> BytesHeap:
    """Heap for cells on the device: there too, if they hold texts. Raises OutOfDeviceMemory."""
    return DeviceHeap.of(heap) if layout.uses_heap else heap


def heap_of_host(heap: BytesHeap) -> BytesHeap:
    """This heap in host memory."""
    return heap.on_host() if isinstance(heap, DeviceHeap) else heap


def putting(heap: BytesHeap) -> BytesHeap:
    """Heap that the rows of a batch put their texts in: the codes stay on the device, if the heap is there."""
    return CodesThere(heap) if isinstance(heap, DeviceHeap) else heap


def arrays_of_heap(heap: BytesHeap | None) -> HeapArrays | None:
    """Arrays of a heap for kernels that merge texts."""
    return heap.arrays if isinstance(heap, DeviceHeap) else None


def smaller_there(
    layout: CellLayout, heap: BytesHeap | None, runs: list[Columns]
) -> tuple[DeviceHeap, list[Columns]] | None:
    """Heap of the texts that cells hold, and the cells with their codes in it. None unless the dead texts are looked
    for, and are more than half of the texts; and where the device has no room to look.
    """
    if not isinstance(heap, DeviceHeap) or not heap.is_due:
        return None
    try:
        return _without_dead(layout, heap, runs)
    except OutOfDeviceMemory:
        return None


def _without_dead(layout: CellLayout, heap: DeviceHeap, runs: list[Columns]) -> tuple[DeviceHeap, list[Columns]] | None:
    at = [i for i, column in enumerate(layout.columns) if column.dtype == "bytes"]
    used = zeros(len(heap), np.int64)
    for columns in runs:
        for i in at:
            kernel.mark(columns[i].values[-1], columns[i].valid, used)
    before = primitives.exclusive_sum(used)
    alive = int(to_host(before[len(heap) :])[0])
    if 2 * alive > len(heap):
        heap.least = heap.used
        return None
    some = empty(alive, np.int32)
    launch(list_used, len(heap), before, some)
    return heap._of(some), [
        tuple(_renumbered(c, before) if i in at else c for i, c in enumerate(columns)) for columns in runs
    ]


def _renumbered(cells: CellArrays, before: DeviceArray) -> CellArrays:
    *others, codes = cells.values
    renumbered: Any = kernel.renumbered(codes, before)  # `CellArrays` says np.ndarray, on the device, too
    return CellArrays((*others, renumbered), cells.valid)


__all__ = ["DeviceHeap", "arrays_of_heap", "heap_of", "heap_of_host", "putting", "smaller_there"]

"""Key columns on the device: values go there as they are, their codes stay there, and distinct values come back to the
host once, when results are made of them. How a value is stored is the host's rule (`key_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.state.appended import Appended
from gpuwin.state.buffers import bitmap_of, bytes_of, copied, fixed_values
from gpuwin.state.keys.columns import narrow_array, plain_array, strings_array
from gpuwin.state.keys.dictionary import FEWER
from gpuwin.state.keys.tables import strings_at
from gpuwin_kernels.cuda import key_values
from gpuwin_kernels.cuda.byte_keys import ByteRows, DeviceByteKeys
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.key_table import NEW, REFUSED, KeyTable, LookedUp, Rows
from gpuwin_kernels.cuda.key_tuples import by_index
from gpuwin_kernels.cuda.keys import DeviceKeys
from gpuwin_kernels.cuda.runtime import empty, kept, to_device, to_words


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a column that were looked up: `codes` int32[n] on the device, -1 for new keys and rows that are gone;
    `counters`: numbers that the host has to read for `finished`; `steps`: the values that it goes on with.
    """

    codes: DeviceArray
    counters: tuple[DeviceArray, ...]
    steps: Any  # of a type of its own for each kind of column


class DeviceKeyColumn(Protocol):
    """Key column, as `key_columns.KeyColumn`, in two halves: the first does not wait for the device."""

    def looked_up(self, array: pa.Array, gone: DeviceArray | None) -> Found: ...

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray: ...

    def take(self, codes: np.ndarray) -> pa.Array: ...

    def __len__(self) -> int: ...

    @property
    def growths(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def finished(table: KeyTable[Rows], found: LookedUp[Rows], counters: np.ndarray) -> DeviceArray:
    """Codes, int32[n] on the device; see `KeyTable.finished`. Raises gpuwin.LimitExceeded at 2**30 keys."""
    try:
        return table.finished(found, counters)
    except ValueError as error:
        raise LimitExceeded(f"{error}: partition the stream by key, or evict sooner") from error


def any_new(counters: Sequence[np.ndarray]) -> bool:
    """Whether rows that were looked up had keys without a code, which `finished` gives them."""
    return any(bool(c[REFUSED]) or bool(c[NEW]) for c in counters)


def validity_of(array: pa.Array) -> tuple[DeviceArray, int]:
    """(Arrow bitmap in device memory, of the bytes that are used, and the offset in bits); empty if nothing is null."""
    bitmap, offset = bitmap_of(array)
    if not len(bitmap):
        return empty(0, np.uint8), 0
    return to_device(bitmap[offset >> 3 : (offset + len(array) + 7) >> 3]), offset & 7


# -- up to 8 bytes -----------------------------------------------------------------------------------------------------


def dtype_of(type_: pa.DataType) -> np.dtype | None:
    """Type in memory of values of at most 8 bytes: numbers, times, dates, durations, bool and narrow decimals. None for
    other types.
    """
    if pa.types.is_nested(type_) or pa.types.is_fixed_size_binary(type_) or isinstance(type_, pa.BaseExtensionType):
        return None
    if pa.types.is_boolean(type_):
        return np.dtype(bool)
    try:
        width = type_.bit_width // 8
    except ValueError:
        return None
    if width not in (1, 2, 4, 8):
        return None
    if pa.types.is_floating(type_):
        return np.dtype(f"f{width}")
    return np.dtype(f"u{width}" if pa.types.is_unsigned_integer(type_) and width < 8 else f"i{width}")


class MirroredKeys:
    """Dictionary of int64 keys on the device. Each comes back to the host once, when it is asked for."""

    def __init__(self, room: int = 0) -> None:
        self.keys = DeviceKeys(room)
        self._mirror = Appended(np.empty(0, np.int64))

    @property
    def values(self) -> np.ndarray:
        """Keys by code, int64. Waits for the device if there are keys that never came back."""
        known = len(self._mirror)
        if known < len(self.keys):
            self._mirror.append(self.keys.host_keys(known))
        return self._mirror.values

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return self.keys.nbytes + self._mirror.nbytes


class IntColumn:
    """Key column of values of at most 8 bytes, as int64."""

    def __init__(self, type_: pa.DataType, room: int = 0) -> None:
        dtype = dtype_of(type_)
        if dtype is None:
            raise ValueError(f"keys of {type_} are no integers on the device")
        self._type = type_
        self._dtype = dtype
        self._mirrored = MirroredKeys(room)
        self._keys = self._mirrored.keys

    def looked_up(self, array: pa.Array, gone: DeviceArray | None) -> Found:
        array = plain_array(array)
        found = self._keys.looked_up(self._moved(array), *validity_of(array), gone)
        return Found(found.codes, (found.counters,), found)

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray:
        return finished(self._keys, found.steps, counters[0])

    def _moved(self, array: pa.Array) -> DeviceArray:
        """Values, int64[n] in device memory."""
        if self._dtype.kind == "b":
            packed = array.buffers()[1]
            if packed is None:  # all are null
                return key_values.whole(to_device(np.zeros(len(array), np.int8)))
            first, end = array.offset >> 3, (array.offset + len(array) + 7) >> 3
            bits = to_device(np.frombuffer(packed, np.uint8)[first:end])
            return key_values.bits(bits, array.offset & 7, len(array))
        values = fixed_values(array, self._dtype)
        if self._dtype == np.float16:
            values = values.astype(np.float32)
        return key_values.whole(to_device(values))

    def take(self, codes: np.ndarray) -> pa.Array:
        valid = None if self._keys.null_code < 0 else codes != self._keys.null_code
        return narrow_array(self._mirrored.values[codes], valid, self._dtype, self._type)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def growths(self) -> int:
        return self._keys.growths

    @property
    def nbytes(self) -> int:
        return self._mirrored.nbytes


# -- strings and wide values -------------------------------------------------------------------------------------------


def width_of(type_: pa.DataType) -> int | None:
    """Bytes of a value that the device encodes as a byte string, 0 if that varies: text, binary, decimals and others of
    fixed width that are no integers. None for other types.
    """
    if pa.types.is_nested(type_) or pa.types.is_null(type_) or isinstance(type_, pa.BaseExtensionType):
        return None
    if dtype_of(type_) is not None:
        return None
    try:
        return type_.bit_width // 8 or None
    except ValueError:
        return 0


class ByteColumn:
    """Key column of strings, binary, and fixed widths above 8 bytes."""

    def __init__(self, type_: pa.DataType, room: int = 0) -> None:
        width = width_of(type_)
        if width is None:
            raise ValueError(f"keys of {type_} are no strings on the device")
        self._type = type_
        self._width = width
        self._keys = DeviceByteKeys(room)
        self._data, self._offsets = Appended(np.empty(0, np.uint8)), Appended(np.zeros(1, np.int64))  # by code

    def looked_up(self, array: pa.Array, gone: DeviceArray | None) -> Found:
        array = plain_array(array)
        found = self._keys.looked_up_rows(self._moved(array), gone)
        return Found(found.codes, (found.counters,), found)

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray:
        return finished(self._keys, found.steps, counters[0])

    def _moved(self, array: pa.Array) -> ByteRows:
        """Values in device memory: only the bytes that the rows use."""
        if self._width:
            data = fixed_values(array, np.dtype((np.void, self._width))).view(np.uint8)
            return ByteRows(to_words(data), key_values.steps(self._width, len(array)), 0, *validity_of(array))
        data, offsets = bytes_of(array)
        base = int(offsets[0])
        return ByteRows(to_words(data[base : int(offsets[-1])]), to_device(offsets), base, *validity_of(array))

    def take(self, codes: np.ndarray) -> pa.Array:
        known = len(self._offsets) - 1
        if known < len(self._keys):
            data, ends = self._keys.host_keys(known, len(self._data))
            self._data.append(data)
            self._offsets.append(ends)
        valid = None if self._keys.null_code < 0 else codes != self._keys.null_code
        return strings_array(*strings_at(self._data.values, self._offsets.values, codes), valid, self._type)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def growths(self) -> int:
        return self._keys.growths

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._data.nbytes + self._offsets.nbytes


# -- dictionaries of Arrow ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ByIndex:
    """Rows that are given by index into a dictionary, whose values were looked up as `values`."""

    values: Found
    dictionary: pa.Array
    index: tuple[DeviceArray, DeviceArray, int]
    gone: DeviceArray

    def codes(self, code_of: DeviceArray) -> DeviceArray:
        return by_index(*self.index, self.gone, code_of)


class RecodedColumn:
    """Key column that also takes dictionary arrays: their values are looked up once, used or not, and rows by index."""

    def __init__(self, column: DeviceKeyColumn) -> None:
        self._column = column
        self._known: tuple[pa.Array, DeviceArray] | None = None  # a copy of the last one, and the codes of its values
        self._null = False  # whether that of null is behind them

    def looked_up(self, array: pa.Array, gone: DeviceArray | None) -> Found:
        if not pa.types.is_dictionary(array.type) or len(array.dictionary) > FEWER * len(array):
            found = self._column.looked_up(array, gone)
            return Found(found.codes, found.counters, found)
        dictionary, index = array.dictionary, self._index(array.indices)
        gone = empty(0, np.uint8) if gone is None else gone
        has_null = array.indices.null_count > 0
        if self._known is not None and self._known[0].equals(dictionary) and (self._null or not has_null):
            return Found(by_index(*index, gone, self._known[1]), (), None)
        values = plain_array(dictionary)
        if has_null:
            values = pa.concat_arrays([values, pa.nulls(1, values.type)])
        with kept():  # its codes stay
            known = self._column.looked_up(values, None)
        rows = _ByIndex(known, dictionary, index, gone)
        return Found(rows.codes(known.codes), known.counters, rows)

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray:
        rows = found.steps
        if rows is None:
            return found.codes
        if isinstance(rows, Found):
            return self._column.finished(rows, counters)
        code_of = self._column.finished(rows.values, counters)
        self._known = copied(rows.dictionary), code_of
        self._null = len(code_of) > len(rows.dictionary)
        return rows.codes(code_of) if any_new(counters) else found.codes

    @staticmethod
    def _index(indices: pa.Array) -> tuple[DeviceArray, DeviceArray, int]:
        dtype = np.dtype(indices.type.to_pandas_dtype())
        raw = fixed_values(indices, dtype)
        return key_values.whole(to_device(raw.view(np.int64) if dtype == np.uint64 else raw)), *validity_of(indices)

    def take(self, codes: np.ndarray) -> pa.Array:
        return self._column.take(codes)

    def __len__(self) -> int:
        return len(self._column)

    @property
    def growths(self) -> int:
        return self._column.growths

    @property
    def nbytes(self) -> int:
        return self._column.nbytes


def device_column(type_: pa.DataType, room: int) -> DeviceKeyColumn:
    """Key column for a type. Raises ValueError for types that the device does not encode."""
    return RecodedColumn(ByteColumn(type_, room) if dtype_of(type_) is None else IntColumn(type_, room))


def encodes(type_: pa.DataType) -> bool:
    """Whether the device encodes keys of this type."""
    return dtype_of(type_) is not None or width_of(type_) is not None


__all__ = ["DeviceKeyColumn", "Found", "MirroredKeys", "any_new", "device_column", "encodes", "finished"]

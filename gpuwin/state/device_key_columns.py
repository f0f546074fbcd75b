"""One key column each on the device: its values go there as they are, their codes stay there, and distinct values come
back to the host once, when results are made of them. What a value is stored as is the host's rule (`key_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.state.appended import Appended
from gpuwin.state.buffers import bitmap_of, bytes_of, fixed_values
from gpuwin.state.key_columns import narrow_array, plain_array, strings_array
from gpuwin.state.tables import strings_at
from gpuwin_kernels.cuda import key_values
from gpuwin_kernels.cuda.byte_keys import ByteRows, DeviceByteKeys
from gpuwin_kernels.cuda.key_table import KeyTable, LookedUp
from gpuwin_kernels.cuda.keys import DeviceKeys
from gpuwin_kernels.cuda.runtime import empty, to_device, to_words


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a column that were looked up: `codes` int32[n] on the device, -1 for new keys and rows that are gone;
    `counters`: what the host has to read for `finished`; `steps`: what that goes on with.
    """

    codes: Any
    counters: tuple[Any, ...]
    steps: Any


class DeviceKeyColumn(Protocol):
    """As `key_columns.KeyColumn`, in two halves: the first does not wait for the device."""

    def looked_up(self, array: pa.Array, gone: Any) -> Found: ...

    def finished(self, found: Found, counters: list[np.ndarray]) -> Any: ...

    def take(self, codes: np.ndarray) -> pa.Array: ...

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def finished(table: KeyTable[Any], found: LookedUp[Any], counters: np.ndarray) -> Any:
    """int32[n] on the device; see `KeyTable.finished`. Raises gpuwin.LimitExceeded at 2**30 keys."""
    try:
        return table.finished(found, counters)
    except ValueError as error:
        raise LimitExceeded(f"{error}: partition the stream by key, or evict sooner") from error


def validity_of(array: pa.Array) -> tuple[Any, int]:
    """(Arrow bitmap in device memory, of the bytes that are used, and the offset in bits); empty if nothing is null."""
    bitmap, offset = bitmap_of(array)
    if not len(bitmap):
        return empty(0, np.uint8), 0
    return to_device(bitmap[offset >> 3 : (offset + len(array) + 7) >> 3]), offset & 7


# -- up to 8 bytes -----------------------------------------------------------------------------------------------------


def dtype_of(type_: pa.DataType) -> np.dtype | None:
    """How values of at most 8 bytes lie in memory: numbers, times, dates, durations, bool and narrow decimals. None for
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


class IntColumn:
    """Values of at most 8 bytes, as int64."""

    def __init__(self, type_: pa.DataType, room: int = 0) -> None:
        dtype = dtype_of(type_)
        if dtype is None:
            raise ValueError(f"keys of {type_} are no integers on the device")
        self._type = type_
        self._dtype = dtype
        self._keys = DeviceKeys(room)
        self._mirror = Appended(np.empty(0, np.int64))  # by code; grows when keys are asked for

    def looked_up(self, array: pa.Array, gone: Any) -> Found:
        array = plain_array(array)
        found = self._keys.looked_up(self._moved(array), *validity_of(array), gone)
        return Found(found.codes, (found.counters,), found)

    def finished(self, found: Found, counters: list[np.ndarray]) -> Any:
        return finished(self._keys, found.steps, counters[0])

    def _moved(self, array: pa.Array) -> Any:
        """int64[n] in device memory."""
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
        known = len(self._mirror)
        if known < len(self._keys):
            self._mirror.append(self._keys.host_keys(known))
        valid = None if self._keys.null_code < 0 else codes != self._keys.null_code
        return narrow_array(self._mirror.values[codes], valid, self._dtype, self._type)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._mirror.nbytes


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
    """Strings, binary, and fixed widths above 8 bytes."""

    def __init__(self, type_: pa.DataType, room: int = 0) -> None:
        width = width_of(type_)
        if width is None:
            raise ValueError(f"keys of {type_} are no strings on the device")
        self._type = type_
        self._width = width
        self._keys = DeviceByteKeys(room)
        self._data, self._offsets = Appended(np.empty(0, np.uint8)), Appended(np.zeros(1, np.int64))  # as `_mirror`

    def looked_up(self, array: pa.Array, gone: Any) -> Found:
        array = plain_array(array)
        found = self._keys.looked_up_rows(self._moved(array), gone)
        return Found(found.codes, (found.counters,), found)

    def finished(self, found: Found, counters: list[np.ndarray]) -> Any:
        return finished(self._keys, found.steps, counters[0])

    def _moved(self, array: pa.Array) -> ByteRows:
        """Of the bytes, only what the rows use."""
        if self._width:
            data = fixed_values(array, np.dtype((np.void, self._width))).view(np.uint8)
            return ByteRows(to_words(data), key_values.steps(self._width, len(array)), 0, *validity_of(array))
        data, offsets = bytes_of(array)
        base = int(offsets[0])
        return ByteRows(to_words(data[base : int(offsets[-1])]), to_device(offsets), base, *validity_of(array))

    def take(self, codes: np.ndarray) -> pa.Array:
        known = len(self._offsets) - 1
        if known < len(self._keys):
            data, offsets = self._keys.host_keys(known)
            self._offsets.append(offsets[1:] + len(self._data))
            self._data.append(data)
        valid = None if self._keys.null_code < 0 else codes != self._keys.null_code
        return strings_array(*strings_at(self._data.values, self._offsets.values, codes), valid, self._type)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._data.nbytes + self._offsets.nbytes


def device_column(type_: pa.DataType, room: int) -> DeviceKeyColumn:
    """Raises ValueError for types that the device does not encode."""
    return ByteColumn(type_, room) if dtype_of(type_) is None else IntColumn(type_, room)


def encodes(type_: pa.DataType) -> bool:
    """Whether the device encodes keys of this type."""
    return dtype_of(type_) is not None or width_of(type_) is not None


__all__ = ["DeviceKeyColumn", "Found", "device_column", "encodes", "finished"]

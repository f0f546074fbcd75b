"""The dictionary of integer keys on the device: rows' keys go there as they are, and their codes stay there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.state.buffers import arrow_bitmap, bitmap_of, fixed_values
from gpuwin.state.key_columns import plain_array
from gpuwin.state.keys import KeyDictionary
from gpuwin_kernels.cuda.keys import DeviceKeys, LookedUp
from gpuwin_kernels.cuda.runtime import to_device, to_host


def dtype_of(types: Sequence[pa.DataType]) -> np.dtype | None:
    """How a key column lies in memory, where the device encodes it: one column of integers, times, dates or durations
    of 4 or 8 bytes. None for other keys, which the host encodes.
    """
    if len(types) != 1:
        return None
    type_ = types[0]
    whole = pa.types.is_integer(type_) or pa.types.is_temporal(type_)
    if not whole or pa.types.is_interval(type_) or type_.bit_width not in (32, 64):
        return None
    return np.dtype(np.int64 if type_.bit_width == 64 else np.uint32 if type_ == pa.uint32() else np.int32)


class DeviceKeyDictionary(KeyDictionary):
    """A `KeyDictionary` of one column of integers, on the device. Append-only; keys come back to the host when results
    are made of them, each once.
    """

    def __init__(self, types: Sequence[pa.DataType], values: np.ndarray | None = None, null_code: int = -1) -> None:
        """`values` int64[k], `null_code`: the keys that have codes, as `DeviceKeys`. Raises OutOfDeviceMemory."""
        super().__init__(types)
        dtype = dtype_of(self.types)
        if dtype is None:
            raise ValueError(f"keys of {[str(t) for t in types]} are not encoded on the device")
        self._dtype = dtype
        self._device = DeviceKeys(values, null_code)
        self._mirror = np.empty(0, np.int64) if values is None else values  # by code; grows when keys are asked for

    @staticmethod
    def of(keys: KeyDictionary) -> KeyDictionary:
        """The same keys under the same codes, on the device if it encodes keys of this type."""
        if isinstance(keys, DeviceKeyDictionary) or dtype_of(keys.types) is None:
            return keys
        (column,) = keys.take(np.arange(len(keys), dtype=np.int32))
        null_code = int(np.argmin(np.asarray(column.is_valid()))) if column.null_count else -1
        values = fixed_values(column, dtype_of(keys.types)).astype(np.int64)  # type: ignore[arg-type]
        return DeviceKeyDictionary(keys.types, values, null_code)

    def on_host(self) -> KeyDictionary:
        """The same keys under the same codes, in host memory."""
        return super().kept(np.arange(len(self), dtype=np.int32))[0]

    # -- codes of rows -----------------------------------------------------------------------------------------------

    def looked_up(self, column: pa.Array, gone: Any) -> LookedUp:
        """Rows whose keys are looked up on the device, which is not waited for; see `DeviceKeys.looked_up`."""
        return self._device.looked_up(*self._moved(column), gone)

    def finished(self, found: LookedUp, counters: np.ndarray) -> Any:
        """int32[n] on the device; see `DeviceKeys.finished`. Raises gpuwin.LimitExceeded at 2**30 keys."""
        try:
            return self._device.finished(found, counters)
        except ValueError as error:
            raise LimitExceeded(f"{error}: partition the stream by key, or evict sooner") from error

    def _moved(self, column: pa.Array) -> tuple[Any, Any, int]:
        """(values, validity or None, bit offset) in device memory."""
        array = plain_array(column)
        bitmap, offset = bitmap_of(array)
        if not len(bitmap):
            return to_device(fixed_values(array, self._dtype)), None, 0
        some = bitmap[offset >> 3 : (offset + len(array) + 7) >> 3]
        return to_device(fixed_values(array, self._dtype)), to_device(some), offset & 7

    def _codes(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int, insert: bool) -> np.ndarray:
        if len(columns) != 1 or len(columns[0]) != length:
            raise ValueError(f"one key column of {length} rows is encoded, got {[len(c) for c in columns]}")
        if not insert:
            return self.on_host().lookup(columns, length)
        if not length:
            return np.empty(0, np.int32)
        column = columns[0].combine_chunks() if isinstance(columns[0], pa.ChunkedArray) else columns[0]
        with self._lock:
            found = self.looked_up(column, None)
            return to_host(self.finished(found, to_host(found.counters)))

    # -- back --------------------------------------------------------------------------------------------------------

    def take(self, codes: np.ndarray) -> list[pa.Array]:
        """The key column of these codes, in `types`. Waits for the device if there are keys that never came back."""
        null_code = self._device.null_code
        values = self._values()[codes].astype(self._dtype, copy=False)
        valid = None if null_code < 0 else codes != null_code
        return [pa.Array.from_buffers(self.types[0], len(codes), [arrow_bitmap(valid), pa.py_buffer(values)])]

    def _values(self) -> np.ndarray:
        known = len(self._mirror)
        if known < len(self._device):
            self._mirror = np.concatenate((self._mirror, self._device.host_keys(known)))
        return self._mirror

    def kept(self, used: np.ndarray) -> tuple[KeyDictionary, np.ndarray]:
        """A dictionary of the keys `used` only; see `KeyDictionary.kept`."""
        null = np.flatnonzero(used == self._device.null_code)
        renumbered = np.full(len(self), -1, np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        null_code = int(null[0]) if len(null) else -1
        return DeviceKeyDictionary(self.types, self._values()[used], null_code), renumbered

    def __len__(self) -> int:
        return len(self._device)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return self._device.nbytes + self._mirror.nbytes


__all__ = ["DeviceKeyDictionary", "dtype_of"]

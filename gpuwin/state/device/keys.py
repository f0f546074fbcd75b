"""Dictionary of keys on the device: keys of rows go there as they are, and their codes stay there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.state.device.key_columns import Found
from gpuwin.state.device.key_columns import encodes as encodes_column
from gpuwin.state.device.key_tuples import DeviceTuples
from gpuwin.state.keys.columns import value_type
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import to_host


def encodes(types: Sequence[pa.DataType]) -> bool:
    """Whether the device encodes keys of these types; the host does the others."""
    return len(types) > 0 and all(encodes_column(value_type(type_)) for type_ in types)


class DeviceKeyDictionary(KeyDictionary):
    """`KeyDictionary` on the device. Append-only. Each key comes back to the host once, when a result has it.
    `looked_up` and `finished` are for one thread; the others may be called by several.
    """

    def __init__(self, types: Sequence[pa.DataType], room: int = 0) -> None:
        """`room`: so many keys are expected. Raises OutOfDeviceMemory."""
        super().__init__(types)
        if not encodes(self.types):
            raise ValueError(f"keys of {[str(t) for t in types]} are not encoded on the device")
        self._device = DeviceTuples(self.types, room)
        self._grown_before = 0  # as the one whose keys these are

    @staticmethod
    def of(keys: KeyDictionary) -> KeyDictionary:
        """This dictionary with its codes, on the device if it encodes keys of these types."""
        if isinstance(keys, DeviceKeyDictionary) or not encodes(keys.types):
            return keys
        return DeviceKeyDictionary._of_columns(keys.types, keys.take(np.arange(len(keys), dtype=np.int32)))

    @staticmethod
    def _of_columns(types: Sequence[pa.DataType], columns: Sequence[pa.Array], room: int = 0) -> DeviceKeyDictionary:
        """Dictionary of keys, all different, in the order of their codes, with `room` for so many, or for these."""
        keys = DeviceKeyDictionary(types, max(len(columns[0]), room))
        keys.encode(columns, len(columns[0]))
        return keys

    def on_host(self) -> KeyDictionary:
        """This dictionary with its codes, in host memory."""
        return KeyDictionary.of_keys(self.types, self.take(np.arange(len(self), dtype=np.int32)))

    # -- codes of rows -----------------------------------------------------------------------------------------------

    def looked_up(self, columns: Sequence[pa.Array], gone: DeviceArray | None) -> Found:
        """Rows (at least one) whose keys are looked up on the device. Does not wait. `gone`: uint8[n] on the device,
        rows that are passed over; None or empty: none.
        """
        return self._device.looked_up(columns, gone)

    def finished(self, found: Found, counters: list[np.ndarray]) -> DeviceArray:
        """Codes of rows that were looked up, int32[n] on the device; -1 for those that were passed over. `counters`:
        those of `found`, on the host. Raises gpuwin.LimitExceeded at 2**30 keys.
        """
        return self._device.finished(found, counters)

    def codes_of(self, columns: Sequence[pa.Array], length: int) -> DeviceArray:
        """Codes as of `encode`, of at least one row, which stay on the device: int32[length]. Waits for new keys."""
        if any(len(column) != length for column in columns):
            raise ValueError(f"key columns of {[len(c) for c in columns]} rows, expected {length}")
        with self._lock:
            return self._encoded(columns)

    def _encoded(self, arrays: Sequence[pa.Array]) -> DeviceArray:
        found = self.looked_up(arrays, None)
        return self.finished(found, read(*found.counters))

    def lookup(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int) -> np.ndarray:
        """Codes as of `KeyDictionary.lookup`, on the host."""
        return self.on_host().lookup(columns, length)

    def _encode_chunk(self, arrays: Sequence[pa.Array], insert: bool) -> np.ndarray:
        return to_host(self._encoded(arrays)) if len(arrays[0]) else np.empty(0, np.int32)

    # -- back --------------------------------------------------------------------------------------------------------

    def take(self, codes: np.ndarray) -> list[pa.Array]:
        """Key columns of these codes, in `types`. Waits for the device if there are keys that never came back."""
        with self._lock:
            return self._device.take(codes)

    def kept(self, used: np.ndarray) -> tuple[KeyDictionary, np.ndarray]:
        """Dictionary of the keys `used` only; see `KeyDictionary.kept`."""
        renumbered = np.full(len(self), -1, np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        # Where every batch closes what the one before has opened, as many keys come again.
        smaller = self._of_columns(self.types, self.take(used), len(self))
        smaller._grown_before = self.growths
        return smaller, renumbered

    def __len__(self) -> int:
        return len(self._device)

    @property
    def growths(self) -> int:
        """Times that rows found a table full, and waited for a larger one, in all columns and pairs of them."""
        return self._grown_before + self._device.growths

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return self._device.nbytes


__all__ = ["DeviceKeyDictionary", "encodes"]

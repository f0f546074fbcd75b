"""Arrow arrays as NumPy arrays and back, without copies where there is nothing to convert."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gpuwin_kernels.cpu.kept_memory import empty

NO_BITMAP = np.zeros(0, np.uint8)


def bitmap_of(array: pa.Array) -> tuple[np.ndarray, int]:
    """(bitmap uint8, bit offset) of an array's validity; an empty bitmap if nothing is null."""
    if array.null_count == 0:
        return NO_BITMAP, 0
    buffer = array.buffers()[0]
    if buffer is None:  # a null array, or nulls that stand elsewhere (dictionaries, unions)
        mask = np.asarray(array.is_valid())
        return np.packbits(mask, bitorder="little"), 0
    return np.frombuffer(buffer, np.uint8), array.offset


def arrow_bitmap(valid: np.ndarray | None) -> pa.Buffer | None:
    """The validity buffer of an Arrow array from uint8[n] or bool[n]; None if nothing is null."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid.astype(bool, copy=False), bitorder="little"))


def words_on_lines(size: int) -> np.ndarray:
    """Empty array, uint64[size], of which the first item begins a line of the cache. So records of four words never lie
    on two lines, which a kernel that reads them in no order would wait for one after the other.
    """
    line = 8
    words = empty(size + line, np.uint64)
    skipped = -(words.ctypes.data // words.itemsize) % line
    return words[skipped : skipped + size]


def fixed_values(array: pa.Array, dtype: np.dtype) -> np.ndarray:
    """The values buffer of a fixed-width array (nulls hold anything), shape (n,)."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def bytes_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(data uint8, offsets int32[n + 1] or int64[n + 1]) of a string or binary array, large, of a fixed width, or
    neither; nulls are empty or anything.
    """
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    type_ = array.type
    if pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        array = array.cast(pa.large_binary() if pa.types.is_binary_view(type_) else pa.large_string())
        type_ = array.type
    wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    _, offsets, data = array.buffers()
    dtype = np.dtype(np.int64 if wide else np.int32)
    if offsets is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, dtype)
    bounds = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return (np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), bounds


def bytes_array(data: np.ndarray, offsets: np.ndarray, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
    """An array of a string or binary type from (data uint8, offsets int32 or int64[n + 1]), null where `valid` is
    0. Raises pa.ArrowInvalid if it does not fit.
    """
    large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    if large:
        plain = type_
    elif pa.types.is_string(type_) or pa.types.is_string_view(type_):
        plain = pa.large_string()
    else:
        plain = pa.large_binary()
    n = len(offsets) - 1
    if not large and offsets[-1] <= np.iinfo(np.int32).max and not _is_view(type_):
        return pa.Array.from_buffers(
            type_, n, [arrow_bitmap(valid), pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(data)]
        )
    wide = pa.py_buffer(offsets.astype(np.int64, copy=False))
    array = pa.Array.from_buffers(plain, n, [arrow_bitmap(valid), wide, pa.py_buffer(data)])
    return array if plain == type_ else array.cast(type_)


def _is_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type_) or pa.types.is_binary_view(type_))


def copied(array: pa.Array, known: pa.Array | None = None) -> pa.Array:
    """Array in memory of its own: a source may fill one buffer again and again. `known`: an earlier copy, whose
    dictionary serves if it has the same values.
    """
    if not pa.types.is_dictionary(array.type):
        own = with_own_dictionaries(array)
        return own if own is not array else pa.concat_arrays([array, array.slice(0, 0)])  # with nothing, which copies
    values = array.dictionary
    if known is not None and pa.types.is_dictionary(known.type) and known.dictionary.equals(values):
        values = known.dictionary
    else:
        values = copied(values)
    return pa.DictionaryArray.from_arrays(copied(array.indices), values, ordered=array.type.ordered)


def with_own_dictionaries(array: pa.Array) -> pa.Array:
    """Array in memory of its own if there is a dictionary within its values, else this one. A dictionary within nested
    values is shared by whatever is gathered from them, or put together.
    """
    if not _has_dictionary(array.type):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return array.type.wrap_array(copied(array.storage))
    sink, batch = pa.BufferOutputStream(), pa.record_batch([array], ["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def _has_dictionary(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has_dictionary(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return True
    return any(_has_dictionary(type_.field(i).type) for i in range(type_.num_fields))

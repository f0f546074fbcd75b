"""Session gaps of rows, read from a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.errors import SpecificationError
from gpuwin.planning.ingest import micros_of
from gpuwin.vocabulary.durations import INT64_MAX, as_timedelta, micros


def _text_gap(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return max(micros(as_timedelta(text)), 0)
    except SpecificationError:
        return 0  # as in Spark: what cannot be read as an interval is no gap


def gaps_of(column: pa.Array) -> np.ndarray:
    """Session gaps, int64[n] microseconds; 0 where the gap is null, negative, zero, or a text that is no duration."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        coded = column.dictionary_encode()
        known = np.array([_text_gap(text) for text in coded.dictionary.to_pylist()] or [0], np.int64)
        return np.where(np.asarray(coded.indices.is_valid()), known[np.asarray(coded.indices.fill_null(0))], 0)
    if pa.types.is_duration(type_):
        values = micros_of(np.asarray(column.view(pa.int64()).fill_null(0)), type_.unit)
    elif type_ == pa.uint64():
        values = np.asarray(column.fill_null(0))
        values = np.minimum(values, np.uint64(INT64_MAX)).astype(np.int64)
    else:
        values = np.asarray(pc.cast(column, pa.int64()).fill_null(0))
    gaps: np.ndarray = np.maximum(values, 0)
    return gaps

"""Helpers of the tests of the service: Arrow streams of rows, and a comparison in which doubles may differ a bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def stream_of(*batches: pa.RecordBatch) -> bytes:
    """Arrow stream of batches of one schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def stream_of_rows(types: Sequence[pa.DataType], rows: Sequence[Sequence[Any]]) -> bytes:
    """Arrow stream of rows, with columns `c0`, `c1`, ... of these types."""
    columns = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
    return stream_of(pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(types))]))


def assert_same(got: Mapping[Any, Sequence[Any]], want: Mapping[Any, Sequence[Any]]) -> None:
    """Results by key are those that are wanted; doubles may differ in the last places."""
    assert got.keys() == want.keys()
    for at, wanted in want.items():
        for a, b in zip(got[at], wanted, strict=True):
            same = math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(b, float) else a == b
            assert same, (at, got[at], wanted)

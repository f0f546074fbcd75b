"""Cells with narrowed integers: what comes back is what was there, and takes fewer bytes where it can."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_harness import stream_of

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_spark.service.cell_tables import parts_of, read_chunks
from gpuwin_spark.service.narrow import narrowed
from gpuwin_spark.service.protocol import LEAST_NARROWED

ROWS = 1 << 15
MINUTE = 60_000_000


def batch_of(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=[f"c{i}" for i in range(len(columns))])


def came_back(batch: pa.RecordBatch, steps: dict[int, int]) -> pa.Table:
    return read_chunks([stream_of(narrowed(batch, steps))], batch.schema)


def numbers(low: int, high: int, dtype: type = np.int64) -> pa.Array:
    rng = np.random.default_rng(low & 0xFFFF)
    values = rng.integers(low, high, ROWS, dtype, endpoint=True)
    values[:2] = low, high
    return pa.array(values)


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [
        (7, 7, pa.null()),
        (0, 255, pa.int8()),
        (-3, 253, pa.int16()),
        (10**15, 10**15 + (1 << 16) - 1, pa.int16()),
        (0, 1 << 16, pa.int32()),
        (INT64_MAX - (1 << 32) + 1, INT64_MAX, pa.int32()),
        (INT64_MIN, INT64_MIN + 255, pa.int8()),
        (0, 1 << 32, pa.int64()),
        (INT64_MIN, INT64_MAX, pa.int64()),
    ],
)
def test_a_column_takes_the_bytes_that_its_range_needs(low: int, high: int, kept: pa.DataType) -> None:
    batch = batch_of(numbers(low, high))
    assert narrowed(batch, {}).schema.types == [kept]
    assert came_back(batch, {}).to_batches() == [batch]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_columns_of_smaller_integers(dtype: type) -> None:
    wide = np.iinfo(dtype)
    batch = batch_of(numbers(wide.min, wide.max, dtype), numbers(3, 3, dtype), numbers(0, 100, dtype), numbers(0, 9))
    small = narrowed(pa.RecordBatch.from_arrays([*batch.columns, *[batch.column(0)] * 3], names=list("abcdefg")), {})
    assert small.schema.types[:2] == [batch.schema.types[0], pa.null()]
    table = pa.Table.from_batches([batch] * 8).combine_chunks()
    assert came_back(table.to_batches()[0], {}) == table


def test_panes_are_counted_in_their_width() -> None:
    pane = np.sort(np.random.default_rng(1).integers(-9, 9, ROWS)) * MINUTE + 13
    batch = batch_of(pa.array(pane))
    assert narrowed(batch, {0: MINUTE}).schema.types == [pa.int8()]
    assert came_back(batch, {0: MINUTE}).to_batches() == [batch]


def test_values_that_are_not_whole_units_apart() -> None:
    pane = np.arange(ROWS, dtype=np.int64) % 3 * MINUTE
    pane[17] += 1
    batch = batch_of(pa.array(pane))
    assert narrowed(batch, {0: MINUTE}).schema.types == [pa.int32()]
    assert came_back(batch, {0: MINUTE}).to_batches() == [batch]


def test_what_is_no_range_of_integers_stays() -> None:
    values = np.arange(ROWS)
    batch = batch_of(
        pa.array(values, mask=values % 3 == 0),
        pa.array(values * 0.5),
        pa.array([f"k{i}" for i in range(ROWS)]),
        pa.array(values % 2 == 0),
        pa.array([None] * ROWS, pa.int64()),
    )
    assert narrowed(batch, {}).equals(batch)
    assert came_back(batch, {}).to_batches() == [batch]


def test_small_batches_stay() -> None:
    batch = batch_of(pa.array(np.zeros(LEAST_NARROWED // 8 - 1, np.int64)))
    assert narrowed(batch, {}) is batch


def test_batches_stay_that_are_cut_into_small_streams() -> None:
    """Those of many tasks are put together above the shuffle, by their one head."""
    batch = batch_of(pa.array(np.zeros(LEAST_NARROWED // 8 * 3, np.int64)))
    assert narrowed(batch, {}, 4) is batch
    assert narrowed(batch, {}, 3).schema.types == [pa.null()]


def test_narrowed_and_other_chunks_are_one_table() -> None:
    first, second = batch_of(numbers(0, 9)), batch_of(pa.array([1 << 40], pa.int64()))
    table = read_chunks([stream_of(narrowed(first, {})), stream_of(second)], first.schema)
    assert table == pa.Table.from_batches([first, second]).combine_chunks()


def test_another_type_than_announced_is_refused() -> None:
    batch = batch_of(numbers(0, 9, np.int32), numbers(0, 9))
    with pytest.raises(pa.ArrowInvalid, match="announced"):
        read_chunks([stream_of(narrowed(batch, {}))], batch_of(numbers(0, 9), numbers(0, 9)).schema)


@given(
    low=st.integers(INT64_MIN, INT64_MAX),
    span=st.integers(0, (1 << 64) - 1),
    step=st.integers(1, 1 << 62),
    take=st.booleans(),
)
def test_any_range(low: int, span: int, step: int, take: bool) -> None:
    high = min(low + span // step * step, INT64_MAX)
    values = np.full(ROWS, low, np.int64)
    values[1::3] = high
    values[2::3] = min(low + (high - low) // step // 2 * step, INT64_MAX)
    batch = batch_of(pa.array(values))
    small = narrowed(batch, {0: step})
    if take:
        order = pa.array(np.arange(ROWS)[::-1])
        batch, small = batch.take(order), small.take(order)
    assert read_chunks([stream_of(small.slice(5, 90))], batch.schema).to_batches() == [batch.slice(5, 90)]


def test_parts_of_rows_of_very_different_sizes() -> None:
    """A run of large rows among small ones does not go in one frame."""
    texts = ["x"] * 1000 + ["y" * 1000] * 100 + ["z" * 20_000] + ["x"] * 1000
    parts = list(parts_of(batch_of(pa.array(texts)), 10_000))
    assert [text for part in parts for text in part.column(0).to_pylist()] == texts
    assert max(part.nbytes for part in parts if part.num_rows > 1) <= 20_000
    assert len(parts) < 40
    assert list(parts_of(batch_of(pa.array([], pa.int64())), 10_000)) == []

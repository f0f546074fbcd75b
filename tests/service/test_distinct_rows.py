"""The share of rows that are cells of their own, and what the map side does where it is large."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from service_harness import stream_of

from gpuwin_spark.service.cell_tables import read_chunks
from gpuwin_spark.service.distinct_rows import are_mostly_apart
from gpuwin_spark.service.map_side import Held, RowsSpec, cells_of_rows
from gpuwin_spark.service.operator_spec import GridSpec, Merge
from gpuwin_spark.service.partition import BatchTimes, Partition

ROWS = 100_000
MINUTE = 60_000_000
MOST = (1 << 16, 1 << 30)
BIG = (1 << 63) - 1

#: A sum of doubles, and one of integers, by a whole number.
SPEC = GridSpec(
    MINUTE, MINUTE, 0, "append", (pa.int64(), pa.int64(), pa.float64(), pa.int64()), 1,
    (Merge("sum", (0,), wrap=False, nullable=True, precision=0),
     Merge("sum", (1,), wrap=False, nullable=False, precision=0)),
)  # fmt: skip


@pytest.mark.parametrize("order", ["shuffled", "sorted", "repeated"])
@pytest.mark.parametrize(
    ("cells", "apart"), [(20_000, False), (ROWS, False), (5 * ROWS, True), (1 << 60, True)], ids=str
)
def test_the_share_is_that_of_all_rows_in_any_order(cells, apart, order):
    rng = np.random.default_rng(1)
    cell = rng.integers(0, cells, ROWS)
    if order == "repeated":  # neighbours are equal: no two rows are apart
        cell, apart = np.repeat(cell[: ROWS // 2], 2), False
    if order == "sorted":
        cell = np.sort(cell)
    assert are_mostly_apart([pa.array(cell // 10)], cell % 10) == apart


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint64(), pa.date32(), pa.timestamp("us")], ids=str
)
def test_any_whole_key_is_looked_at(kind):
    rng = np.random.default_rng(2)
    low = pa.array(rng.integers(0, 100, ROWS)).cast(pa.int32() if kind == pa.date32() else kind, safe=False).cast(kind)
    wide = pa.array(rng.integers(-(1 << 62), 1 << 62, ROWS))
    pane = rng.integers(0, 5, ROWS)
    assert are_mostly_apart([low, wide], pane)
    assert not are_mostly_apart([low, low], pane)


@pytest.mark.parametrize("keys", ["few rows", "nulls", "texts", "doubles"])
def test_other_rows_are_always_aggregated(keys):
    number = np.arange(ROWS)
    columns = {
        "few rows": pa.array(number[:1000]),
        "nulls": pa.array(number, mask=number == 5),
        "texts": pa.array(number).cast(pa.string()),
        "doubles": pa.array(number).cast(pa.float64()),
    }
    column = columns[keys]
    assert not are_mostly_apart([column], np.zeros(len(column), np.int64))


def rows_of(keys, *, value=lambda rng: rng.integers(-9, 9, ROWS)):
    """Rows of two minutes in three partitions, and their key, start, double and integer."""
    rng = np.random.default_rng(3)
    key, start, number = rng.integers(0, keys, ROWS), rng.integers(0, 2, ROWS) * MINUTE, value(rng)
    double = pa.array(rng.integers(0, 99, ROWS) / 4, mask=rng.random(ROWS) < 0.1)
    whole = RowsSpec(SPEC, (0, 1, 2, 3), 3)
    batch = pa.record_batch([key, start, double, number, pa.array(key % 3, pa.int32())], whole.row_schema)
    return whole, [stream_of(batch[:70_000]), stream_of(batch[70_000:])], (key, start, double, number)


def windows_of(parts):
    """What the operator above the shuffle makes of parts, as sorted rows."""
    times = BatchTimes(late=None, evict=5 * MINUTE, through=None)
    done = Partition.empty(SPEC).batch([stream_of(p.cells) for p in parts], times, 1 << 20)
    return sorted(map(tuple, (r.values() for w in done.windows for r in w.to_pylist())))


def test_rows_that_are_apart_are_handed_on_as_they_are():
    whole, chunks, columns = rows_of(1_000_000)
    parts = list(cells_of_rows(whole, [], [], chunks, MOST))
    assert sum(p.cells.num_rows for p in parts) == ROWS > len(set(zip(*columns[:2], strict=True)))
    assert [p.partition for p in parts] == [0, 1, 2]
    for p in parts:
        mine = columns[0] % 3 == p.partition
        want = pa.record_batch([pa.array(c).filter(pa.array(mine)) for c in columns], SPEC.cell_schema)
        assert read_chunks([stream_of(p.cells)], SPEC.cell_schema).to_batches() == [want]
        assert p.last == columns[1][mine].max()
    held = [Held(p.partition, [stream_of(p.cells)]) for p in parts]
    again = list(cells_of_rows(whole, [], held, chunks, MOST))
    assert sum(p.cells.num_rows for p in again) < 2 * ROWS, "every cell is there twice, so they are not apart"
    twice = windows_of(again)
    once = windows_of(parts)
    assert [(*a[:3], a[3] and 2 * a[3], 2 * a[4]) for a in once] == twice


def test_the_windows_are_those_of_rows_that_are_aggregated(monkeypatch):
    whole, chunks, _ = rows_of(1_000_000)
    parts = list(cells_of_rows(whole, [], [], chunks, MOST))
    monkeypatch.setattr("gpuwin_spark.service.map_side.are_mostly_apart", lambda *_: False)
    fewer = list(cells_of_rows(whole, [], [], chunks, MOST))
    assert sum(p.cells.num_rows for p in fewer) < ROWS
    assert windows_of(parts) == windows_of(fewer)


def test_rows_whose_sums_may_overflow_are_added_up_here():
    """Spark raises at the row at which the sum of a task leaves 64 bits, so that rows must be added in their order."""

    def large(rng):
        value = np.zeros(ROWS, np.int64)
        value[:2] = BIG, -5
        return value

    whole, chunks, columns = rows_of(1_000_000, value=large)
    parts = list(cells_of_rows(whole, [], [], chunks, MOST))
    assert sum(p.cells.num_rows for p in parts) == len(set(zip(*columns[:2], strict=True)))


def test_a_key_without_columns_is_one_key():
    spec = replace(SPEC, types=SPEC.types[1:], keys=0)
    rng = np.random.default_rng(4)
    whole = RowsSpec(spec, (0, 1, 2), 1)
    start = rng.integers(0, 1 << 40, ROWS) * MINUTE
    values = [start, rng.random(ROWS), rng.integers(0, 9, ROWS), np.zeros(ROWS, np.int32)]
    parts = list(
        cells_of_rows(whole, [], [], [stream_of(pa.record_batch(values, whole.row_schema))], (1 << 20, 1 << 30))
    )
    assert sum(p.cells.num_rows for p in parts) == ROWS

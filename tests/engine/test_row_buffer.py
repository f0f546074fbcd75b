"""Rows of plain batches that share one buffer: none is lost, doubled or changed by what comes behind it."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.batch.row_buffer import RowBuffer
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.engines import closing_panes

SECOND = 1_000_000
TYPES: dict[str, pa.DataType] = {
    "i8": pa.int8(),
    "u32": pa.uint32(),
    "i64": pa.int64(),
    "f16": pa.float16(),
    "f32": pa.float32(),
    "day": pa.date32(),
    "stamp": pa.timestamp("ns", "UTC"),
    "small": pa.decimal32(5, 2),
    "large": pa.decimal256(50, 2),
}
LARGEST = {f"most_{name}": gw.max(name) for name in ("i8", "u32", "i64", "f32", "day", "stamp")}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first row on."""
    monkeypatch.setattr(closing_panes, "AT_ONCE", 0)


def column(rng: np.random.Generator, type_: pa.DataType, rows: int, nulls: bool) -> pa.Array:
    numbers = rng.integers(0, 100, rows)
    mask = rng.random(rows) < 0.3 if nulls else None
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(int(n)) for n in numbers], type_, mask=mask)
    if pa.types.is_float16(type_):
        return pa.array(numbers.astype(np.float16), mask=mask)
    if pa.types.is_date32(type_):
        return pa.array(numbers.astype(np.int32), mask=mask).cast(type_)
    return pa.array(numbers, mask=mask).cast(type_)


def batch(rng: np.random.Generator, second: int, rows: int, nulls: bool = False) -> pa.Table:
    """A slice of a table, so that the values of its columns do not begin at their buffers' first byte."""
    stamps = pa.array(rng.integers(second * SECOND, (second + 3) * SECOND, rows + 2)).view(pa.timestamp("us"))
    values = {name: column(rng, type_, rows + 2, nulls) for name, type_ in TYPES.items()}
    return pa.table({"ts": stamps, "key": rng.integers(0, 4, rows + 2), **values}).slice(1, rows)


def held(op: gw.WindowOperator) -> tuple[int, int]:
    """Rows that wait in the buffer, and in all."""
    log = op._running.windows.state.log  # type: ignore[union-attr]
    return log.buffered, log.rows


@pytest.mark.parametrize("seed", range(12))
def test_a_stream_with_failures_branches_and_nulls(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    window = (gw.TumblingWindow("5 seconds"), gw.SlidingWindow("6 seconds", "2 seconds"))[seed % 2]
    spec = gw.WindowedAggregation(
        window=window,
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "sum": gw.sum("i64"), "d": gw.sum("small"), **LARGEST},
        watermark=gw.BoundedOutOfOrderness("2 seconds" if seed % 3 else "20 seconds"),
    )
    found, buffered = [], 0
    for waits in (True, False):
        monkeypatch.setattr(closing_panes, "AT_ONCE", 0 if waits else 1 << 62)
        rng = np.random.default_rng(seed)
        op, out = spec.start("cpu"), []
        for k in range(40):
            table = batch(rng, k, int(rng.integers(1, 30)), nulls=rng.random() < 0.1)
            other = batch(rng, k, int(rng.integers(1, 30)))
            if rng.random() < 0.2:
                with pytest.raises(gw.SchemaError):
                    op.process(table.drop_columns("i64"))
            if rng.random() < 0.3:  # which puts rows behind those of both
                out.append(op.branch().process(other))
            if rng.random() < 0.1:
                out.append(op.branch().finish())
            out.append(op.process(table))
            buffered += held(op)[0] if waits else 0
        found.append([*out, op.finish()])
    assert buffered
    for a, b in zip(*found, strict=True):
        assert a.equals(b)


@pytest.mark.usefixtures("logged")
def test_branches_that_share_a_buffer_do_not_see_each_others_rows() -> None:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "sum": gw.sum("v")},
        watermark=gw.BoundedOutOfOrderness("1 minute"),
    )

    def rows(value: int, count: int = 2) -> pa.Table:
        return pa.table({"ts": pa.array([0] * count, pa.timestamp("us")), "key": [1] * count, "v": [value] * count})

    op = spec.start("cpu")
    op.process(rows(1))
    left, right = op.branch(), op.branch()
    for k, one in enumerate((left, right, op)):
        one.process(rows(10 ** (k + 1)))
        one.process(rows(10 ** (k + 1)))
        assert held(one) == (6, 6)
    assert [one.finish()["sum"].to_pylist() for one in (left, right, op)] == [[42], [402], [4002]]


@pytest.mark.usefixtures("logged")
def test_what_a_buffer_cannot_hold_waits_behind_it() -> None:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "sum": gw.sum("v")},
        watermark=gw.BoundedOutOfOrderness("1 second"),
    )

    def rows(seconds: list[int], values: list[int | None]) -> pa.Table:
        stamps = pa.array([s * SECOND for s in seconds], pa.timestamp("us"))
        return pa.table({"ts": stamps, "key": [1] * len(seconds), "v": pa.array(values, pa.int64())})

    op = spec.start("cpu")
    waited, sums = [], []
    for table in (
        rows([1, 2], [1, 2]),
        rows([3, 4], [4, None]),  # a null
        rows([5], [8]),  # comes behind it
        rows([11, 9, 12], [16, 32, 64]),  # closes the first window: two rows go on waiting, which are not neighbours
        rows([11, 13], [128, 256]),
        rows([19, 20, 21], [512, 1024, 2048]),  # closes the second one: two neighbours go on waiting
        rows([22], [4096]),
    ):
        sums += op.process(table)["sum"].to_pylist()
        waited.append(held(op))
    assert waited == [(2, 2), (2, 4), (2, 5), (0, 2), (0, 4), (2, 2), (3, 3)]
    assert [*sums, *op.finish()["sum"].to_pylist()] == [47, 976, 7168]


def test_a_buffer_takes_no_rows_that_it_cannot_hold() -> None:
    def rows(values: pa.Array, index: np.ndarray | None = None) -> TimedRows:
        return TimedRows({"v": values}, np.zeros(len(values), np.int64), 0, index)

    assert RowBuffer.of(rows(pa.array(["a"])), 0) is None
    assert RowBuffer.of(rows(pa.array([True])), 0) is None
    assert RowBuffer.of(rows(pa.array([1]).dictionary_encode()), 0) is None
    assert RowBuffer.of(rows(pa.array([1, None])), 0) is None
    assert RowBuffer.of(rows(pa.array([1]), np.array([3])), 0) is None
    buffer = RowBuffer.of(rows(pa.array([1, 2])), 3)
    assert buffer is not None
    assert (buffer.room, buffer.row_bytes) == (8, 16)
    assert buffer.with_rows(2, rows(pa.array([1.0]))) is None
    assert buffer.with_rows(2, rows(pa.array([3, 4]))) is buffer
    longer = buffer.with_rows(4, rows(pa.array(range(5))))
    assert longer is not None
    assert (longer is not buffer, longer.room) == (True, 18)
    assert longer.rows(7, 1, 6).columns["v"].to_pylist() == [2, 3, 4, 0, 1]
    assert longer.rows(7, 1, 6).first == 8
    shorter = buffer.with_rows(1, rows(pa.array([9])))  # others have the place behind the first row
    assert shorter is not None
    assert shorter is not buffer
    assert shorter.rows(0, 0, 2).columns["v"].to_pylist() == [1, 9]
    assert buffer.rows(0, 0, 4).columns["v"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_small_batches_of_a_long_stream_out_of_order(delay: int) -> None:
    """A batch that waits may have rows of windows that close later than that of the next batch."""
    rng = np.random.default_rng(delay)
    rows = 100_000  # the first third of them is aggregated before rows wait
    time = np.sort(rng.integers(0, 100 * SECOND, rows))
    time = time[np.argsort(time + rng.integers(0, delay * SECOND + 1, rows), kind="stable")]
    stream = pa.table(
        {"ts": pa.array(time).view(pa.timestamp("us")), "key": rng.integers(0, 50, rows), "v": rng.integers(0, 9, rows)}
    )
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("3 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count(), "s": gw.sum("v"), "most": gw.max("v")},
        watermark=gw.BoundedOutOfOrderness(f"{delay} seconds"),
    )
    whole = gw.aggregate(stream, spec)
    for size in (700, 3_000):
        parts = pa.concat_tables(gw.run(spec, [stream.slice(at, size) for at in range(0, rows, size)]))
        order = [("window_start", "ascending"), ("key", "ascending")]
        assert parts.sort_by(order).equals(whole.sort_by(order))

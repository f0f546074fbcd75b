"""Keys and late rows on the device: the rows of the CPU, and one wait for each batch that is like the last."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from on_both import in_order, on_both

import gpuwin as gw
from gpuwin.device import batch as device_batch
from gpuwin.state.device.keys import DeviceKeyDictionary, encodes
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cuda.runtime import pool_stats, waits

SECOND = 1_000_000
AGGREGATES = {"n": gw.count(), "total": gw.sum("v"), "most": gw.max("v"), "exact": gw.sum("i")}
TYPES = [pa.int64(), pa.date32(), pa.string()]


def batch(rng: np.random.Generator, rows: int, first: int, last: int, type_: pa.DataType = TYPES[0]) -> pa.Table:
    keys = pa.array(rng.integers(0, 4, rows), mask=rng.random(rows) < 0.2)
    return pa.table(
        {
            "ts": pa.array(rng.integers(first, last, rows) * SECOND).view(pa.timestamp("us")),
            "k": keys.cast(pa.int32()).cast(type_) if type_ == pa.date32() else keys.cast(type_),
            "v": pa.array(rng.integers(-9, 9, rows).astype(float), mask=rng.random(rows) < 0.2),
            "i": rng.integers(-(1 << 40), 1 << 40, rows),
        }
    )


TUMBLING = gw.TumblingWindow("10 seconds")


def spec(window: Any = TUMBLING, **more: Any) -> gw.WindowedAggregation:
    options = {"keys": ["k"], "aggregates": AGGREGATES, "watermark": gw.BoundedOutOfOrderness("3 seconds")} | more
    return gw.WindowedAggregation(window=window, time="ts", collect_late=True, **options)


both = partial(on_both, metrics=("rows_late", "window_rows_late", "windows_open"))


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_keys_of_each_type_with_nulls(type_: pa.DataType) -> None:
    rng = np.random.default_rng(1)
    assert encodes([type_])
    host, device = both(spec(), [batch(rng, 7, 10 * step, 10 * step + 12, type_) for step in range(2)])
    elsewhere = spec().restore(device.snapshot(), device="cpu"), spec().restore(host.snapshot(), device="cuda")
    rows = batch(rng, 7, 20, 40, type_)
    for op in (host, device, *elsewhere):
        op.process(rows)
    expected = in_order(host.finish())
    assert all(in_order(op.finish()) == expected for op in (device, *elsewhere))


@pytest.mark.parametrize(
    ("window", "more"),
    [
        (gw.TumblingWindow("10 seconds"), {}),
        (gw.TumblingWindow("10 seconds", offset="3 seconds"), {"keys": []}),
        (gw.TumblingWindow("10 seconds"), {"keys": ["k", "v"]}),
        (gw.SlidingWindow("20 seconds", "10 seconds"), {}),
        (gw.CumulativeWindow("20 seconds", "10 seconds"), {"emit": gw.OnUpdate()}),
        (gw.SlidingWindow("20 seconds", "10 seconds"), {"semantics": gw.Semantics(late_by="timestamp")}),
        (gw.TumblingWindow("10 seconds"), {"aggregates": AGGREGATES | {"first": gw.first("i")}}),
        (gw.TumblingWindow("10 seconds"), {"allowed_lateness": "20 seconds"}),
    ],
    ids=["tumbling", "no keys", "two columns", "sliding", "cumulative", "late by time", "in order", "lateness"],
)
def test_late_rows(window: Any, more: Any) -> None:
    rng = np.random.default_rng(2)
    batches = [batch(rng, 7, *span) for span in ((0, 20), (20, 40), (-30, 45), (-30, 0), (30, 50))]
    host, device = both(spec(window, **more), batches)
    assert host.metrics.rows_late > 0
    assert in_order(host.finish()) == in_order(device.finish())


NUMBERED = {"k": np.arange(6) % 3}
NAMED = {"k": ["", None, "a key of more than sixteen bytes"] * 2}
SEVERAL = NAMED | {"d": pa.array(["x", "y", None] * 2).dictionary_encode(), "b": [True, None, False] * 2}


def warm(
    op: gw.WindowOperator, every: int, batches: int = 10, keys: dict[str, Any] = NUMBERED
) -> tuple[list[int], list[int], list[int]]:
    """Batches of the same size and keys, each `every` seconds after the one before: for each, how often it waited
    for the device, how often the pool asked for memory, and how many rows came out.
    """
    waited, allocated, rows_out = [], [], []
    for step in range(batches):
        seconds = every * step + np.array([0, 3, 5, 6, 8, 9])
        rows = pa.table(
            {
                "ts": pa.array(seconds * SECOND).view(pa.timestamp("us")),
                "v": np.arange(6.0),
                "i": np.arange(6),
            }
            | keys
        )
        before, held = waits(), pool_stats().allocations
        rows_out.append(op.process(rows).num_rows)
        waited.append(waits() - before)
        allocated.append(pool_stats().allocations - held)
    return waited, allocated, rows_out


@pytest.mark.parametrize("keys", [NUMBERED, NAMED, SEVERAL], ids=["integers", "text", "several"])
def test_a_batch_like_the_last_waits_once_and_allocates_nothing(keys: dict[str, Any]) -> None:
    op = spec(watermark=gw.BoundedOutOfOrderness("1 hour"), keys=list(keys)).start(device="cuda")
    waited, allocated, rows_out = warm(op, 0, 6, keys)
    assert rows_out == [0] * 6
    assert waited[2:] == [1] * 4, waited
    assert allocated[3:] == [0] * 3, allocated


@pytest.mark.parametrize(
    ("known", "with_new", "waited"),
    [
        ({"k": ["a", "b"] * 3}, {"k": ["a", "c"] * 3}, 3),
        ({"k": ["a", "b"] * 3, "d": [1, 1] * 3}, {"k": ["a", "b"] * 3, "d": [1, 2] * 3}, 5),
        ({"k": ["a", "b"] * 3, "d": [1, 2] * 3}, {"k": ["b", "a"] * 3, "d": [1, 2] * 3}, 3),
    ],
    ids=["text", "a new value", "a new pair"],
)
def test_new_keys_wait_as_often_as_the_page_says(known: Any, with_new: Any, waited: int) -> None:
    op = spec(watermark=gw.BoundedOutOfOrderness("1 hour"), keys=list(known)).start(device="cuda")
    warm(op, 0, 2, known)
    assert warm(op, 0, 1, with_new)[0] == [waited]
    assert warm(op, 0, 2, with_new)[0] == [2, 1], "after new keys, nothing is expected of the next batch"


@pytest.mark.parametrize(
    ("window", "emit", "rows"),
    [
        (TUMBLING, gw.OnClose(), 3),
        (gw.SlidingWindow("30 seconds", "10 seconds"), gw.OnClose(), 3),
        (gw.CumulativeWindow("20 seconds", "10 seconds"), gw.OnClose(), 3),
        (gw.SlidingWindow("30 seconds", "10 seconds"), gw.OnUpdate(), 9),
    ],
    ids=["tumbling", "sliding", "cumulative", "on update"],
)
def test_a_batch_that_emits_windows_waits_once_and_allocates_nothing_either(window: Any, emit: Any, rows: int) -> None:
    """What closes is found on the device. That runs are merged and cut costs no wait."""
    op = spec(window, emit=emit, watermark=gw.BoundedOutOfOrderness("0 seconds")).start(device="cuda")
    waited, allocated, rows_out = warm(op, 10, 14)
    assert rows_out[3:] == [rows] * 11
    assert waited[5:] == [1] * 9, waited
    assert allocated[8:] == [0] * 6, allocated


def test_more_rows_than_were_expected() -> None:
    """The second closing gives a hundred times the rows of the first, and the third fewer again."""
    rng = np.random.default_rng(6)
    batches = []
    for first, keys in ((0, 2), (10, 150), (20, 2), (30, 1)):
        n = max(keys, 4)
        batches.append(
            pa.table(
                {
                    "ts": pa.array(rng.integers(first, first + 10, n) * SECOND).view(pa.timestamp("us")),
                    "k": np.arange(n) % keys,
                    "v": rng.normal(size=n).round(),
                    "i": rng.integers(-(1 << 40), 1 << 40, n),
                }
            )
        )
    host, device = both(spec(watermark=gw.BoundedOutOfOrderness("0 seconds")), batches)
    assert in_order(host.finish()) == in_order(device.finish())


def test_a_guess_that_fails_costs_a_wait_and_no_rows() -> None:
    rng = np.random.default_rng(4)
    spans = ((0, 20), (0, 20), (500, 520), (100, 700), (650, 660), (600, 700))
    specification = spec(watermark=gw.BoundedOutOfOrderness("1 hour"))
    host, device = both(specification, [batch(rng, 6, *span) for span in spans])
    assert in_order(host.finish()) == in_order(device.finish())


def test_a_batch_that_fails_leaves_keys_and_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    op = spec().start(device="cuda")
    op.process(batch(rng, 6, 0, 9))
    before = op.snapshot()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    real = device_batch.kernel.started
    strange = batch(rng, 6, 0, 9).set_column(1, "k", pa.array(np.arange(100, 106)))
    monkeypatch.setattr(device_batch.kernel, "started", broken)
    with pytest.raises(RuntimeError, match="broken"):
        op.process(strange)
    monkeypatch.setattr(device_batch.kernel, "started", real)
    assert op.snapshot() == before
    assert {row["k"] for row in op.finish().to_pylist()} <= {None, 0, 1, 2, 3}


def test_the_dictionary_is_that_of_the_host() -> None:
    host = KeyDictionary([pa.int64()])
    first = pa.array([5, -7, 5, 1 << 62, -(1 << 63)])
    host.encode([first], 5)
    host.encode([pa.array([None, 9])], 2)
    device = DeviceKeyDictionary.of(host)
    assert isinstance(device, DeviceKeyDictionary)
    assert device.take(np.arange(6, dtype=np.int32))[0] == host.take(np.arange(6, dtype=np.int32))[0]
    more = pa.chunked_array([pa.array([9, None, 77]), pa.array([-7, 78]).dictionary_encode().dictionary_decode()])
    codes = device.encode([more], 5)
    np.testing.assert_array_equal(codes, host.encode([more], 5))
    np.testing.assert_array_equal(device.lookup([pa.array([78, 79])], 2), [7, -1])
    smaller, renumbered = device.kept(np.array([1, 4, 7], np.int32))
    assert smaller.take(np.arange(3, dtype=np.int32))[0].to_pylist() == [-7, None, 78]
    assert renumbered.tolist() == [-1, 0, -1, -1, 1, -1, -1, 2]
    assert smaller.encode([pa.array([None, 5, 78])], 3).tolist() == [1, 3, 2]
    nested = pa.list_(pa.int64())
    assert not isinstance(DeviceKeyDictionary.of(KeyDictionary([nested])), DeviceKeyDictionary)
    with pytest.raises(ValueError, match="not encoded on the device"):
        DeviceKeyDictionary([nested])

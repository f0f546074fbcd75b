"""Texts on the device: their order, their codes, and minima, maxima, firsts and lasts of them, as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from device_arrays import uploaded
from on_both import in_order, on_both

import gpuwin as gw
from gpuwin.state import heap
from gpuwin.state.cells import merge_cells, take_cells
from gpuwin.state.device import heap as device_heap
from gpuwin.state.device import panes
from gpuwin.state.device.heap import DeviceHeap, smaller_there
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.cuda import ranges
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, to_device, to_host, waits
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

STEMS = [b"", b"a", b"eight by", b"eight bytes and more"]
TEXTS = [stem + end for stem in STEMS for end in (b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00", b"b\xff")]
LAYOUT = CellLayout((CellColumn("lo", "min", "bytes", nullable=True), CellColumn("hi", "max", "bytes")))


def random_texts(rng: np.random.Generator, rows: int) -> pa.Array:
    some = [TEXTS[i] for i in rng.integers(0, len(TEXTS), rows)]
    return pa.array([None if rng.random() < 0.1 else text for text in some], pa.binary())


def test_totals_go_by_unsigned_bytes_and_then_by_length() -> None:
    """As on the host, whose order is that of Python's bytes; with levels of nodes and without."""
    rng = np.random.default_rng(0)
    heap = BytesHeap()
    codes = heap.put(pa.array([TEXTS[i] for i in rng.integers(0, len(TEXTS), 90)], pa.binary()))
    columns = (CellArrays((codes,), rng.integers(0, 2, 90).astype(np.uint8)), CellArrays((codes[::-1].copy(),), None))
    lo, hi = np.array([0, 3, 17, 40]), np.array([90, 5, 18, 88])
    texts = DeviceHeap.of(heap).arrays
    found = ranges.totals(LAYOUT, uploaded(columns), to_device(lo), to_device(hi), heap=texts)
    group = np.repeat(np.arange(4), hi - lo)
    rows = np.concatenate([np.arange(a, b) for a, b in zip(lo, hi, strict=True)])
    expected = merge_cells(LAYOUT, take_cells(columns, rows), group, 4, heap)
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x.values[0], to_host(y.values[0]))
    whole = heap.take(expected[1].values[0][:1], None, pa.binary())[0].as_py()
    assert whole == max(heap.take(columns[1].values[0], None, pa.binary()).to_pylist())
    with pytest.raises(ValueError, match="no heap"):
        ranges.totals(LAYOUT, uploaded(columns), to_device(lo), to_device(hi))


def out_of_memory(*_: Any) -> None:
    raise OutOfDeviceMemory(77)


def test_codes_and_texts_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    host, device = BytesHeap(), DeviceHeap()
    wide = pa.array(["s", None, "", "text"], pa.large_string())
    repeated = pa.array(["s", "new", "s"]).dictionary_encode()
    indices = pa.array([1, None, 0], pa.int8())
    for array in (random_texts(rng, 30).slice(3), wide, repeated, pa.DictionaryArray.from_arrays(indices, ["x", "s"])):
        assert (host.put(array) == device.put(array)).all()
    assert len(host) == len(device)
    before = waits()
    device.codes_of(repeated.slice(1))
    assert waits() == before, "the dictionary is known"
    codes, valid = rng.integers(0, len(host), 20), rng.integers(0, 2, 20).astype(np.uint8)
    assert device.take(codes, valid, pa.large_binary()).equals(host.take(codes, valid, pa.large_binary()))
    with monkeypatch.context() as full:
        full.setattr(device_heap.kernel, "taken", out_of_memory)
        assert device.take(codes, valid, pa.large_binary()).equals(host.take(codes, valid, pa.large_binary()))
    both = device.with_texts_of(LAYOUT, (CellArrays((codes,), valid), CellArrays((codes[:3],), None)))
    before = waits()
    device.with_texts_of(LAYOUT, (CellArrays((codes,), valid), CellArrays((codes[:3],), None)))
    assert waits() == before + 1
    for some, seen in ((codes, valid), (codes[::-1], valid)):
        assert both.take(some, seen, pa.large_binary()).equals(host.take(some, seen, pa.large_binary()))
    long = device.put(pa.array(["long " * 2000]))  # for which there is no room yet
    assert device.take(long, None, pa.string()).to_pylist() == ["long " * 2000]
    host.put(pa.array(["long " * 2000]))
    again = DeviceHeap.of(device.on_host())
    assert (again.put(wide) == host.put(wide)).all()
    kept, new_code = device.kept(np.array([2, 5]))
    assert kept.take(new_code[[5, 2]], None, pa.binary()).equals(host.take(np.array([5, 2]), None, pa.binary()))
    columns = uploaded((CellArrays((np.array([5, 2, 0]),), np.array([1, 1, 0], np.uint8)), CellArrays((codes,), None)))
    layout = CellLayout(LAYOUT.columns[:1])
    monkeypatch.setattr(heap, "ANYWAY", 0)
    found = smaller_there(layout, device, [columns[:1]])
    assert found is not None
    assert len(found[0]) == 2
    assert (
        found[0]
        .take(to_host(found[1][0][0].values[0])[:2], None, pa.binary())
        .equals(host.take(np.array([5, 2]), None, pa.binary()))
    )


AGGREGATES = {"least": gw.min("t"), "most": gw.max("d"), "first": gw.first("t"), "by": gw.max_by("t", "v")}


def batches(rng: np.random.Generator, number: int) -> list[pa.Table]:
    out = []
    for step in range(number):
        seconds = rng.integers(10 * step - 5, 10 * step + 8, 7)
        fresh = [f"{step} {i}" for i in range(7)]
        out.append(
            pa.table(
                {
                    "ts": pa.array(seconds * 1_000_000).view(pa.timestamp("us")),
                    "k": pa.array(rng.choice(["x", "y"], 7)),
                    "t": random_texts(rng, 7),
                    "d": pa.array(rng.choice(fresh, 7)).dictionary_encode(),
                    "v": rng.normal(size=7),
                }
            )
        )
    return out


@pytest.mark.parametrize(
    "window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("3 seconds")], ids=["tumbling", "sessions"]
)
def test_the_operator(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between devices, and with a heap that is rebuilt as soon as it can be."""
    monkeypatch.setattr(panes, "FEW_KEYS", 0)
    monkeypatch.setattr(heap, "ANYWAY", 0)
    specification = gw.WindowedAggregation(
        window=window,
        keys=["k"],
        time="ts",
        aggregates=AGGREGATES if isinstance(window, gw.TumblingWindow) else {"most": gw.max("d")},
        watermark=gw.BoundedOutOfOrderness("3 seconds"),
        collect_late=True,
    )
    rows = batches(np.random.default_rng(2), 3)
    host, device = on_both(specification, rows[:2], ["rows_late"])
    moved = specification.restore(host.snapshot(), device="cuda")
    back = specification.restore(device.snapshot(), device="cpu")
    results = [in_order(pa.concat_tables([op.process(rows[2]), op.finish()])) for op in (host, device, moved, back)]
    assert results[0] == results[1] == results[2] == results[3]
    assert len(results[0]) >= 3


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("3 seconds")], ids=str)
def test_a_heap_that_does_not_fit_the_device_goes_on_on_the_host(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    specification = gw.WindowedAggregation(window=window, keys=["k"], time="ts", aggregates={"most": gw.max("d")})
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    for number, rows in enumerate(batches(np.random.default_rng(3), 3)):
        with monkeypatch.context() as full:
            if number == 1:
                full.setattr(DeviceHeap, "_enter", out_of_memory)
            assert in_order(host.process(rows)) == in_order(device.process(rows))
    held: Any = device._running.windows.state
    assert type(getattr(held, "panes", held).heap) is BytesHeap
    assert in_order(host.finish()) == in_order(device.finish())


@pytest.mark.parametrize(("anyway", "most", "waited"), [(0, 20, [14, 15]), (1 << 20, 72, [9, 10])])
def test_the_heap_and_the_waits_stay_what_they_are(
    anyway: int, most: int, waited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stream brings new texts with each batch: the heap is that of the texts in cells, and a few more. It is
    looked at once it is large, which costs five waits."""
    monkeypatch.setattr(panes, "FEW_KEYS", 0)
    monkeypatch.setattr(heap, "ANYWAY", anyway)
    aggregates = {"least": gw.min("t"), "most": gw.max("t"), "last": gw.last("u")}
    window = gw.TumblingWindow("1 second")
    op = gw.WindowedAggregation(window=window, keys=["k"], time="ts", aggregates=aggregates).start(device="cuda")
    counts, sizes = [], []
    for second in range(6):
        names = [f"{second} {i}" for i in range(6)]
        time = pa.array([second * 1_000_000] * 6).view(pa.timestamp("us"))
        before = waits()
        op.process(pa.table({"ts": time, "k": [0, 1] * 3, "t": names, "u": ["same"] * 6}))
        counts.append(waits() - before)
        state: Any = op._running.windows.state
        sizes.append(len(state.panes.heap))
    assert max(sizes) <= most, sizes
    assert sorted(set(counts[2:])) == waited, "of which one is for the texts"
    assert "5 0" in op.finish()["least"].to_pylist()

"""Rows a second on the device, for `gpu_check.py`: rows that are in device memory already, and from the host; the walls
that nothing can beat, measured here too; and CuPy and, where it is installed, cuDF.

A row is int64 time, int32 key and float64 value: 20 bytes. Sizes grow, so that a run that is stopped has said
something; at each size the rows in all cells are counted, which an index that wraps would show.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from layouts import COUNT_SUM, FIVE_AGGREGATES, MINUTE

import gpuwin as gw
from gpuwin.grid import WindowGrid
from gpuwin.state import KeyDictionary, PaneState
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.runs import DeviceRun
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.cuda import reading, runtime
from gpuwin_kernels.cuda.rows import DeviceCells, PlacedRows, aggregate_rows, started
from gpuwin_kernels.cuda.runtime import to_host
from gpuwin_kernels.cuda.session_join import DeviceSessions
from gpuwin_kernels.cuda.sessions import Span, cutting
from gpuwin_kernels.layout import CellLayout

Tell = Callable[[str, Any], None]
HOUR = 60 * MINUTE
ROW_BYTES = 20


@dataclass(frozen=True)
class Times:
    """Seconds of each repeat of some work: by the clock on the wall, and by events on the device's stream, which leave
    out what the host does before its first launch; None in the simulator.
    """

    wall: list[float]
    device: list[float] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


def timed(work: Callable[[], Any], repeat: int = 7) -> Times:
    """Times of some work; the first call, which compiles, is not among them."""
    work()
    runtime.synchronize()
    wall, device = [], []
    for _ in range(repeat):
        events = None if runtime.simulated() else [runtime.cuda.event(timing=True) for _ in range(2)]
        began = time.perf_counter()
        if events:
            events[0].record(runtime.stream())
        work()
        if events:
            events[1].record(runtime.stream())
        runtime.synchronize()
        wall.append(time.perf_counter() - began)
        if events:
            device.append(runtime.cuda.event_elapsed_time(*events) / 1000)
    return Times(wall, device or None)


def sizes(rows: int) -> list[int]:
    """From a sixty-fourth of the rows on, where that is much."""
    return sorted({max(rows // by, min(rows, 1 << 24)) for by in (64, 8, 1)})


def rate(rows: int, times: Times, **more: Any) -> dict[str, Any]:
    middle = times.median
    said = {"rows": rows, "rows_per_s": rows / middle, "seconds": middle, "least_seconds": min(times.wall)}
    if times.device:
        said["seconds_by_events"] = statistics.median(times.device)
    return said | {"bytes_per_s": rows * ROW_BYTES / middle} | more


def free() -> None:
    """Gives the pool's unused blocks back, so that sizes and parts do not starve one another."""
    if not runtime.simulated():
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


# -- walls -------------------------------------------------------------------------------------------------------------


def walls(options: argparse.Namespace, tell: Tell) -> None:
    """Bytes a second: read and written within device memory, and from pinned host memory to the device."""
    size = min(options.rows * ROW_BYTES // 2, 4 << 30) // 8 * 8
    a, b = runtime.full(size // 8, 1.0, np.float64), runtime.empty(size // 8, np.float64)
    stream = runtime.stream()
    tell("device, bytes_per_s", 2 * size / timed(lambda: b.copy_to_device(a, stream=stream)).median)
    pinned_size = min(size, 1 << 30)
    pinned = runtime.cuda.pinned_array(pinned_size // 8, np.float64)
    pinned[:] = 1.0
    target = runtime.empty(pinned_size // 8, np.float64)
    moved = timed(lambda: target.copy_to_device(pinned, stream=stream))
    tell("pinned, bytes_per_s", pinned_size / moved.median)
    pageable = np.ones(pinned_size // 8)
    ours = timed(lambda: runtime.to_device(pageable))
    tell("from pageable memory through pinned rings, bytes_per_s", pinned_size / ours.median)
    for threads in sorted({1, 2, 4} - {tuning.threads()}):
        with mock.patch.object(tuning, "threads", lambda threads=threads: threads):
            fewer = timed(lambda: runtime.to_device(pageable))
        tell(f"from pageable memory through pinned rings, {threads} threads, bytes_per_s", pinned_size / fewer.median)


# -- rows that are on the device ---------------------------------------------------------------------------------------


class Resident:
    """Rows in device memory: time int64 in order, key code int32, value float64."""

    def __init__(self, rows: int, keys: int, span: int) -> None:
        self.keys = keys
        if runtime.simulated():
            rng = np.random.default_rng(0)
            self.time = runtime.to_device(np.sort(rng.integers(0, span, rows)))
            self.code = runtime.to_device(rng.integers(0, keys, rows).astype(np.int32))
            self.value = runtime.to_device(rng.normal(size=rows))
            return
        import cupy

        self.time = runtime.as_numba((cupy.arange(rows, dtype=np.float64) * (span / rows)).astype(np.int64))
        # A hash of the number of the row, and no generator of CuPy: those need cuRAND, which may not be there.
        number = cupy.arange(rows, dtype=np.uint64)
        number *= np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(32)
        number *= np.uint64(0xBF58476D1CE4E5B9)
        number >>= np.uint64(11)
        self.code = runtime.as_numba((number % np.uint64(keys)).astype(np.int32))
        self.value = runtime.as_numba(number.astype(np.float64) * 2.0**-52 - 1.0)

    def inputs(self, layout: CellLayout) -> list[RowInput]:
        value = RowInput(self.value)
        return [RowInput(None), value, value, value][: len(layout.columns)]

    def cells(self, layout: CellLayout) -> DeviceCells:
        return aggregate_rows(layout, self.inputs(layout), self.code, self.time, MINUTE, codes=self.keys)


def all_rows_are_in(cells: DeviceCells, rows: int) -> int:
    """How many cells there are. Raises if their counts are not those of so many rows."""
    count = to_host(cells.columns[0].values[0])
    if int(count.sum()) != rows or int(count.min()) < 1:
        raise AssertionError(f"the cells of {rows} rows count {int(count.sum())}, the least {int(count.min())}")
    return len(count)


def tumbling(keys: int, span: int = HOUR, most: int = 1 << 30) -> Callable[[argparse.Namespace, Tell], None]:
    """`most`: rows, where cells are nearly as many."""

    def run(options: argparse.Namespace, tell: Tell) -> None:
        for n in sizes(min(options.rows, most)):
            rows = Resident(n, min(keys, n), span)
            cells = all_rows_are_in(rows.cells(FIVE_AGGREGATES), n)
            seconds = timed(lambda rows=rows: rows.cells(FIVE_AGGREGATES))
            before = runtime.pool_stats()
            rows.cells(FIVE_AGGREGATES)
            after = runtime.pool_stats()
            grown = {"cells": cells, "pool_grew": after.allocations - before.allocations}
            tell(f"{n} rows", rate(n, seconds, **grown))
            del rows
            free()

    return run


def closed(rows: Resident, layout: CellLayout, grid: WindowGrid) -> int:
    """Cells, and all windows of them; returns rows emitted. Keys are codes already."""
    keys = KeyDictionary([pa.int64()])
    keys.encode([pa.array(np.arange(rows.keys))], rows.keys)
    state = DevicePaneState(layout, keys, PaneState.empty(layout, [pa.int64()]).heap)
    state = state.add(DeviceRun.of(layout, rows.cells(layout)))
    return sum(len(batch.code) for batch in state.closing_chunks(grid, None, None))


def sliding(options: argparse.Namespace, tell: Tell) -> None:
    for n in sizes(options.rows):
        rows = Resident(n, min(10_000, n), 6 * HOUR)
        plain = timed(lambda rows=rows: closed(rows, COUNT_SUM, WindowGrid(1, 1)), 3)
        tell(f"tumbling, count and sum, with its rows out, {n} rows", rate(n, plain))
        slid = timed(lambda rows=rows: closed(rows, COUNT_SUM, WindowGrid(60, 1)), 3)
        times = slid.median / plain.median
        tell(f"sliding 1 h / 1 min, with its rows out, {n} rows", rate(n, slid, times_tumbling=times))
        del rows
        free()


GAP = 30_000_000


def joined(state: DeviceSessionState, rows: Resident, room: int, in_order: bool = False) -> DeviceSessionState:
    """Rows cut into sessions, aggregated, and joined with the open ones; with room for so many proto-sessions.
    `in_order`: they are expected in the order of time, as they are.
    """
    span = Span(0, 6 * HOUR, 6 * HOUR + GAP)
    protos = cutting(rows.code, rows.time, GAP, False, rows.keys, span, in_order).protos(room)
    placed = PlacedRows(protos.slot, room, rows.time, (0, 0), span.most + 1)
    cells = started(COUNT_SUM, rows.inputs(COUNT_SUM), placed, dense=True)
    new = DeviceSessions(protos.code, protos.start, protos.last, protos.end, cells.all_records())
    begun = state.joining(new, protos.count, False)
    count, made, first_end, *_ = reading.read(protos.count, *begun.numbers, *cells.numbers)
    if int(count[0]) > room:
        return joined(state, rows, int(count[0]), in_order)
    return state.joined(begun, int(made[0]), int(first_end[0]), room)[0]


def sessions(options: argparse.Namespace, tell: Tell) -> None:
    """Rows into open sessions of a gap of 30 s, with a count and a sum: where there were none, where all of theirs were
    open, and what the half of them costs that closes.
    """
    for n in sizes(options.rows):
        rows, none = Resident(n, min(10_000, n), 6 * HOUR), DeviceSessionState.empty(COUNT_SUM)
        opened = joined(none, rows, min(n, 1 << 16))
        found = all_rows_are_in(DeviceCells(opened.open.start, opened.open.code, opened.open.columns), n)
        for name, state, in_order in (
            (", in any order", none, False),
            (", in order of time", none, True),
            (", in order, of sessions that are open", opened, True),
        ):
            seconds = timed(lambda s=state, r=rows, m=found, o=in_order: joined(s, r, m, o), 3)
            tell(f"{n} rows{name}", rate(n, seconds, sessions=found))
        closing = timed(lambda state=opened: state.close(3 * HOUR), 3)
        tell(f"{n} rows, half of their sessions close", rate(found, closing))
        del rows, none, opened, state
        free()


# -- rows that are on the host -----------------------------------------------------------------------------------------


def from_pinned(options: argparse.Namespace, tell: Tell) -> None:
    """Rows that begin in pinned host memory, beside the plain copy of as many bytes."""
    n = min(options.rows, 1 << 26)
    rng = np.random.default_rng(1)
    runtime.why_not()  # before the first memory, also if this is the first part of its process
    pinned = []
    for values in (np.arange(n) * HOUR // n, rng.integers(0, 10_000, n, dtype=np.int32), rng.random(n)):
        pinned.append(runtime.cuda.pinned_array(n, values.dtype))
        pinned[-1][:] = values
    stream = runtime.stream()

    def moved() -> list[Any]:
        arrays = [runtime.empty(n, host.dtype) for host in pinned]
        for array, host in zip(arrays, pinned, strict=True):
            array.copy_to_device(host, stream=stream)
        return arrays

    def work() -> DeviceCells:
        times, code, value = moved()
        item = RowInput(value)
        return aggregate_rows(FIVE_AGGREGATES, [RowInput(None), item, item, item], code, times, MINUTE, codes=10_000)

    all_rows_are_in(work(), n)
    plain, whole = timed(moved), timed(work)
    tell("plain copy", rate(n, plain))
    tell("copied and aggregated", rate(n, whole, share_of_copy=plain.median / whole.median))


def encoding(options: argparse.Namespace, tell: Tell) -> None:
    """Codes of 10,000 and of 1,000,000 keys that are known, of rows in host memory: integers, short and long text, and
    two columns; and the host's dictionary.
    """
    n = min(options.rows, 1 << 23)
    rng = np.random.default_rng(3)
    for count in sorted({min(n, 10_000), min(n, 1_000_000)}):
        numbers = rng.integers(0, count, n)
        short = pa.array([f"user-{k}" for k in range(count)]).take(pa.array(numbers))
        long = pa.array([f"/a/path/of/some/eighty/bytes/{k:050d}" for k in range(count)]).take(pa.array(numbers))
        for name, columns in {
            "int64": [pa.array(numbers)],
            "text of 11 bytes": [short],
            "text of 79 bytes": [long],
            "int64 and text of 11 bytes": [pa.array(numbers & 7), short],
        }.items():
            types = [column.type for column in columns]
            moved = sum(column.nbytes for column in columns)
            keys, host = DeviceKeyDictionary(types), KeyDictionary(types)

            def on_device(keys: DeviceKeyDictionary = keys, columns: list[pa.Array] = columns) -> None:
                found = keys.looked_up(columns, None)
                keys.finished(found, reading.read(*found.counters))

            seconds = timed(on_device, 3)
            tell(f"{name}, {count} keys", rate(n, seconds, bytes_per_s=moved / seconds.median))
            own = timed(lambda host=host, columns=columns: host.encode(columns, n), 3)
            if len(keys) != len(host):
                raise AssertionError(f"{len(keys)} keys of {name} on the device, {len(host)} on the host")
            tell(f"{name}, {count} keys, by the host", rate(n, own, bytes_per_s=moved / own.median))


def operator(options: argparse.Namespace, tell: Tell) -> None:
    """The public operator, Arrow in and Arrow out, on both devices: large batches, and what a small one costs."""
    small = runtime.simulated()
    large, little = min(options.rows, 1 << 24), min(options.rows, 1_000)
    for name, rows, batches in (("large", large, 4), ("small", little, 200), ("large, text keys", large // 4, 4)):
        count = 3 if small else batches
        rng = np.random.default_rng(2)
        named = pa.array(np.arange(min(10_000, rows)))
        if "text" in name:
            named = pa.array([f"user-{k:015d}" for k in range(len(named))])
        tables = [
            pa.table(
                {
                    "ts": pa.array(np.sort(rng.integers(0, MINUTE, rows)) + number * MINUTE).view(pa.timestamp("us")),
                    "key": named.take(pa.array(rng.integers(0, len(named), rows))),
                    "v": rng.random(rows),
                }
            )
            for number in range(count)
        ]
        aggregates = {"n": gw.count(), "s": gw.sum("v"), "lo": gw.min("v"), "hi": gw.max("v")}
        spec = gw.WindowedAggregation(
            window=gw.TumblingWindow("1 minute"), keys=["key"], time="ts", aggregates=aggregates,
            watermark=gw.BoundedOutOfOrderness("0 seconds"),
        )  # fmt: skip
        for device in ("cuda", "cpu"):
            op = spec.start(device=device)
            seconds, waited, launched = [], [], []
            for table in tables:
                before, kernels, began = runtime.waits(), runtime.launches(), time.perf_counter()
                op.process(table)
                seconds.append(time.perf_counter() - began)
                waited.append(runtime.waits() - before)
                launched.append(runtime.launches() - kernels)
            half = len(seconds) // 2
            counts = {"batches": len(seconds) - half, "waits": waited[half:][:8], "launches": launched[half:][:8]}
            tell(f"{name} batches, {device}", rate(rows, Times(seconds[half:]), **counts))


# -- beside others -----------------------------------------------------------------------------------------------------


def _beside(
    options: argparse.Namespace, tell: Tell, name: str, keys: int, work_on: Callable[[Resident], Callable[[], Any]]
) -> None:
    """The same rows, resident, by gpuwin and by another."""
    n = min(options.rows, 1 << 28)
    rows = Resident(n, min(keys, n), HOUR)
    work = work_on(rows)
    own = timed(lambda: rows.cells(FIVE_AGGREGATES), 3)
    tell(f"gpuwin, {keys} keys", rate(n, own))
    theirs = timed(work, 3)
    times = theirs.median / own.median
    tell(f"{name}, {keys} keys", rate(n, theirs, gpuwin_times_as_fast=times))


def against_cupy(options: argparse.Namespace, tell: Tell) -> None:
    """The same cells by CuPy: scatters into a dense table, which is its best formulation."""
    if runtime.simulated():
        tell("not run", "in the simulator")
        return
    import cupy
    import cupyx

    def scatters(rows: Resident) -> Callable[[], Any]:
        times, code, value = (runtime.as_cupy(x) for x in (rows.time, rows.code, rows.value))
        records = 60 * rows.keys

        def work() -> Any:
            cell = (times // MINUTE) * rows.keys + code
            count, total = cupy.bincount(cell, minlength=records), cupy.bincount(cell, value, minlength=records)
            least, most = cupy.full(records, np.inf), cupy.full(records, -np.inf)
            cupyx.scatter_min(least, cell, value)
            cupyx.scatter_max(most, cell, value)
            return count, total, least, most

        return work

    for keys in (10_000, 1_000_000):
        _beside(options, tell, "CuPy", keys, scatters)
        free()


def against_cudf(options: argparse.Namespace, tell: Tell) -> None:
    try:
        import cudf
    except ImportError:
        tell("not run", "cuDF is not installed")
        return

    def grouped(rows: Resident) -> Callable[[], Any]:
        columns = {"ts": rows.time, "key": rows.code, "v": rows.value}
        frame = cudf.DataFrame({name: runtime.as_cupy(column) for name, column in columns.items()})

        def work() -> Any:
            frame["w"] = frame["ts"] // MINUTE
            return frame.groupby(["w", "key"], sort=False).agg({"v": ["count", "sum", "min", "max"]})

        return work

    for keys in (10_000, 1_000_000):
        _beside(options, tell, "cuDF", keys, grouped)
        free()


RATES = {
    "walls": walls,
    "tumbling, 10,000 keys": tumbling(10_000),
    "sliding 1 h / 1 min": sliding,
    "tumbling, 1,000,000 keys": tumbling(1_000_000),
    "sessions": sessions,
    "codes of keys": encoding,
    "from pinned memory": from_pinned,
    "beside CuPy": against_cupy,
    "the operator": operator,
    "few cells": tumbling(100, 6 * MINUTE),
    "hashed, 1,000,000 keys over a day": tumbling(1_000_000, 24 * HOUR, 1 << 27),
    "beside cuDF": against_cudf,
}

"""The device against the CPU, for `gpu_check.py`: libraries' primitives against NumPy, and the public operator on fresh
random rows, in batches, for each shape of window.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from layouts import MINUTE

import gpuwin as gw
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin_kernels.cuda import primitives, runtime
from gpuwin_kernels.cuda.runtime import pool_stats, to_device, to_host, waits

HOUR = 60 * MINUTE
AGGREGATES = {
    "n": gw.count(),
    "total": gw.sum("v"),
    "mean": gw.mean("v"),
    "least": gw.min("v"),
    "most": gw.max("v"),
    "exact": gw.sum("i"),
}
IN_ORDER = AGGREGATES | {"spread": gw.std("w"), "first": gw.first("i"), "last": gw.last("v")}

TEXTS = {
    "least": gw.min("data"),
    "most": gw.max("name"),
    "lent": gw.max("lent"),
    "first": gw.first("name"),
    "last": gw.last("data"),
    "by": gw.max_by("name", "i"),
    "n": gw.count("name"),
}


# -- libraries ---------------------------------------------------------------------------------------------------------


def _sorts(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
    tell("by", "cuda.compute" if primitives._compute() is not None else "CuPy")
    rng = np.random.default_rng(options.seed)
    n = options.check_rows
    for bits in (1, 17, 40, 64):
        keys = rng.integers(0, 1 << bits, n, dtype=np.uint64)
        found, places = primitives.sort_pairs(to_device(keys), to_device(np.arange(n, dtype=np.int32)), bits)
        order = np.argsort(keys, kind="stable")
        assert np.array_equal(to_host(found), keys[order]), f"keys of {bits} bits"
        assert np.array_equal(to_host(places), order), f"places of {bits} bits: not stable"
        tell(f"{bits} bits", "equal")


def _scans(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
    rng = np.random.default_rng(options.seed)
    for n in (1, 511, 512, 513, options.check_rows):
        values = rng.integers(0, 1 << 30, n)
        expected = np.concatenate(([0], np.cumsum(values)))
        assert np.array_equal(to_host(primitives.exclusive_sum(to_device(values))), expected), f"sum of {n}"
        largest = primitives.running_max(to_device(values.astype(np.uint64)))
        assert np.array_equal(to_host(largest), np.maximum.accumulate(values)), f"maximum of {n}"
        flags = (values & 1).astype(np.uint8)
        assert np.array_equal(to_host(primitives.select(to_device(flags))), np.flatnonzero(flags)), f"select of {n}"
        tell(f"{n}", "equal")


def _copies(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
    """Many small and large copies, of memory that is overwritten at once, by several threads."""
    wrong: list[str] = []

    def copier(number: int) -> None:
        try:
            copy(number)
        except Exception as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    def copy(number: int) -> None:
        rng = np.random.default_rng([options.seed, number])
        kept = []
        largest = 1_000 if runtime.simulated() else 5_000_000
        for size in rng.integers(1, largest, 20).tolist() + [1] * 50:
            host = rng.integers(-(1 << 60), 1 << 60, size)
            kept.append((host.copy(), to_device(host)))
            host[:] = 0
        wrong.extend(f"{len(a)} values, thread {number}" for a, b in kept if not np.array_equal(a, to_host(b)))

    some = [threading.Thread(target=copier, args=(number,)) for number in range(4)]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()
    tell("threads", len(some))
    assert not wrong, wrong


def _dictionaries(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
    """Keys of a first batch, whose rows come to an empty table all at once: few keys need no larger one."""
    rng = np.random.default_rng(options.seed)
    n = options.check_rows
    for keys in (10, 400, n):
        index = rng.integers(0, keys, n)
        _, first, inverse = np.unique(index, return_index=True, return_inverse=True)
        expected = np.argsort(np.argsort(first))[inverse]
        for kind, column in (("numbers", pa.array(index)), ("texts", pa.array(index).cast(pa.string()))):
            dictionary = DeviceKeyDictionary([column.type])
            codes = dictionary.encode([column], n)
            assert np.array_equal(codes, expected), f"codes of {keys} {kind}"
            tell(f"{len(first)} {kind}", {"growths": dictionary.growths})
            assert dictionary.growths == 0 or keys == n, f"{keys} {kind} grew the table {dictionary.growths} times"


LIBRARIES = {"copies": _copies, "scans": _scans, "sorts": _sorts, "dictionaries": _dictionaries}


# -- the operator ------------------------------------------------------------------------------------------------------


def random_rows(rng: np.random.Generator, rows: int, keys: int, span: int) -> pa.Table:
    """Rows whose times grow from batch to batch and are out of order within one, with nulls. In one key of 8 a value of
    10 is NaN, a zero or an infinity: in all, a sum of any window would be NaN.
    """
    times = np.sort(rng.integers(-span // 2, span // 2, rows)) + rng.integers(-30_000_000, 30_000_000, rows)
    values, key = rng.normal(size=rows), rng.integers(0, keys, rows)
    special = rng.choice([np.nan, 0.0, -0.0, np.inf, -np.inf], rows)
    values = np.where((key % 8 == 0) & (rng.random(rows) < 0.1), special, values)
    return pa.table(
        {
            "ts": pa.array(times).view(pa.timestamp("us")),
            "key": pa.array(key, mask=rng.random(rows) < 0.01),
            "v": pa.array(values, mask=rng.random(rows) < 0.1),
            "w": rng.normal(size=rows),  # of moments with infinities the order of merges decides: NaN or an infinity
            "i": rng.integers(-(1 << 40), 1 << 40, rows),
            "gap": pa.array(rng.integers(-5, 60, rows) * 1_000_000).view(pa.duration("us")),
        }
    )


def differences(a: pa.Table, b: pa.Table) -> str | None:
    """What differs between two results, whose rows may come in any order; floats may in their last bits."""
    order = [(name, "ascending") for name in ("key", "part", "window_start", "window_end") if name in a.schema.names]
    a, b = a.sort_by(order), b.sort_by(order)
    if a.schema != b.schema or a.num_rows != b.num_rows:
        return f"{a.num_rows} rows on the CPU and {b.num_rows} on the device"
    for name in a.schema.names:
        x, y = a[name].combine_chunks(), b[name].combine_chunks()
        if pa.types.is_floating(x.type):
            if not x.is_null().equals(y.is_null()):
                return f"{name}: nulls differ"
            p, q = (np.asarray(z.fill_null(0.0)) for z in (x, y))
            if not np.allclose(p, q, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"{name}: differs by up to {np.nanmax(np.abs(p - q))}"
        elif not x.equals(y):
            return f"{name}: differs"
    return None


def _process(op: Any, part: pa.Table, apart: bool) -> pa.Table:
    """A batch; `apart`: in a thread of its own, as the batches of a partition come to the device service."""
    if not apart:
        return op.process(part)
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(op.process(part))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def named(table: pa.Table, dictionary: bool) -> pa.Table:
    """With strings for keys: plain, or each batch with a dictionary."""
    number = table.schema.get_field_index("key")
    names = table["key"].cast(pa.string())
    return table.set_column(number, "key", names.dictionary_encode() if dictionary else names)


def in_parts(table: pa.Table) -> pa.Table:
    """With a second key, of text, empty, long and null, and what is in a dictionary for a first."""
    parts = pa.array(["", "a part whose name is longer than a few words", None, "Zürich"])
    return named(table, dictionary=True).append_column("part", parts.take(pa.array(np.asarray(table["i"]) & 3)))


def with_texts(table: pa.Table) -> pa.Table:
    """With a text and bytes in each row: empty, null, with much that they begin with in common, some that come once."""
    i = np.asarray(table["i"])
    words = [b"", b"the same beginning ", b"the same beginning \xff\x00", "Zürich".encode(), b"z" * 100]
    data = pa.array([words[x % 5] + (b"%d" % (x % 1_000_003) if x & 8 else b"") for x in i.tolist()], pa.binary())
    name = pa.array([f"name {x % 4_999}" for x in i.tolist()], mask=(i & 15) == 3)
    return table.append_column("data", data).append_column("name", name).append_column("lent", name.dictionary_encode())


def in_minutes(table: pa.Table) -> pa.Table:
    """Each row with the minute that it is in, as windows come from upstream."""
    start = np.asarray(table["ts"]).astype(np.int64) // MINUTE * MINUTE
    for name, at in (("window_start", start), ("window_end", start + MINUTE)):
        table = table.append_column(name, pa.array(at).view(pa.timestamp("us")))
    return table


def passing(table: pa.Table) -> pa.Table:
    """With other keys every five minutes, so that far more than the 4,096 that are never looked for are dead."""
    five = np.asarray(table["ts"]).astype(np.int64) // (5 * MINUTE)
    key = pa.array(np.asarray(table["i"]) % 10_000 + five * 10_000)
    return table.set_column(table.schema.get_field_index("key"), "key", key)


def with_decimals(table: pa.Table) -> pa.Table:
    """With an exact decimal of 8 and one of 16 bytes in each row, null in some."""
    whole = table["i"].cast(pa.decimal128(19, 0))
    small, wide = whole.cast(pa.decimal128(22, 3)), whole.cast(pa.decimal128(38, 10))
    null = pa.array(np.asarray(table["i"]) & 15 == 3)
    for name, column in (("small", small), ("wide", wide)):
        table = table.append_column(name, pc.if_else(null, pa.scalar(None, column.type), column))
    return table


def _joined(spec: Any, most: int) -> Callable[..., None]:
    """A comparison of a join on both devices, batch by batch; in the middle each goes on from the other's snapshot."""

    def run(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
        rng = np.random.default_rng(options.seed)
        rows, batches = min(options.check_rows, most), 4
        host, device, out, asked = spec.start(device="cpu"), spec.start(device="cuda"), 0, waits()
        for number in range(batches):
            sides = {}
            for side in ("left", "right"):
                time = np.sort(rng.integers(0, HOUR // 12, rows // batches)) + number * (HOUR // 12)
                key = pa.array(rng.integers(0, max(rows // 20, 2), len(time)), mask=rng.random(len(time)) < 0.01)
                at = pa.array(time + rng.integers(-MINUTE, MINUTE, len(time))).view(pa.timestamp("us"))
                sides[side] = pa.table({"k": key, f"{side}_at": at, side: rng.integers(0, 1 << 40, len(time))})
            expected, found = host.process(**sides), device.process(**sides)
            out += expected.num_rows
            assert found.equals(expected), f"seed {options.seed}, batch {number}: pairs differ"
            if number == 1:
                host, device = spec.restore(device.snapshot(), "cpu"), spec.restore(host.snapshot(), "cuda")
        expected = host.finish()
        assert device.finish().equals(expected), f"seed {options.seed}: what is left differs"
        tell("rows_out", out + expected.num_rows)
        tell("waits", waits() - asked)
        assert out, "nothing was compared"
        assert waits() > asked, "the device was never asked"

    return run


def case(
    window: Any,
    keys: int,
    span: int,
    emit: Any = None,
    apart: bool = False,
    made: Callable[[pa.Table], pa.Table] = lambda table: table,
    most: int = 2_000_000,
    moves: bool = False,
    **more: Any,
) -> Callable[..., None]:
    """A comparison of the operator on both devices, batch by batch, with rows that are late. `made`: of the rows.
    `most`: so many rows at most. `moves`: after two batches each operator goes on from the snapshot of the other.
    """

    def run(options: argparse.Namespace, tell: Callable[[str, Any], None]) -> None:
        rng = np.random.default_rng([options.seed, keys])
        rows, small = min(options.check_rows, most), runtime.simulated()
        table = made(random_rows(rng, rows, min(keys, rows), span))
        settings = {"aggregates": AGGREGATES, "watermark": gw.BoundedOutOfOrderness("10 seconds")} | more
        by = [name for name in ("key", "part") if name in table.schema.names]
        spec = gw.WindowedAggregation(window=window, keys=by, time="ts", emit=emit or gw.OnClose(), **settings)
        host, device = spec.start(device="cpu"), spec.start(device="cuda")
        batches = 3 if small else 8
        size = -(-rows // batches)
        rows_out = 0
        batches: dict[str, list[float]] = {"rows_out": [], "waits": [], "seconds": [], "pool_grew": []}
        for number, at in enumerate([*range(0, rows, size), -1]):
            before, grown, began = waits(), pool_stats().allocations, time.perf_counter()
            part = None if at < 0 else table.slice(at, size)
            found = device.finish() if part is None else _process(device, part, apart)
            seconds = time.perf_counter() - began
            expected = host.finish() if part is None else host.process(part)
            rows_out += expected.num_rows
            wrong = differences(expected, found)
            if wrong:
                raise AssertionError(f"seed {options.seed}, batch {number}: {wrong}")
            for name, value in (
                ("rows_out", expected.num_rows),
                ("waits", waits() - before),
                ("seconds", round(seconds, 4)),
                ("pool_grew", pool_stats().allocations - grown),
            ):
                batches[name].append(value)
            tell("batches", batches)
            if moves and number == 1:
                host, device = spec.restore(device.snapshot(), "cpu"), spec.restore(host.snapshot(), "cuda")
        tell("rows_out", rows_out)
        tell("key_growths", device.metrics.key_growths)
        for name in ("rows_late", "window_rows_late", "rows_unassigned"):
            on_each = getattr(host.metrics, name), getattr(device.metrics, name)
            tell(name, on_each)
            assert on_each[0] == on_each[1], f"{name}: {on_each[0]} on the CPU and {on_each[1]} on the device"
        assert rows_out, "nothing was compared"

    return run


_BY_ROW = gw.Semantics(watermark_advance="row")
_MINUTE = gw.TumblingWindow("1 minute")
CASES = {
    "tumbling, 10,000 keys": case(_MINUTE, 10_000, HOUR),
    "tumbling, few cells": case(gw.TumblingWindow("10 minutes"), 20, HOUR),
    "tumbling, sparse": case(gw.TumblingWindow("1 second"), 1_000_000, 24 * HOUR),
    "tumbling, string keys": case(_MINUTE, 10_000, HOUR, made=partial(named, dictionary=False)),
    "tumbling, dictionary keys": case(_MINUTE, 10_000, HOUR, made=partial(named, dictionary=True)),
    "tumbling, keys of two columns": case(_MINUTE, 1_000, HOUR, made=in_parts),
    "sliding 1 h / 1 min": case(gw.SlidingWindow("1 hour", "1 minute"), 1_000, 6 * HOUR),
    "sessions, gap 30 s": case(gw.SessionWindow("30 seconds"), 1_000, 6 * HOUR),
    "sessions, gap per row": case(gw.SessionWindow(gw.column("gap")), 1_000, 6 * HOUR, gw.OnUpdate()),
    "sessions, first and last": case(
        gw.SessionWindow("30 seconds"), 1_000, 6 * HOUR, aggregates=IN_ORDER, allowed_lateness="2 minutes"
    ),
    "sessions, complete": case(gw.SessionWindow("30 seconds"), 100, HOUR, gw.Complete()),
    "a thread for each batch": case(_MINUTE, 1_000, HOUR, apart=True),
    "moments, first and last": case(gw.TumblingWindow("10 minutes"), 1_000, HOUR, aggregates=IN_ORDER),
    "texts": case(_MINUTE, 1_000, HOUR, aggregates=TEXTS, made=with_texts),
    "texts, sliding, on update": case(
        gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, gw.OnUpdate(), aggregates=TEXTS, made=with_texts
    ),
    "texts, sessions": case(gw.SessionWindow("30 seconds"), 1_000, 6 * HOUR, aggregates=TEXTS, made=with_texts),
    "sliding, on update": case(gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, gw.OnUpdate()),
    "cumulative": case(gw.CumulativeWindow("1 hour", "5 minutes"), 100, 3 * HOUR),
    "global, complete": case(gw.GlobalWindow(), 1_000, HOUR, gw.Complete()),
    "gaps": case(gw.SlidingWindow("1 minute", "3 minutes"), 1_000, HOUR),
    "a watermark that moves with each row": case(_MINUTE, 1_000, HOUR, semantics=_BY_ROW),
    "the same, sliding, late by time": case(
        gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, semantics=gw.Semantics.AKKA
    ),
    "from upstream": case(gw.InheritedWindow(), 1_000, HOUR, made=in_minutes),
    "allowed lateness": case(_MINUTE, 1_000, HOUR, allowed_lateness="2 minutes"),
}

_FEW = 200_000
_SKETCHES = {"different": gw.approx_count_distinct("i"), "middle": gw.approx_quantile("w", 0.5), "n": gw.count()}
_BITS = {"both": gw.bit_and("i"), "either": gw.bit_or("i"), "odd": gw.bit_xor("i")}
_SHAPES = {"skewness": gw.skewness("w"), "kurtosis": gw.kurtosis("w"), "corr": gw.corr("w", "i"), "n": gw.count()}
_DECIMALS = {
    name: make(column)
    for column in ("small", "wide")
    for name, make in ((f"sum of {column}", gw.sum), (f"least {column}", gw.min), (f"most {column}", gw.max))
}


@gw.accumulation
class _Reach:
    """The sum, the largest distance to zero, and a count: floats and whole numbers."""

    state = {"total": 0.0, "furthest": 0.0, "n": 0}  # noqa: RUF012 - the form that gw.accumulation asks for

    def add(total, furthest, n, x):  # type: ignore[no-untyped-def]
        return total + x, max(furthest, abs(x)), n + 1

    def merge(total, furthest, n, total2, furthest2, n2):  # type: ignore[no-untyped-def]
        return total + total2, max(furthest, furthest2), n + n2

    def result(total, furthest, n):  # type: ignore[no-untyped-def]
        return total / n + furthest


_JOINED_BY = {"keys": ["k"], "left_time": "left_at", "right_time": "right_at"}
MORE_CASES = {
    "from snapshots of the other device": case(_MINUTE, 1_000, HOUR, most=_FEW, moves=True),
    "texts, from snapshots": case(
        _MINUTE, 1_000, HOUR, aggregates=TEXTS, made=lambda t: in_parts(with_texts(t)), most=_FEW, moves=True
    ),
    "sessions, from snapshots": case(gw.SessionWindow("30 seconds"), 1_000, 6 * HOUR, most=_FEW, moves=True),
    "keys that die": case(_MINUTE, 10_000, HOUR, made=passing, most=_FEW),
    "keys that die, of sessions": case(gw.SessionWindow("30 seconds"), 10_000, HOUR, made=passing, most=_FEW),
    "a user's accumulation": case(
        gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, aggregates={"own": _Reach("w")}, most=_FEW
    ),
    "median beside cells": case(_MINUTE, 1_000, HOUR, aggregates=AGGREGATES | {"median": gw.median("w")}, most=_FEW),
    "decimals": case(_MINUTE, 1_000, HOUR, aggregates=_DECIMALS, made=with_decimals, most=_FEW),
    "bits": case(gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, aggregates=_BITS, most=_FEW),
    "sketches": case(gw.TumblingWindow("10 minutes"), 100, HOUR, aggregates=_SKETCHES, most=_FEW),
    "skewness and correlation": case(gw.TumblingWindow("10 minutes"), 1_000, HOUR, aggregates=_SHAPES, most=_FEW),
    "join by interval": _joined(
        gw.IntervalJoin(**_JOINED_BY, lower="-10 seconds", upper="10 seconds", how="full"), _FEW
    ),
    "join by window": _joined(gw.WindowJoin(**_JOINED_BY, window=_MINUTE, how="full"), _FEW),
}
SANITIZED_CASES = ("tumbling, string keys", "sliding, on update", "sessions, gap 30 s", "texts", "decimals")
"""Cases that compute-sanitizer looks at, of few rows."""

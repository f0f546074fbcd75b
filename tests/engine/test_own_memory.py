"""What the engine keeps of a batch, and what it returns, is in memory of its own: a source may fill one buffer again
and again, and a user may go on with a frame of his.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.engines import closing_panes

SECOND = 1_000_000
WINDOWS = {
    "tumbling": gw.TumblingWindow("10 seconds"),
    "of a microsecond": gw.TumblingWindow("1 microsecond"),
    "sliding": gw.SlidingWindow("30 seconds", "10 seconds"),
    "with gaps": gw.SlidingWindow("10 seconds", "15 seconds"),
    "cumulative": gw.CumulativeWindow("1 minute", "10 seconds"),
    "global": gw.GlobalWindow(),
    "session": gw.SessionWindow("5 seconds"),
}
EARLY = gw.EveryRows(2)
KINDS: dict[str, dict[str, Any]] = {
    "closing": {},
    "updates": {"emit": gw.OnUpdate()},
    "changes": {"emit": gw.OnChange()},
    "complete": {"emit": gw.Complete()},
    "each row": {"emit": gw.EveryRow()},
    "early": {"emit": gw.Trigger(early=EARLY)},
    "retracting": {"emit": gw.Trigger(early=EARLY), "accumulation": "retracting"},
    "evicting": {"emit": gw.Trigger(early=EARLY, evict=gw.KeepLast(3))},
    "lateness": {"allowed_lateness": "20 seconds", "collect_late": True},
    "late rows": {"collect_late": True},
    "a watermark per key": {"semantics": gw.Semantics(watermark_scope="key")},
    "a watermark that moves by rows": {"semantics": gw.Semantics(watermark_advance="row")},
}
AGGREGATES = {
    "cells": {
        "n": gw.count(),
        "sum": gw.sum("v"),
        "text": gw.max("s"),
        "first": gw.first("v"),
        "best": gw.max_by("v", "f"),
    },
    "rows": {"median": gw.median("f"), "top": gw.top_k("v", 3), "list": gw.collect_list("s"), "n": gw.histogram("v")},
    "sketches": {"q": gw.approx_quantile("f", 0.5), "d": gw.approx_count_distinct("v")},
}
Buffers = dict[str, np.ndarray]


def buffers(seed: int, ordered: bool) -> list[Buffers]:
    """Batches of a few rows; ordered: each row is a cell of its own, and they come in the order of cells."""
    rng = np.random.default_rng(seed)
    out = []
    for k in range(10):
        n = int(rng.integers(1, 9))
        time = rng.integers(k * 4, k * 4 + 12, n) * SECOND
        out.append(
            {
                "ts": np.sort(time) if ordered else time,
                "key": np.arange(n) % 4 if ordered else rng.integers(0, 4, n),
                "v": rng.integers(0, 50, n),
                "f": rng.normal(size=n),
                "s": np.frombuffer(b"".join(b"%03d" % x for x in rng.integers(0, 99, n)), np.uint8).copy(),
                "index": np.arange(n, dtype=np.int32),
            }
        )
    return out


def table(b: Buffers, dictionary: bool) -> pa.Table:
    """Arrow data over the buffers, none of which is copied."""
    n = len(b["ts"])
    key = pa.array(b["key"])
    bounds = pa.py_buffer(np.arange(n + 1, dtype=np.int32) * 3)
    return pa.table(
        {
            "ts": pa.array(b["ts"]).view(pa.timestamp("us")),
            "key": pa.DictionaryArray.from_arrays(pa.array(b["index"]), key) if dictionary else key,
            "v": pa.array(b["v"]),
            "f": pa.array(b["f"]),
            "s": pa.Array.from_buffers(pa.string(), n, [None, bounds, pa.py_buffer(b["s"])]),
        }
    )


def overwrite(b: Buffers) -> None:
    for name, array in b.items():
        array[:] = {"ts": 7, "key": 9, "v": -1, "f": -5.0, "s": 120, "index": 0}[name]


def results(spec: gw.WindowedAggregation, stream: list[Buffers], dictionary: bool, overwritten: bool) -> list[Any]:
    op = spec.start(device="cpu")
    out = []
    for given in stream if not spec.collect_late else [*stream, stream[0]]:  # which is late for windows that close
        batch = {name: array.copy() for name, array in given.items()}
        out.append(op.process(table(batch, dictionary)))
        if overwritten:
            overwrite(batch)
    if spec.collect_late:
        out.append(op.late_rows())
        assert out[-1].num_rows or isinstance(spec.window, gw.GlobalWindow) or spec.allowed_lateness
    return [found.to_pylist() for found in (*out, op.finish())]


def encoded(numbers: np.ndarray) -> dict[str, pa.Array]:
    """Values in dictionaries over the numbers, which are not copied, at any depth."""
    n = len(numbers)
    bounds = pa.array(np.arange(n + 1, dtype=np.int32))
    codes = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32)), pa.array(numbers))
    few = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int8)), pa.array(np.repeat(numbers, 8)), ordered=True)
    return {
        "dictionary": codes,
        "few of many": few,
        "struct": pa.StructArray.from_arrays([codes], ["x"]),
        "list": pa.ListArray.from_arrays(bounds, codes),
        "map": pa.MapArray.from_arrays(bounds, pa.array(np.arange(n)), codes),
        "map of maps": pa.MapArray.from_arrays(
            bounds, pa.array(np.arange(n)), pa.MapArray.from_arrays(bounds, pa.array(np.arange(n)), codes)
        ),
        "extension": pa.ExtensionArray.from_storage(pa.opaque(codes.type, "number", "here"), codes),
    }


ENCODED = list(encoded(np.arange(2)))


@pytest.mark.parametrize("column", ENCODED)
def test_dictionaries_of_late_rows(column: str) -> None:
    window = gw.TumblingWindow("10 seconds")
    op = gw.WindowedAggregation(window=window, time="ts", aggregates={"n": gw.count()}, collect_late=True).start()
    numbers = np.array([5, 6, 7])
    values = encoded(numbers)[column]
    wanted = values.to_pylist()
    op.process(pa.table({"ts": pa.array([100 * SECOND], pa.timestamp("us")), "c": values[:1]}))
    op.process(pa.table({"ts": pa.array([1, 101 * SECOND, 2], pa.timestamp("us")), "c": values}))
    numbers[:] = -1
    late = op.late_rows()
    assert late["c"].to_pylist() == [wanted[0], wanted[2]]
    late.validate(full=True)
    if pa.types.is_dictionary(values.type):
        assert late["c"].type == values.type
        assert len(late["c"].chunk(0).dictionary) <= len(numbers)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("column", [name for name in ENCODED if name != "extension"])  # which is not collected
def test_dictionaries_of_kept_rows(column: str, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing_panes, "AT_ONCE", 0 if waits else 1 << 62)
    window = gw.TumblingWindow("10 seconds") if waits else gw.SlidingWindow("10 seconds", "5 seconds")
    op = gw.WindowedAggregation(window=window, time="ts", aggregates={"c": gw.collect_list("c")}).start(device="cpu")
    wanted = []
    for k in range(2):
        numbers = np.array([5, 6, 7]) + 10 * k
        values = encoded(numbers)[column]
        wanted += values.to_pylist()
        op.process(pa.table({"ts": pa.array([k] * 3, pa.timestamp("us")), "c": values}))
        numbers[:] = -1
    assert op.finish()["c"].to_pylist() == [wanted] * (1 if waits else 2)


NONE = {("global", "changes"), ("session", "changes"), ("session", "evicting")}
"""Windows that there are not of such a kind."""
OF_ALL = {"closing", "updates", "each row", "early"}
"""Kinds that are tested with all windows. Of the others `-m sweep` tests the windows that share their engine's code."""


def case(window: str, kind: str) -> Any:
    every_kind = kind in OF_ALL or window in ("tumbling", "of a microsecond", "session")
    return pytest.param(window, kind, marks=() if every_kind else pytest.mark.sweep)


@pytest.mark.parametrize(("window", "kind"), [case(w, k) for w in WINDOWS for k in KINDS if (w, k) not in NONE])
def test_buffers_that_are_filled_again(window: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Any] = {"window": WINDOWS[window], "keys": ["key"], "time": "ts", **KINDS[kind]}
    late = gw.BoundedOutOfOrderness("3 seconds")
    for aggregates in AGGREGATES.values():
        spec = gw.WindowedAggregation(aggregates=aggregates, watermark=late, **common)
        for ordered, waits, dictionary in [(True, False, True), (False, True, True)]:
            monkeypatch.setattr(closing_panes, "AT_ONCE", 0 if waits else 1 << 62)
            monkeypatch.setattr("gpuwin.batch.pane_cells.AT_ONCE", 1 if waits else 1 << 62)
            stream = buffers(5, ordered)
            wanted = results(spec, stream, dictionary, False)
            assert repr(results(spec, stream, dictionary, True)) == repr(wanted)


@pytest.mark.parametrize("join", ["interval", "window"])
def test_joins(join: str) -> None:
    spec: Any = (
        gw.IntervalJoin(["key"], "ts", "ts", "-5 seconds", "5 seconds", how="full")
        if join == "interval"
        else gw.WindowJoin(gw.TumblingWindow("10 seconds"), ["key"], "ts", "ts", how="full")
    )
    found = []
    for overwritten in (False, True):
        op = spec.start()
        out = []
        for left, right in zip(buffers(1, True), buffers(2, False), strict=True):
            for side, batch in (("left", left), ("right", right)):
                out.append(op.process(**{side: table(batch, True)}))
                if overwritten:
                    overwrite(batch)
        found.append(repr([rows.to_pylist() for rows in (*out, op.finish())]))
    assert found[0] == found[1]


def test_a_frame_that_its_owner_goes_on_with() -> None:
    frame = pd.DataFrame(
        {"t": pd.to_datetime([1, 2, 3], unit="s").astype("datetime64[us]"), "k": [1, 2, 3], "v": [10, 20, 30]}
    )
    window = gw.TumblingWindow("10 seconds")
    op = gw.WindowedAggregation(window=window, keys=["k"], time="t", aggregates={"s": gw.sum("v")}).start(device="cpu")
    op.process(frame)
    frame.loc[:, "v"] = 0
    assert op.finish()["s"].to_pylist() == [10, 20, 30]


def test_a_dictionary_that_is_filled_again_is_another_dictionary() -> None:
    window = gw.TumblingWindow("10 seconds")
    op = gw.WindowedAggregation(window=window, keys=["k"], time="t", aggregates={"n": gw.count()}).start(device="cpu")
    names = np.array([1, 2, 3])
    for k in range(3):
        names[:] = [10 * k, 10 * k + 1, 10 * k + 2]
        keys = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(names))
        op.process(pa.table({"t": pa.array([0, 0, 0], pa.timestamp("us")), "k": keys}))
    assert sorted(op.finish()["k"].to_pylist()) == [0, 1, 2, 10, 11, 12, 20, 21, 22]

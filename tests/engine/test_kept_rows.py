"""Rows that are not kept, for aggregates that look at some rows of a cell only: results are those of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import gpuwin as gw
from gpuwin.planning.plan import Plan
from gpuwin.state.rows import row_state
from gpuwin_kernels import tuning

SECOND = 1_000_000
ROWS = 300
WINDOWS: dict[str, Any] = {
    "tumbling": gw.TumblingWindow("20 seconds"),
    "sliding": gw.SlidingWindow("30 seconds", "10 seconds"),
    "cumulative": gw.CumulativeWindow("40 seconds", "10 seconds"),
    "session": gw.SessionWindow("1 second"),
    "global": gw.GlobalWindow(),
}
EMITS: dict[str, dict[str, Any]] = {
    "close": {},
    "late": {"allowed_lateness": "15 seconds"},
    "update": {"emit": gw.OnUpdate()},
    "complete": {"emit": gw.Complete()},
    "change": {"emit": gw.OnChange()},
    "each row": {"emit": gw.EveryRow()},
    "accumulating": {"emit": gw.Trigger(early=gw.EveryRows(7)), "accumulation": "accumulating"},
    "discarding": {"emit": gw.Trigger(early=gw.EveryRows(7)), "accumulation": "discarding"},
    "retracting": {
        "emit": gw.Trigger(early=gw.EveryEventTime("5 seconds"), late=gw.EveryRows(1)),
        "accumulation": "retracting",
        "allowed_lateness": "15 seconds",
    },
}
NONE = {("session", "change"), ("global", "change"), ("global", "late"), ("global", "retracting")}
AGGREGATES = {
    "one column": {"n": gw.count_distinct("i"), "about": gw.approx_count_distinct("i"), "set": gw.collect_set("i")},
    "floats": {"n": gw.count_distinct("f"), "set": gw.collect_set("f"), "rows": gw.count()},
    "largest": {"top": gw.top_k("f", 2), "most": gw.top_k("f", 5)},
    "nulls": {"top": gw.top_k("i", 3), "rows": gw.count()},
    "texts": {"top": gw.top_k("s", 1)},
    "two columns": {"n": gw.count_distinct("s"), "set": gw.collect_set("i"), "lists": gw.count_distinct("list")},
}


def stream(seed: int) -> pa.Table:
    """Rows of few values, some null, up to 8 seconds out of order."""
    rng = np.random.default_rng(seed)
    time = np.sort(rng.integers(0, 100 * SECOND, ROWS))
    time = time[np.argsort(time + rng.integers(0, 12 * SECOND, ROWS), kind="stable")]
    number = rng.integers(0, 4, ROWS)
    floats = np.array([0.0, -0.0, np.nan, 1.5])[number]
    some = rng.random(ROWS) < 0.2
    return pa.table(
        {
            "ts": pa.array(time).view(pa.timestamp("us")),
            "key": rng.integers(0, 3, ROWS),
            "i": pa.array(number, mask=some),
            "f": pa.array(floats),
            "s": pa.array([f"text {k}" for k in rng.integers(0, 3, ROWS)], mask=some),
            "list": pa.array([[int(k)] * int(k) for k in number]),
        }
    )


def results(spec: gw.WindowedAggregation, table: pa.Table, size: int) -> tuple[list[Any], int]:
    """Rows of each batch, with a restart in the middle, and the most bytes that the state had after the second half."""
    op = spec.start(device="cpu", schema=table.schema)
    found, held = [], 0
    for at in range(0, len(table), size):
        if at <= len(table) // 2 < at + size:
            op = spec.restore(op.snapshot(), device="cpu")
        found.append(op.process(table.slice(at, size)).to_pylist())
        if at > len(table) // 2:
            held = max(held, op.metrics.state_bytes)
    return [*found, op.finish().to_pylist()], held


def case(window: str, emit: str, order: str) -> Any:
    """By arrival, and what differs by window; `-m sweep` the others."""
    usual = order == "arrival" and (window == "tumbling" or emit == "update" or (window, emit) == ("session", "late"))
    return pytest.param(window, emit, order, marks=() if usual else pytest.mark.sweep)


@pytest.mark.parametrize(
    ("window", "emit", "order"),
    [case(w, e, o) for w in WINDOWS for e in EMITS for o in ("arrival", "time") if (w, e) not in NONE],
)
def test_results_are_those_of_all_rows(window: str, emit: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_state, "WAITING_ROWS", 100)
    monkeypatch.setattr(tuning, "CROWDED_CELL", 1)
    for seed, (name, aggregates) in enumerate(AGGREGATES.items()):
        spec = gw.WindowedAggregation(
            window=WINDOWS[window],
            keys=["key"],
            time="ts",
            aggregates=aggregates,
            watermark=gw.BoundedOutOfOrderness("8 seconds"),
            semantics=gw.Semantics(order=order),
            **EMITS[emit],
        )
        table = stream(seed)
        found = [results(spec, table, size)[0] for size in (17, ROWS)]
        with monkeypatch.context() as kept:
            kept.setattr(Plan, "kept_rows", None)
            wanted = [results(spec, table, size)[0] for size in (17, ROWS)]
        assert repr(found) == repr(wanted), name


@pytest.mark.parametrize("emit", ["close", "update", "complete", "each row", "accumulating"])
@pytest.mark.parametrize("aggregates", ["one column", "largest"])
def test_the_state_does_not_grow_with_such_rows(emit: str, aggregates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_state, "WAITING_ROWS", 100)
    monkeypatch.setattr(tuning, "CROWDED_CELL", 1)
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 day"), keys=["key"], time="ts", aggregates=AGGREGATES[aggregates], **EMITS[emit]
    )
    table = stream(3)
    long = pa.concat_tables([table] * 8)
    assert results(spec, long, 60)[1] < 1.5 * results(spec, table, 60)[1]


def test_all_rows_are_kept_where_an_aggregate_or_an_evictor_reads_them() -> None:
    def kept(**more: Any) -> bool:
        spec = gw.WindowedAggregation(window=gw.TumblingWindow("1 day"), time="ts", **more)
        return bool(spec.start(device="cpu", schema=stream(0).schema)._plan.kept_rows is None)  # type: ignore[union-attr]

    different = {"n": gw.count_distinct("i")}
    assert not kept(aggregates=different)
    assert not kept(aggregates={"a": gw.top_k("i", 3), "b": gw.top_k("i", 1), "c": gw.sum("i")})
    assert kept(aggregates={"a": gw.top_k("i", 3), "b": gw.top_k("f", 1)})
    assert kept(aggregates={**different, "a": gw.top_k("i", 3)})
    assert kept(aggregates={**different, "m": gw.median("i")})
    assert kept(aggregates={**different, "h": gw.histogram("i")})
    assert kept(aggregates=different, emit=gw.Trigger(early=gw.EveryRows(2), evict=gw.KeepLast(3)))


@pytest.mark.parametrize("emit", [gw.OnClose(), gw.OnUpdate(), gw.Trigger()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize(("size", "slide"), [(1, 1), (3, 1), (3, 2), (2, 3)])
def test_rows_at_the_smallest_times_are_in_the_windows_that_count_them(
    size: int, slide: int, offset: int, emit: Any
) -> None:
    """Also those of a microsecond, which have no number for the smallest time."""
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow(*(np.timedelta64(part, "us") for part in (size, slide, offset))),
        time="time",
        aggregates={"n": gw.count(), "times": gw.collect_list("time")},
        watermark=gw.BoundedOutOfOrderness("0 seconds"),
        emit=emit,
    )
    op, found = spec.start(), []
    for times in ([0, 1], [0, 2, 5], [40]):
        time = pa.array([time - (1 << 63) for time in times], pa.int64()).view(pa.timestamp("us"))
        found += [op.process(pa.table({"time": time}))]
    counts = pa.concat_tables([*found, op.finish()])
    assert counts["n"].to_pylist() == pc.list_value_length(counts["times"]).to_pylist()
    assert pc.sum(counts["n"]).as_py()

"""The other kinds of cases: pure assignment, watermarks, sessions, chains, timers, accumulations, comparisons of
systems."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cases_accumulate import run_accumulate
from cases_joins import run_join
from cases_runner import DIALECTS, aggregate_of, run_window_agg, same, span, table_of, value_type, window_of

import gpuwin as gw

INT = {"value": pa.int64()}


def bounds(table: pa.Table, unit: int = 1_000) -> list[list[int]]:
    columns = [table.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    return sorted([start // unit, end // unit] for start, end in zip(*columns, strict=True))


def run_assign(case: dict[str, Any]) -> None:
    unit = 1 if case.get("unit") == "us" else 1_000
    spec = gw.WindowedAggregation(
        window=window_of(case["window"], unit),
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.ExplicitWatermark(),
    )
    for event, expected in zip(case["events"], case["expected"], strict=True):
        found = bounds(gw.aggregate(table_of([{"ts_ms": event}], unit, INT), spec), unit)
        if case["kind"] == "assign_start":
            assert [start for start, _ in found] == [expected]
        else:
            assert found == sorted(expected)


def run_watermark(case: dict[str, Any]) -> None:
    w = case["watermark"]
    mode = w["mode"]
    semantics = DIALECTS[case["dialect"]]
    if "initial_ms" in w:
        semantics = replace(semantics, watermark_start=w["initial_ms"] * 1_000)
    now = [0]
    rules: dict[str, Any] = {
        "bounded": lambda: gw.BoundedOutOfOrderness(span(w["delay_ms"])),
        "bounded_plus_system_time": lambda: gw.EventClock(span(w["delay_ms"])),
        "min_of_inputs": lambda: gw.MultipleInputs([gw.ExplicitWatermark()] * w["inputs"]),
        "multi_source": lambda: gw.MultipleInputs(
            [gw.BoundedOutOfOrderness(span(d)) for d in w["delays_ms"]], policy=w["policy"]
        ),
    }
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 second"),
        time="time",
        aggregates={"n": gw.count()},
        watermark=rules[mode](),
        semantics=semantics,
    )
    op = spec.start(clock=lambda: now[0])

    def rows(times: list[int], source: int = 0) -> None:
        op.process(table_of([{"ts_ms": t} for t in times], 1_000, INT), source=source)

    def told() -> int | None:
        return None if op.watermark is None else op.watermark // 1_000

    if "events" in case:
        for event, expected in zip(case["events"], case["expected"], strict=True):
            rows([event])
            assert told() == expected
        return
    emitted, before = 0, told()
    for step, expected in zip(case["steps"], case["expected"], strict=True):
        late = op.metrics.rows_late
        if "now_ms" in step:
            now[0] = step["now_ms"] * 1_000
            rows([])
            if "current_ms" in expected:
                assert told() == expected["current_ms"]
            rows([step["ts_ms"]] if "ts_ms" in step else [])
            if "late" in expected:
                assert (op.metrics.rows_late > late) == expected["late"]
        elif "sources" in step:
            for source, times in enumerate(step["sources"]):
                rows(times, source)
        else:
            op.advance_watermark(step["wm_ms"] * 1_000, source=step["input"])
        assert told() == expected["wm_ms"]
        emitted += told() != before
        before = told()
        if "emitted" in expected:
            assert emitted == expected["emitted"]


def run_session_merge(case: dict[str, Any]) -> None:
    """Intervals [start, end] as rows at their start, with their length and the gap as the gap of the row."""
    gap = case["window"]["gap_ms"]
    inclusive = case.get("touch", "inclusive") == "inclusive"
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow(gw.column("gap")),
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.ExplicitWatermark(),
        semantics=gw.Semantics(session_touch="merge" if inclusive else "split"),
    )
    events = [{"ts_ms": start, "gap_ms": end - start + gap} for start, end in case["input"]]
    found = bounds(gw.aggregate(table_of(events, 1_000, INT), spec))
    back = gap if case.get("end_rule") == "last_event" else 0
    assert [[start, end - back] for start, end in found] == sorted(case["expected"])


def run_stateful(case: dict[str, Any]) -> None:
    aggregates = {"running_average": gw.mean, "running_sum": gw.sum, "running_count": gw.count, "list": gw.collect_list}
    spec = gw.WindowedAggregation(
        window=gw.GlobalWindow(),
        keys=["key"],
        time="time",
        aggregates={"value": aggregates[case["op"]]("value")},
        watermark=gw.ExplicitWatermark(),
        emit=gw.EveryRow(),
    )
    types = {"value": value_type([value for _, value in case["events"]])}
    op = spec.start()
    found: list[list[Any]] = []
    for key, value in case["events"]:
        table = op.process(table_of([{"key": key, "ts_ms": 0, "value": value}], 1_000, types))
        found += [[row["key"], row["value"]] for row in table.to_pylist()]
    assert found == case["expected"]
    events = [{"key": key, "ts_ms": 0, "value": value} for key, value in case["events"]]
    at_once = spec.start().process(table_of(events, 1_000, types)).to_pylist()
    assert [[row["key"], row["value"]] for row in at_once] == case["expected"]


def run_timer(case: dict[str, Any]) -> None:
    """A timer is a window that ends when it fires."""
    inputs = len(case["upstreams"])
    spec = gw.WindowedAggregation(
        window=gw.InheritedWindow(),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.MultipleInputs([gw.ExplicitWatermark()] * inputs) if inputs > 1 else gw.ExplicitWatermark(),
        semantics=gw.Semantics(watermark_start=0),
    )
    op = spec.start(schema=table_of([], 1_000, INT).schema)
    answers = iter(case["expected"])  # one for each move of a watermark
    for operation in case["ops"]:
        if operation[0] == "set":
            table = op.process(table_of([{"key": operation[1], "ts_ms": operation[2]}], 1_000, INT))
            assert table.num_rows == 0
            continue
        source = case["upstreams"].index(operation[1]) if inputs > 1 else 0
        table = op.advance_watermark(operation[2] * 1_000, source=source)
        ends = table.column("window_end").cast(pa.int64()).to_pylist()
        found = [[key, end // 1_000] for key, end in zip(table.column("key").to_pylist(), ends, strict=True)]
        assert sorted(found) == sorted(next(answers))


def run_evict(case: dict[str, Any]) -> None:
    e = case["evictor"]
    after = e.get("after", False)
    evictors: dict[str, Any] = {
        "count": lambda: gw.KeepLast(e["n"], after),
        "time": lambda: gw.KeepWithin(span(e["ms"]), after),
        "delta": lambda: gw.KeepNear("value", e["threshold"], after),
    }
    spec = gw.WindowedAggregation(
        window=window_of(case["window"], 1_000),
        keys=["key"],
        time="time",
        aggregates={"sum": gw.sum("value")},
        watermark=gw.ExplicitWatermark(),
        emit=gw.Trigger(early=gw.EveryRows(case["trigger"]["count"]), on_time=False, evict=evictors[e["type"]]()),
    )
    events = [{"key": key, "ts_ms": ts, "value": value} for key, ts, value in case["events"]]
    for size in (len(events), 1, 3):  # however the stream is cut
        op = spec.start()
        found = []
        for at in range(0, len(events), size):
            table = op.process(table_of(events[at : at + size], 1_000, INT))
            found += [[row["key"], row["sum"]] for row in table.to_pylist()]
            op = spec.restore(op.snapshot())
        assert found == case["expected"]


def run_chain(case: dict[str, Any]) -> None:
    """Stage after stage: each takes the rows of the one before, and its watermark."""
    ops: list[gw.WindowOperator] = []
    events = [e for batch in case["batches"] for e in batch if "ts_ms" in e]
    types = {"value": value_type([e.get("value") for e in events])}
    semantics = DIALECTS[case["dialect"]]
    for number, stage in enumerate(case["stages"]):
        own = gw.BoundedOutOfOrderness(span(case["watermark"]["delay_ms"])) if not number else gw.ExplicitWatermark()
        if (
            "dedup" in stage
        ):  # the first row of each value and time; forgotten once time <= watermark, as a raw timestamp is
            spec = gw.WindowedAggregation(
                window=gw.InheritedWindow(),
                keys=["key", *(c for c in stage["dedup"] if c != "ts_ms")],
                time="time",
                aggregates={"ts": gw.first("ts"), "n": gw.count()},
                watermark=own,
                emit=gw.OnUpdate(),
                semantics=semantics,
            )
        else:
            spec = gw.WindowedAggregation(
                window=window_of(stage["window"], 1_000),
                keys=["key"],
                time="time",
                aggregates={name: aggregate_of(text) for name, text in stage["agg"].items()},
                watermark=own,
                semantics=semantics,
            )
        ops.append(spec.start())
    for entries, expected in zip(case["batches"], case["expected"], strict=True):
        table = table_of([e for e in entries if "ts_ms" in e], 1_000, types)
        eof = any("eof" in e for e in entries)
        for number, (op, stage) in enumerate(zip(ops, case["stages"], strict=True)):
            out = op.process(table)
            if number:
                moved = op.advance_watermark(ops[0].watermark or 0)
                out = pa.concat_tables([out, moved])
            if eof:
                out = pa.concat_tables([out, op.finish()])
            table = _passed_on(out, stage)
        names = list(case["stages"][-1]["agg"])
        rows = [
            {"key": row["key"], "start_ms": start, "end_ms": end, **{n: row[n] for n in names}}
            for row, start, end in zip(
                out.to_pylist(),
                *(pc.divide(out.column(c).cast(pa.int64()), 1_000).to_pylist() for c in ("window_start", "window_end")),
                strict=True,
            )
        ]
        same(rows, expected, ordered=False)
    for op, stage in zip(ops, case["stages"], strict=True):
        wanted = case.get("state_rows_after", {})
        name = "dedup" if "dedup" in stage else "agg"
        if name in wanted:
            assert op.metrics.windows_open == wanted[name]


def _passed_on(out: pa.Table, stage: dict[str, Any]) -> pa.Table:
    """The rows of a stage as the next one sees them. A window's row is of the last instant before its end (Spark's
    window_time)."""
    if "dedup" in stage:
        out = out.filter(pc.equal(out.column("n"), 1))
        time = out.column("window_end")
    else:
        time = pc.subtract(out.column("window_end"), pa.scalar(1, pa.duration("us")))
    table = out.append_column("time", time)
    if "ts" not in table.schema.names:
        table = table.append_column("ts", time.cast(pa.int64()))
    for name in stage.get("agg") or {}:
        if "value" not in table.schema.names:
            table = table.append_column("value", table.column(name))
    return table


SYSTEMS = {
    "spark": "spark",
    "flink": "flink",
    "bytewax": "bytewax",
    "beam": "beam",
    "apex": "apex",
    "akka": "akka",
    "reduction": "reduction",
    "streamlite": "streamlite",
}


def run_compare(case: dict[str, Any]) -> None:
    for label, expected in case["expected_by_system"].items():
        semantics = DIALECTS[SYSTEMS[label.split()[0].rstrip(",")]]
        if "figure" in label or "prose" in label:  # what a document says against its own code
            semantics = replace(semantics, session_touch="split")
        given = case["input"]
        if "events" in given:
            events = sorted(given["events"], reverse="descending" in label)
            assert sessions_of(events, given["gap_ms"], semantics) == expected, label
        elif "window" in given:
            assert expected.startswith("closed" if is_closed(given, semantics, label) else "open"), label
        else:
            assert expected.startswith("accepted" if is_accepted(given, semantics, label) else "dropped"), label


def sessions_of(events: list[int], gap: int, semantics: gw.Semantics) -> list[list[int]]:
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow(span(gap)),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.ExplicitWatermark(),
        semantics=replace(semantics, watermark_start=None),
    )
    return bounds(gw.aggregate(table_of([{"key": "k", "ts_ms": t} for t in events], 1_000, INT), spec))


def is_closed(given: dict[str, Any], semantics: gw.Semantics, label: str) -> bool:
    start, end = given["window"]
    delay = span(given["delay"])
    if "real worker" in label:
        delay += timedelta.resolution  # a nanosecond, in microseconds
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow(span(end - start), span(start)),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness(delay),
        semantics=semantics,
    )
    events = [{"key": "k", "ts_ms": t} for t in (start, given["max_ts_seen"])]
    return [start, end] in bounds(spec.start().process(table_of(events, 1_000, INT)))


def is_accepted(given: dict[str, Any], semantics: gw.Semantics, label: str) -> bool:
    lateness = span("max") if "no lateness" in label else span(0)
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow(span(given["gap_ms"])),
        keys=["key"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.ExplicitWatermark(),
        allowed_lateness=lateness,
        semantics=semantics,
    )
    op = spec.start()
    op.process(table_of([{"key": "k", "ts_ms": t} for t in given["live_session_events"]], 1_000, INT))
    op.advance_watermark(given["W"] * 1_000)
    op.process(table_of([{"key": "k", "ts_ms": given["late_ts"]}], 1_000, INT))
    return op.metrics.rows_late == 0


RUNNERS = {
    "window_agg": run_window_agg,
    "assign": run_assign,
    "assign_start": run_assign,
    "watermark": run_watermark,
    "session_merge": run_session_merge,
    "stateful": run_stateful,
    "timer": run_timer,
    "accumulate": run_accumulate,
    "chain": run_chain,
    "compare": run_compare,
    "join": run_join,
    "evict": run_evict,
}

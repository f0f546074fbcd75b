"""The other kinds of known answers: pure assignment, watermarks, sessions, chains, timers, evictors, accumulations,
joins, comparisons of systems. `PLAYS` has a function for each kind: a case in, its answers as played out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cases_runner import (
    DIALECTS,
    aggregate_of,
    emission_of,
    play_window_agg,
    semantics_of,
    span,
    table_of,
    value_type,
    watermark_of,
    window_of,
)

import gpuwin as gw
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin.vocabulary.windows import Window

INT = {"value": pa.int64()}


def spec_of(window: Window, aggregates: dict[str, Aggregate] | None = None, **rest: Any) -> gw.WindowedAggregation:
    """An aggregation by "key" over "time", a count with explicit watermarks where `rest` does not say otherwise."""
    rest = {"keys": ["key"], "time": "time", "watermark": gw.ExplicitWatermark(), **rest}
    return gw.WindowedAggregation(window, aggregates=aggregates or {"n": gw.count()}, **rest)


def bounds(table: pa.Table, unit: int = 1_000) -> list[list[int]]:
    columns = [table.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    return sorted([start // unit, end // unit] for start, end in zip(*columns, strict=True))


def play_assign(case: dict[str, Any]) -> dict[str, Any]:
    unit = 1 if case.get("unit") == "us" else 1_000
    spec = spec_of(window_of(case["window"], unit), keys=[])
    found = [bounds(gw.aggregate(table_of([{"ts_ms": time}], unit, INT), spec), unit) for time in case["events"]]
    return {"expected": found}


def play_watermark(case: dict[str, Any]) -> dict[str, Any]:
    w = case["watermark"]
    rules: dict[str, Any] = {
        "bounded": lambda: gw.BoundedOutOfOrderness(span(w["delay_ms"])),
        "bounded_plus_system_time": lambda: gw.EventClock(span(w["delay_ms"])),
        "min_of_inputs": lambda: gw.MultipleInputs([gw.ExplicitWatermark()] * w["inputs"]),
        "multi_source": lambda: gw.MultipleInputs(
            [gw.BoundedOutOfOrderness(span(d)) for d in w["delays_ms"]], policy=w["policy"]
        ),
    }
    semantics = DIALECTS[case["dialect"]]
    if "initial_ms" in w:
        semantics = replace(semantics, watermark_start=w["initial_ms"] * 1_000)
    spec = spec_of(gw.TumblingWindow("1 second"), watermark=rules[w["mode"]](), semantics=semantics, keys=[])
    now = 0

    def clock() -> int:
        return now

    op = spec.start(clock=clock)

    def rows(op: gw.WindowOperator, times: list[int], source: int = 0) -> int | None:
        """The watermark after rows, in milliseconds."""
        op.process(table_of([{"ts_ms": t} for t in times], 1_000, INT), source=source)
        return told(op)

    def told(op: gw.WindowOperator) -> int | None:
        return None if op.watermark is None else op.watermark // 1_000

    if "events" in case:
        return {"expected": [rows(op, [event]) for event in case["events"]]}
    found: list[dict[str, Any]] = []
    emitted = 0
    for step in case["steps"]:
        before, late, state = told(op), op.metrics.rows_late, {}
        if "now_ms" in step:
            now = step["now_ms"] * 1_000
            times = [step["ts_ms"]] if "ts_ms" in step else []
            state["current_ms"] = rows(op, [])
            state["candidate_ms"] = rows(spec.start(clock=clock), times)  # of this row alone
            rows(op, times)
            state["late"] = op.metrics.rows_late > late
        elif "sources" in step:
            for source, times in enumerate(step["sources"]):
                rows(op, times, source)
        else:
            op.advance_watermark(step["wm_ms"] * 1_000, source=step["input"])
        emitted += told(op) != before
        found.append({**state, "wm_ms": told(op), "emitted": emitted})
    return {"expected": found}


def play_session_merge(case: dict[str, Any]) -> dict[str, Any]:
    """Intervals [start, end] as rows at their start, with their length and the gap as the gap of the row."""
    assert case["window"]["type"] == "session"
    gap = case["window"]["gap_ms"]
    inclusive = case.get("touch", "inclusive") == "inclusive"
    spec = spec_of(
        gw.SessionWindow(gw.column("gap")),
        semantics=gw.Semantics(session_touch="merge" if inclusive else "split"),
        keys=[],
    )
    events = [{"ts_ms": start, "gap_ms": end - start + gap} for start, end in case["input"]]
    found = bounds(gw.aggregate(table_of(events, 1_000, INT), spec))
    back = gap if case.get("end_rule") == "last_event" else 0
    return {"expected": [[start, end - back] for start, end in found]}


def play_stateful(case: dict[str, Any]) -> dict[str, Any]:
    aggregates = {"running_average": gw.mean, "running_sum": gw.sum, "running_count": gw.count, "list": gw.collect_list}
    spec = spec_of(
        gw.GlobalWindow(),
        {"value": aggregates[case["op"]]("value")},
        emit=gw.EveryRow(),
        semantics=DIALECTS[case["dialect"]],
    )
    return {"expected": however_cut(spec, [{"key": key, "ts_ms": 0, "value": v} for key, v in case["events"]])}


def however_cut(spec: gw.WindowedAggregation, events: list[dict[str, Any]]) -> list[list[Any]]:
    """The keys and values emitted for `events`, at once and in batches between which the operator is restored."""
    name, types = next(iter(spec.aggregates)), {"value": value_type([event["value"] for event in events])}
    played = []
    for size in (len(events), 1, 3):
        op, found = spec.start(), []
        for at in range(0, len(events), size):
            table = op.process(table_of(events[at : at + size], 1_000, types))
            found += [[row["key"], row[name]] for row in table.to_pylist()]
            op = spec.restore(op.snapshot())
        played.append(found)
    assert played == [played[0]] * len(played), "it depends on how the stream is cut"
    return played[0]


def play_timer(case: dict[str, Any]) -> dict[str, Any]:
    """A timer is a window that ends when it fires; there is an answer for each move of a watermark."""
    inputs = len(case["upstreams"])
    spec = spec_of(
        gw.InheritedWindow(),
        watermark=gw.MultipleInputs([gw.ExplicitWatermark()] * inputs) if inputs > 1 else gw.ExplicitWatermark(),
        semantics=replace(DIALECTS[case["dialect"]], watermark_start=0),
    )
    op = spec.start(schema=table_of([], 1_000, INT).schema)
    found = []
    for what, name, time in case["ops"]:
        if what == "set":
            assert op.process(table_of([{"key": name, "ts_ms": time}], 1_000, INT)).num_rows == 0
            continue
        table = op.advance_watermark(time * 1_000, source=case["upstreams"].index(name) if inputs > 1 else 0)
        ends = table.column("window_end").cast(pa.int64()).to_pylist()
        found.append([[key, end // 1_000] for key, end in zip(table.column("key").to_pylist(), ends, strict=True)])
    return {"expected": found}


def play_evict(case: dict[str, Any]) -> dict[str, Any]:
    e, trigger = case["evictor"], case["trigger"]
    after = e.get("after", False)
    evictors: dict[str, Any] = {
        "count": lambda: gw.KeepLast(e["n"], after),
        "time": lambda: gw.KeepWithin(span(e["ms"]), after),
        "delta": lambda: gw.KeepNear("value", e["threshold"], after),
    }
    assert trigger["type"] == "count"
    spec = spec_of(
        window_of(case["window"], 1_000),
        {"sum": gw.sum("value")},
        emit=gw.Trigger(early=gw.EveryRows(trigger["count"]), on_time=False, evict=evictors[e["type"]]()),
        semantics=DIALECTS[case["dialect"]],
    )
    return {"expected": however_cut(spec, [{"key": k, "ts_ms": ts, "value": v} for k, ts, v in case["events"]])}


def play_chain(case: dict[str, Any]) -> dict[str, Any]:
    """Stage after stage: each takes the rows of the one before, and its watermark."""
    events = [e for batch in case["batches"] for e in batch if "ts_ms" in e]
    types = {"value": value_type([e.get("value") for e in events])}
    ops = [_stage(case, number).start() for number in range(len(case["stages"]))]
    found = []
    for entries in case["batches"]:
        table = table_of([e for e in entries if "ts_ms" in e], 1_000, types)
        eof = any("eof" in e for e in entries)
        for number, (op, stage) in enumerate(zip(ops, case["stages"], strict=True)):
            out = op.process(table)
            if number:
                out = pa.concat_tables([out, op.advance_watermark(ops[0].watermark or 0)])
            if eof:
                out = pa.concat_tables([out, op.finish()])
            table = _passed_on(out, stage)
        names = list(case["stages"][-1]["agg"])
        bounds = (pc.divide(out.column(c).cast(pa.int64()), 1_000).to_pylist() for c in ("window_start", "window_end"))
        found.append(
            [
                {"key": row["key"], "start_ms": start, "end_ms": end, **{n: row[n] for n in names}}
                for row, start, end in zip(out.to_pylist(), *bounds, strict=True)
            ]
        )
    kinds = ["dedup" if "dedup" in stage else "agg" for stage in case["stages"]]
    states = {kind: op.metrics.windows_open for kind, op in zip(kinds, ops, strict=True)}
    return {"expected": found, "state_rows_after": states}


def _stage(case: dict[str, Any], number: int) -> gw.WindowedAggregation:
    stage = case["stages"][number]
    marks = gw.ExplicitWatermark() if number else watermark_of(case, 1_000)
    rest = {"watermark": marks, "semantics": semantics_of(case, 1_000)}
    if "dedup" in stage:  # rows of each value and time, numbered; evicted once time <= watermark, as raw timestamps are
        keys = ["key", *(c for c in stage["dedup"] if c != "ts_ms")]
        numbered = {"ts": gw.first("ts"), "n": gw.count()}
        return spec_of(gw.InheritedWindow(), numbered, keys=keys, emit=gw.EveryRow(), **rest)
    aggregates = {name: aggregate_of(text) for name, text in stage["agg"].items()}
    return spec_of(window_of(stage["window"], 1_000), aggregates, emit=emission_of(case), **rest)


def _passed_on(out: pa.Table, stage: dict[str, Any]) -> pa.Table:
    """The rows of a stage as the next one sees them: of deduplicated ones the first, and a window's row at the last
    instant before its end (Spark's window_time)."""
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


#: What the cases call an accumulation where the engine has another name for it.
ACCUMULATIONS = {
    "average": gw.mean,
    "group": gw.collect_list,
    "remove_duplicates": gw.collect_set,
    "sort": gw.collect_list,
    "concat": gw.collect_list,
    "top_n_by_key": gw.last,
}


def _accumulation(name: str) -> Aggregate:
    return ACCUMULATIONS[name]("value") if name in ACCUMULATIONS else getattr(gw, name)("value")


def _plus(total: int, value: int) -> int:
    return total + value


def _itself(total: int) -> int:
    return total


def _aggregates(accumulator: dict[str, Any]) -> dict[str, Aggregate]:
    kind = accumulator["type"]
    if kind == "composite":
        return {part: _accumulation(part) for part in accumulator["parts"]}
    if kind == "top_n":
        return {"value": gw.top_k("value", accumulator["n"])}
    if kind == "custom_sum":
        own = gw.accumulation(state={"total": 0}, add=_plus, merge=_plus, result=_itself)
        return {"value": own("value")}
    return {"value": _accumulation(kind)}


def _as_written(accumulator: dict[str, Any], table: pa.Table) -> Any:
    """What the accumulator holds, as the cases write it."""
    kind = accumulator["type"]
    if kind == "top_n_by_key":
        largest = table.take(pc.select_k_unstable(table, accumulator["n"], [("value", "descending")]))
        return [[row["key"], row["value"]] for row in largest.to_pylist()]
    if kind == "composite":
        return [table.column(part)[0].as_py() for part in accumulator["parts"]]
    value = table.column("value")[0].as_py()
    if kind == "sort":
        return sorted(value, reverse=accumulator.get("descending", False))
    return accumulator["separator"].join(value) if kind == "concat" else value


def play_accumulate(case: dict[str, Any]) -> dict[str, Any]:
    accumulator = case["accumulator"]
    values = [v[1] if isinstance(v, list) else v for step in case["steps"] for v in step]
    types = {"value": value_type(values)}
    spec = spec_of(
        gw.GlobalWindow(),
        _aggregates(accumulator),
        keys=["key"] if accumulator["type"] == "top_n_by_key" else [],
        emit=gw.Complete(),
        semantics=DIALECTS[case["dialect"]],
    )
    op = spec.start()
    found = []
    for step in case["steps"]:
        pairs = [v if isinstance(v, list) else [None, v] for v in step]
        table = op.process(table_of([{"key": k, "ts_ms": 0, "value": v} for k, v in pairs], 1_000, types))
        found.append(_as_written(accumulator, table))
    return {"expected": found}


def _side(rows: list[list[Any]], name: str, keys: list[str]) -> pa.Table:
    """Rows are [key, value] or [key, time in ms, value]; a key of several columns is written with | between them."""
    times = [row[1] if len(row) == 3 else 0 for row in rows]
    parts = [[None] * len(keys) if row[0] is None else row[0].split("|") for row in rows]
    return pa.table(
        {
            **{key: pa.array([part[i] for part in parts], pa.string()) for i, key in enumerate(keys)},
            f"{name}_time": pa.array(times, pa.timestamp("ms")),
            name: pa.array([row[-1] for row in rows]),
        }
    )


def _join(join: dict[str, Any], how: str, keys: list[str]) -> Any:
    kind = join["type"]
    if kind == "hash":
        return gw.HashJoin(keys, how)
    if kind == "interval":
        tick = span(1)  # bounds are inclusive here, so an exclusive one is a millisecond nearer
        lower = span(join["lower_ms"]) + (tick if join.get("lower_inclusive") is False else span(0))
        upper = span(join["upper_ms"]) - (tick if join.get("upper_inclusive") is False else span(0))
        return gw.IntervalJoin(keys, "left_time", "right_time", lower, upper, how)
    waits = gw.EventClock(span(join.get("delay_ms", "max")))
    return gw.WindowJoin(window_of(join["window"], 1_000), keys, "left_time", "right_time", how, watermark=waits)


def _cogrouped(row: dict[str, Any], insert: str, emit: str) -> list[list[Any]]:
    """What Bytewax makes of one window: values are put into a side as they come by time, and rows come out at the end
    (final), at each (running), or whenever both sides have one (complete, which starts afresh)."""
    events = [(t, 0, v) for t, v in zip(row["left_time"], row["left"], strict=True)]
    events += [(t, 1, v) for t, v in zip(row["right_time"], row["right"], strict=True)]
    sides: list[list[Any]] = [[], []]
    out: list[list[Any]] = []

    def rows() -> list[list[Any]]:
        return [list(pair) for pair in product(sides[0] or [None], sides[1] or [None])]

    for _, side, value in sorted(events, key=lambda e: (e[0], e[1])):
        if insert == "product":
            sides[side].append(value)
        elif insert == "last" or not sides[side]:
            sides[side][:] = [value]
        if emit == "running":
            out += rows()
        if emit == "complete" and all(sides):
            out += rows()
            sides = [[], []]
    return out if emit != "final" else rows()


def play_join(case: dict[str, Any]) -> dict[str, Any]:
    join = case["join"]
    keys = [f"key{i}" for i in range(join.get("key_parts", 1))]
    left, right = _side(case["left"], "left", keys), _side(case["right"], "right", keys)
    cogroup = "insert_mode" in join
    assert join.get("ordered", True), "rows of a cogroup are put in order of time"
    op = _join(join, "cogroup" if cogroup else join["how"], keys).start()
    table = pa.concat_tables([op.process(left=left, right=right), op.finish()])
    if cogroup:
        found = [pair for row in table.to_pylist() for pair in _cogrouped(row, join["insert_mode"], join["emit_mode"])]
    else:
        found = [[row["left"], row["right"]] for row in table.to_pylist()]
    return {"expected": found}


#: What the cases that compare systems call them: each with its preset, and how it differs from it.
SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    **{system: (system, {}) for system in DIALECTS},
    "spark 4.0.1": ("spark", {}),
    "flink 2.3.0": ("flink", {}),
    "flink with BoundedOutOfOrderness": ("flink", {}),
    "bytewax 0.21.1 code": ("bytewax", {}),
    "bytewax seed figure": ("bytewax", {"touch": "split"}),  # what a document says against its own code
    "beam 2.77 python": ("beam", {}),
    "reduction test run": ("reduction", {}),
    "reduction real worker": ("reduction", {"watermark": "a nanosecond behind"}),
    "apex no lateness set": ("apex", {"lateness": "max"}),
    "apex lateness 0": ("apex", {}),
    "apex, ascending": ("apex", {}),
    "apex, ascending arrival": ("apex", {}),
    "apex, descending": ("apex", {"arrival": "descending"}),
    "apex, descending arrival": ("apex", {"arrival": "descending"}),
    "streamlite code": ("streamlite", {}),
    "streamlite prose": ("streamlite", {"touch": "split"}),
}


def play_compare(case: dict[str, Any]) -> dict[str, Any]:
    """Every system that the case names, on one input: what closes, what is late, which sessions there are."""
    given, found = case["input"], {}
    question = sessions_of if "events" in given else is_closed if "window" in given else is_accepted
    for label in case["expected_by_system"]:
        dialect, differs = SYSTEMS[label]
        semantics = DIALECTS[dialect]
        if "touch" in differs:
            semantics = replace(semantics, session_touch=differs["touch"])
        found[label] = question(given, semantics, differs)
    return {"expected_by_system": found}


def sessions_of(given: dict[str, Any], semantics: gw.Semantics, differs: dict[str, str]) -> list[list[int]]:
    events = sorted(given["events"], reverse=differs.get("arrival") == "descending")
    spec = spec_of(gw.SessionWindow(span(given["gap_ms"])), semantics=replace(semantics, watermark_start=None))
    return bounds(gw.aggregate(table_of([{"key": "k", "ts_ms": t} for t in events], 1_000, INT), spec))


def is_closed(given: dict[str, Any], semantics: gw.Semantics, differs: dict[str, str]) -> str:
    start, end = given["window"]
    behind = timedelta.resolution if "watermark" in differs else timedelta(0)  # a nanosecond, in microseconds
    spec = spec_of(
        gw.TumblingWindow(span(end - start), span(start)),
        watermark=gw.BoundedOutOfOrderness(span(given["delay"]) + behind),
        semantics=semantics,
    )
    events = [{"key": "k", "ts_ms": t} for t in (start, given["max_ts_seen"])]
    return "closed" if [start, end] in bounds(spec.start().process(table_of(events, 1_000, INT))) else "open"


def is_accepted(given: dict[str, Any], semantics: gw.Semantics, differs: dict[str, str]) -> str:
    spec = spec_of(
        gw.SessionWindow(span(given["gap_ms"])), allowed_lateness=span(differs.get("lateness", 0)), semantics=semantics
    )
    op = spec.start()
    op.process(table_of([{"key": "k", "ts_ms": t} for t in given["live_session_events"]], 1_000, INT))
    op.advance_watermark(given["W"] * 1_000)
    op.process(table_of([{"key": "k", "ts_ms": given["late_ts"]}], 1_000, INT))
    return "dropped" if op.metrics.rows_late else "accepted"


PLAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "window_agg": play_window_agg,
    "assign": play_assign,
    "watermark": play_watermark,
    "session_merge": play_session_merge,
    "stateful": play_stateful,
    "timer": play_timer,
    "accumulate": play_accumulate,
    "chain": play_chain,
    "compare": play_compare,
    "join": play_join,
    "evict": play_evict,
}

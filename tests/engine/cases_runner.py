"""Runs one example of tests/cases/cases.jsonl through the public API. The format is described in docs/semantics.md,
"The cases"."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import gpuwin as gw
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin.vocabulary.triggers import Emission
from gpuwin.vocabulary.watermarks import Watermark
from gpuwin.vocabulary.windows import Window

CASES = Path(__file__).parent.parent / "cases"
DIALECTS = {
    "spark": gw.Semantics.SPARK,
    "flink": gw.Semantics.FLINK,
    "beam": gw.Semantics.BEAM,
    "bytewax": gw.Semantics.BYTEWAX,
    "apex": gw.Semantics.APEX,
    "akka": gw.Semantics.AKKA,
    "reduction": gw.Semantics.REDUCTION,
    "streamlite": gw.Semantics.STREAMLITE,
    "any": gw.Semantics(),
}
ACCUMULATION = {
    None: "accumulating",
    "accumulating": "accumulating",
    "discarding": "discarding",
    "accumulating_and_retracting": "retracting",
    "retracting": "retracting",
}


def load_cases(pattern: str = "cases.jsonl") -> list[dict[str, Any]]:
    """The cases of the files of tests/cases that match, in the order of their names."""
    return [json.loads(line) for path in sorted(CASES.glob(pattern)) for line in path.read_text().splitlines() if line]


def span(number: float | str, unit: int = 1_000) -> timedelta:
    """A length of a case as a timedelta; `unit` is microseconds per number."""
    return timedelta.max if number == "max" else timedelta(microseconds=int(number) * unit)


def window_of(w: dict[str, Any], unit: int) -> Window:
    kind = w["type"]
    offset = span(w.get("offset_ms", 0), unit)
    if kind == "tumbling":
        return gw.TumblingWindow(span(w["size_ms"], unit), offset)
    if kind == "sliding":
        return gw.SlidingWindow(span(w["size_ms"], unit), span(w["slide_ms"], unit), offset)
    if kind == "cumulate":
        return gw.CumulativeWindow(span(w["size_ms"], unit), span(w["step_ms"], unit), offset)
    if kind == "session":
        gap = w.get("gap_ms")
        return gw.SessionWindow(span(gap, unit) if isinstance(gap, int | float) else gw.column("gap"))
    if kind == "raw_timestamp":
        return gw.InheritedWindow()
    assert kind == "global", kind
    return gw.GlobalWindow()


def aggregate_of(text: str) -> Aggregate:
    name, argument = text.rstrip(")").split("(")
    if argument.startswith("value") and name in gw.__all__:
        aggregate: Aggregate = getattr(gw, name)(*argument.split(", "))
        return aggregate
    if name == "count":
        return gw.count() if argument == "*" else gw.count(argument)
    other_names = {
        "avg": gw.mean,
        "stddev": gw.std,
        "variance": gw.var,
        "collect": gw.collect_list,
        "collect_sorted": gw.collect_list,
        "sum_distinct": gw.collect_set,
        "hist": gw.histogram,
    }
    if name in other_names:
        return other_names[name](argument)
    return {"min_ts": gw.min("ts"), "max_ts": gw.max("ts")}[name]


def finished(text: str, value: Any, unit: int) -> Any:
    """A value as the cases write it."""
    name = text.split("(")[0]
    if name == "collect_sorted":
        return sorted(value)
    if name == "sum_distinct":
        return sum(value)
    if name == "hist":
        return dict(value)
    if name in ("min_ts", "max_ts") and value is not None:
        return value // unit
    return value


def table_of(events: list[dict[str, Any]], unit: int, types: dict[str, pa.DataType]) -> pa.Table:
    ts = [None if e["ts_ms"] is None else e["ts_ms"] * unit for e in events]
    gaps = [None if e.get("gap_ms") is None else e["gap_ms"] * unit for e in events]
    keys = [None if e.get("key") is None else str(e["key"]) for e in events]
    time = pa.array(ts, pa.timestamp("us"))
    more = {"other": pa.array([e.get("other") for e in events], types["other"])} if "other" in types else {}
    return pa.table(
        {
            **more,
            "key": pa.array(keys, pa.string()),
            "time": time,
            "ts": pa.array(ts, pa.int64()),
            "value": pa.array([e.get("value") for e in events], types["value"]),
            "gap": pa.array(gaps, pa.duration("us")),
            "window_start": time,
            "window_end": time,
        }
    )


def value_type(values: list[Any]) -> pa.DataType:
    found = pa.array([v for v in values if v is not None]).type
    return pa.int64() if pa.types.is_null(found) else found


def semantics_of(case: dict[str, Any], unit: int) -> gw.Semantics:
    semantics, w, options = DIALECTS[case["dialect"]], case.get("watermark", {}), case.get("options", {})
    changes: dict[str, Any] = {}
    if "initial_ms" in w:
        changes["watermark_start"] = w["initial_ms"] * unit
    elif not w:
        changes["watermark_start"] = None
    if "scope" in w:
        changes["watermark_scope"] = "key" if w["scope"] == "per_key" else "stream"
    if "advance" in w:
        changes["watermark_advance"] = "row" if w["advance"] == "per_event" else "batch"
    if w.get("convention") == "exclusive":
        changes |= {"watermark_inclusive": False, "watermark_lag": "none"}
    if "session_touch" in options:
        changes["session_touch"] = options["session_touch"]
    if options.get("no_data_batches") is False:
        changes["late_filter"] = "previous"
    if "ordered" in options:
        changes["order"] = "time" if options["ordered"] else "arrival"
    return replace(semantics, **changes)


def watermark_of(case: dict[str, Any], unit: int) -> Watermark:
    w = case.get("watermark", {})
    if case.get("time") == "processing":
        return gw.SystemClock()
    if w.get("mode") == "bounded" or "implicit_delay_ms" in w:
        return gw.BoundedOutOfOrderness(span(w.get("delay_ms", w.get("implicit_delay_ms")), unit))
    if w.get("mode") == "bounded_plus_system_time":
        return gw.EventClock(span(w["delay_ms"], unit))
    return gw.ExplicitWatermark()


def emission_of(case: dict[str, Any]) -> Emission:
    mode, trigger, options = case["output_mode"], case.get("trigger") or {}, case.get("options", {})
    if options.get("emit") == "on_change":
        return gw.OnChange()
    if mode in ("append", "final"):
        return gw.OnClose()
    if mode == "update":
        return gw.OnUpdate()
    if mode == "complete":
        return gw.Complete()
    if mode == "continuous":
        return gw.EveryRow()
    if mode == "state_only":
        return gw.Trigger(on_time=False)
    assert mode == "trigger", mode
    kind = trigger.get("type")
    if kind == "event_time":
        return gw.OnClose()
    if kind == "count":
        every = gw.EveryRows(trigger["count"])
        return gw.Trigger(early=every, late=every, on_time=False)
    if kind == "continuous_event_time":
        bounded = case["window"]["type"] != "global"
        return gw.Trigger(early=gw.EveryEventTime(span(trigger["interval_ms"])), on_time=bounded)
    if kind in ("never", "end_of_stream"):
        return gw.Trigger(on_time=kind == "end_of_stream")
    assert kind is None, kind
    on_time = trigger.get("at_watermark", case["dialect"] == "beam")
    return gw.Trigger(firing(trigger, "early"), firing(trigger, "late"), on_time, bool(trigger.get("only_updated")))


def firing(trigger: dict[str, Any], which: str) -> Any:
    if f"{which}_count" in trigger:
        return gw.EveryRows(trigger[f"{which}_count"])
    if f"{which}_every_ms" in trigger:
        return gw.Every(span(trigger[f"{which}_every_ms"]))
    return None


def lateness_of(case: dict[str, Any], unit: int) -> timedelta:
    if "allowed_lateness_ms" in case:
        return span(case["allowed_lateness_ms"], unit)
    return timedelta.max if case["dialect"] == "apex" else timedelta(0)  # Apex: unset is never late, never purged


def specification_of(case: dict[str, Any], unit: int) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(
        window=window_of(case["window"], unit),
        keys=["key"],
        time="time",
        aggregates={name: aggregate_of(text) for name, text in case["agg"].items()},
        watermark=watermark_of(case, unit),
        allowed_lateness=lateness_of(case, unit),
        emit=emission_of(case),
        accumulation=ACCUMULATION[case.get("accumulation")],
        semantics=semantics_of(case, unit),
        collect_late="late_side_output" in case,
    )


class Play:
    """One case of windowed aggregation as it goes along."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.unit = 1 if case.get("unit") == "us" else 1_000
        self.now = 0
        events = [e for batch in case["batches"] for e in batch if "ts_ms" in e]
        self.types = {name: value_type([e.get(name) for e in events]) for name in ("value", "other")}
        self.spec = specification_of(case, self.unit)
        self.op = self.spec.start(clock=lambda: self.now)
        self.panes: Counter[tuple[Any, ...]] = Counter()
        self.watermarks: list[int] = []

    def batch(self, number: int, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows handed out during one batch of the case."""
        stream_window = self.case.get("options", {}).get("streaming_window_ms")
        if stream_window is not None:
            self.now = number * stream_window * self.unit
        out: list[dict[str, Any]] = []
        waiting: list[dict[str, Any]] = []
        for entry in [*entries, None]:
            if entry is not None and "ts_ms" in entry:
                waiting.append(entry)
                continue
            if waiting or (entry is None and not entries):
                out += self.rows(self.op.process(table_of(waiting, self.unit, self.types)))
                waiting = []
            if entry is not None:
                out += self.control(entry)
        if self.op.watermark is not None and (not self.watermarks or self.op.watermark > self.watermarks[-1]):
            self.watermarks.append(self.op.watermark)
        return out

    def control(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        if "watermark_ms" in entry:
            return self.rows(self.op.advance_watermark(entry["watermark_ms"] * self.unit))
        if "processing_time_ms" in entry:
            self.now = entry["processing_time_ms"] * self.unit
            return self.rows(self.op.process(table_of([], self.unit, self.types)))
        if "restart" in entry:
            self.op = self.spec.restore(self.op.snapshot(), clock=lambda: self.now)
            return []
        assert "eof" in entry, entry
        return self.rows(self.op.finish())

    def rows(self, table: pa.Table) -> list[dict[str, Any]]:
        bounds = [table.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
        out = []
        values = table.drop_columns(["window_start", "window_end"])  # which may lie beyond what Python's datetime holds
        for row, start, end in zip(values.to_pylist(), *bounds, strict=True):
            found = {
                "key": row["key"],
                "start_ms": None if start is None else start // self.unit,
                "end_ms": None if end is None else end // self.unit,
            }
            for name, text in self.case["agg"].items():
                found[name] = finished(text, row[name], self.unit)
            if row.get("is_retraction"):
                found["retract"] = True
                found |= {name: -found[name] for name in self.case["agg"]}
            self.describe(found, row)
            out.append(found)
        return out

    def describe(self, found: dict[str, Any], row: dict[str, Any]) -> None:
        """What cases say of single firings: the timing, the number of the pane, the number of the window on Bytewax's
        grid."""
        window, dialect = self.case["window"], self.case["dialect"]
        if dialect == "beam":
            found["timing"] = row.get("pane", "on_time").upper()
            which = (found["key"], found["start_ms"], found["end_ms"])
            found["pane"] = self.panes[which]
            self.panes[which] += 1
        elif dialect == "bytewax" and window["type"] in ("tumbling", "sliding"):
            slide = window.get("slide_ms", window["size_ms"])
            found["window_id"] = (found["start_ms"] - window.get("offset_ms", 0)) // slide


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]], ordered: bool) -> None:
    """Raises AssertionError unless both are the same rows, in any order unless `ordered`."""
    like = expected[0] if expected else {}
    names = sorted({name for row in expected for name in row}) or sorted(like)
    known = {name for row in found for name in row}
    names = [n for n in names if n != "merged_ids" and (n != "window_id" or "window_id" in known)]

    def text(row: dict[str, Any]) -> str:
        values = {n: row.get(n) for n in names} if names else row
        for n, v in values.items():
            if isinstance(v, bool):
                continue
            if isinstance(v, int | float) and math.isfinite(v):
                values[n] = float(f"{v:.12g}")
        return json.dumps(values, sort_keys=True, default=str)

    left, right = [text(row) for row in found], [text(row) for row in expected]
    if not ordered:
        left, right = sorted(left), sorted(right)
    assert left == right, "\nfound    " + "\n         ".join(left) + "\nexpected " + "\n         ".join(right)


def run_window_agg(case: dict[str, Any]) -> None:
    play = Play(case)
    for number, (entries, expected) in enumerate(zip(case["batches"], case["expected"], strict=True)):
        same(play.batch(number, entries), expected, case.get("ordered", False))
        for state in case.get("expected_state_after", []):
            if state.get("batch") == number and "windows" in state:
                assert play.op.metrics.windows_open == state["windows"]
    metrics = play.op.metrics
    if "late_dropped" in case:
        pairs = case["dialect"] in ("spark", "beam")
        assert (metrics.window_rows_late if pairs else metrics.rows_late) == case["late_dropped"]
    if "watermarks_emitted" in case:
        assert [w // play.unit for w in play.watermarks if w > 0] == case["watermarks_emitted"]
    if "state_rows" in case:
        assert metrics.windows_open == case["state_rows"]
    if "late_side_output" in case:
        late = play.op.late_rows()
        found = list(zip(late["key"].to_pylist(), late["ts"].to_pylist(), strict=True))
        assert found == [(key, ts * play.unit) for key, ts in case["late_side_output"]]

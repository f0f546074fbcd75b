"""Known answers of windowed aggregations, played through the public API."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

import gpuwin as gw
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin.vocabulary.triggers import Emission
from gpuwin.vocabulary.watermarks import Watermark
from gpuwin.vocabulary.windows import Window

SYSTEMS = ("spark", "flink", "beam", "bytewax", "apex", "akka", "reduction", "streamlite")
DIALECTS = {"any": gw.Semantics(), **{name: getattr(gw.Semantics, name.upper()) for name in SYSTEMS}}
#: What the cases call an aggregate where the engine has another name for it.
AGGREGATES = {
    "avg": gw.mean,
    "stddev": gw.std,
    "variance": gw.var,
    "collect": gw.collect_list,
    "collect_sorted": gw.collect_list,
    "sum_distinct": gw.collect_set,
    "hist": gw.histogram,
}


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
    if kind == "calendar":
        return gw.CalendarWindow(w["size"], w.get("timezone", "UTC"), w.get("starting", ""))
    if kind == "session":
        gap = w.get("gap_ms")
        return gw.SessionWindow(span(gap, unit) if isinstance(gap, int | float) else gw.column("gap"))
    if kind == "raw_timestamp":
        return gw.InheritedWindow()
    assert kind == "global", kind
    return gw.GlobalWindow()


def aggregate_of(text: str) -> Aggregate:
    name, argument = text.rstrip(")").split("(")
    if text in ("count(*)", "min_ts()", "max_ts()"):
        return {"count": gw.count(), "min_ts": gw.min("ts"), "max_ts": gw.max("ts")}[name]
    return AGGREGATES[name](argument) if name in AGGREGATES else getattr(gw, name)(*argument.split(", "))


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
    if "truncate_to" in w:
        changes["watermark_precision"] = {1: "us", 1_000: "ms"}[w["truncate_to"]]
    if options.get("no_data_batches") is False:
        changes["late_filter"] = "previous"
    if "ordered" in options:
        changes["order"] = "time" if options["ordered"] else "arrival"
    return replace(semantics, **changes)


def watermark_of(case: dict[str, Any], unit: int) -> Watermark:
    w = case.get("watermark", {})
    mode = w.get("mode")
    if case.get("time") == "processing":
        return gw.SystemClock()
    if mode == "bounded" or "implicit_delay_ms" in w:
        return gw.BoundedOutOfOrderness(span(w.get("delay_ms", w.get("implicit_delay_ms")), unit))
    if mode == "bounded_plus_system_time":
        return gw.EventClock(span(w["delay_ms"], unit))
    return gw.ExplicitWatermark()


def emission_of(case: dict[str, Any]) -> Emission:
    mode, trigger, options = case["output_mode"], case.get("trigger") or {}, case.get("options", {})
    if options.get("emit") == "on_change":
        assert options["emit_zero"], "windows that have become empty are always told"
        assert trigger.get("type", "timer_each_slide") == "timer_each_slide"
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


def accumulation_of(case: dict[str, Any]) -> str:
    named, purging = case.get("accumulation") or "accumulating", (case.get("trigger") or {}).get("purging", False)
    assert named == "discarding" or not purging, "a trigger that purges discards"
    return named.replace("accumulating_and_", "")


def specification_of(case: dict[str, Any], unit: int) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(
        window=window_of(case["window"], unit),
        keys=["key"] if case.get("options", {}).get("keyed", True) else [],
        time="time",
        aggregates={name: aggregate_of(text) for name, text in case["agg"].items()},
        watermark=watermark_of(case, unit),
        allowed_lateness=lateness_of(case, unit),
        emit=emission_of(case),
        accumulation=accumulation_of(case),
        semantics=semantics_of(case, unit),
    )


class Play:
    """One case of windowed aggregation as it goes along. `collecting`: its operator keeps late rows and merges, and
    rows of Bytewax's sessions have the numbers of the sessions."""

    def __init__(self, case: dict[str, Any], collecting: bool = False) -> None:
        self.case = case
        self.unit = 1 if case.get("unit") == "us" else 1_000
        self.now = 0
        events = [e for batch in case["batches"] for e in batch if "ts_ms" in e]
        self.types = {name: value_type([e.get(name) for e in events]) for name in ("value", "other")}
        numbered = collecting and case["dialect"] == "bytewax" and case["window"]["type"] == "session"
        self.spec = replace(specification_of(case, self.unit), collect_late=collecting, collect_merges=numbered)
        self.sessions = SessionIds(self) if numbered else None
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
                out += self.processed(waiting)
                waiting = []
            if entry is not None:
                out += self.control(entry)
        if self.sessions is not None:
            self.sessions.number(out)
        if self.op.watermark is not None and (not self.watermarks or self.op.watermark > self.watermarks[-1]):
            self.watermarks.append(self.op.watermark)
        return out

    def processed(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.sessions is not None and entries:
            return [row for entry in entries for row in self.sessions.processed(entry)]
        return self.rows(self.op.process(table_of(entries, self.unit, self.types)))

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
                "key": row.get("key"),
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


class SessionIds:
    """Bytewax's numbers of the sessions of each key, and of those that have become part of another.

    A key's sessions are numbered as they open. In order of time that is the order in which they close. In order of
    arrival, rows are played one at a time: one opens a session if there is one more then, open, emitted or merged.
    """

    def __init__(self, play: Play) -> None:
        self.play, self.by_time = play, play.spec.semantics.order == "time"
        self.opened: dict[Any, list[int | None]] = {}  # by key: where each session opened; None once it is emitted

    def processed(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows emitted by one row of the case."""
        before = self.play.op.metrics.windows_open
        found = self.play.rows(self.play.op.process(table_of([entry], self.play.unit, self.play.types)))
        merged = len(self.play.op.session_merges())
        if self.play.op.metrics.windows_open + len(found) + merged > before and not self.by_time:
            self.opened.setdefault(entry["key"], []).append(entry["ts_ms"])
        return found

    def number(self, found: list[dict[str, Any]]) -> None:
        """Puts `window_id` and `merged_ids` into emitted rows."""
        for row in sorted(found, key=lambda row: row["start_ms"]):
            opened = self.opened.setdefault(row["key"], [])
            if self.by_time:
                opened.append(row["start_ms"])
            within = {at: i for i, at in enumerate(opened) if at is not None and row["start_ms"] <= at <= row["end_ms"]}
            row["window_id"], *row["merged_ids"] = (within[at] for at in sorted(within))
            opened[:] = [None if at in within else at for at in opened]


def told_by_operator(case: dict[str, Any]) -> set[str]:
    """The fields of rows that only an operator on Arrow batches tells: the numbers of Bytewax's sessions."""
    return {"window_id", "merged_ids"} if case["window"]["type"] == "session" else set()


def without(rows: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def states_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What the case's operator holds after each batch that `expected_state_after` names: open windows, and of a
    single one its values and whether it is late. Told by an operator that emits with each row."""
    each = {"early_count": 1, "late_count": 1}
    play = Play({**case, "output_mode": "trigger", "trigger": each, "accumulation": "accumulating"})
    states, last = [], {}
    for number, entries in enumerate(case["batches"]):
        for row in play.batch(number, entries):
            last = row
        state = {"batch": number, "windows": play.op.metrics.windows_open}
        if state["windows"] == 1:
            next_row = {"key": last["key"], "ts_ms": last["end_ms"] - 1, "value": 0}
            panes = play.op.branch().process(table_of([next_row], play.unit, play.types))["pane"].to_pylist()
            state |= {name: last[name] for name in case["agg"]} | {"window_late": panes == ["late"]}
        states.append(state)
    return [states[asked["batch"]] for asked in case["expected_state_after"]]


def windows_with_all_emitted(case: dict[str, Any]) -> int:
    """How many rows the case has if every window emits once, whether its value changed or not."""
    play = Play({**case, "options": {}})
    return sum(len(play.batch(number, entries)) for number, entries in enumerate([*case["batches"], [{"eof": True}]]))


def play_window_agg(case: dict[str, Any]) -> dict[str, Any]:
    """The answers of a case of kind "window_agg", as played."""
    play = Play(case, collecting=True)
    played: dict[str, Any] = {"expected": [play.batch(number, rows) for number, rows in enumerate(case["batches"])]}
    metrics = play.op.metrics
    pairs = case["dialect"] in ("spark", "beam")
    played["late_dropped"] = metrics.window_rows_late if pairs else metrics.rows_late
    played["watermarks_emitted"] = [w // play.unit for w in play.watermarks if w > 0]
    played["state_rows"] = metrics.windows_open
    if "late_side_output" in case:
        late = play.op.late_rows()
        times = [time // play.unit for time in late["ts"].to_pylist()]
        played["late_side_output"] = [list(row) for row in zip(late["key"].to_pylist(), times, strict=True)]
    if "expected_state_after" in case:
        played["expected_state_after"] = states_of(case)
    if "full_emission_window_count" in case:
        played["full_emission_window_count"] = windows_with_all_emitted(case)
    return played

"""Streams and specifications made up by hypothesis, and the answers of the engine and of the oracle in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
from change_oracle import ChangeOracle
from hypothesis import strategies as st
from oracle import FOR_EVER, NONE_YET, Oracle, gap_of

import gpuwin as gw

Row = tuple[Any, int, int]
SECOND = 1_000_000


@dataclass(frozen=True)
class Options:
    """One specification, in the words of the oracle."""

    shape: tuple[Any, ...]
    more: dict[str, Any] = field(default_factory=dict)

    def oracle(self) -> Oracle:
        return (ChangeOracle if self.more.get("emit") == "change" else Oracle)(self.shape, **self.more)

    def firing(self, phase: str, unit: timedelta) -> gw.EveryRows | gw.EveryEventTime | None:
        if step := self.more.get(f"{phase}_time"):
            return gw.EveryEventTime(step * unit)
        return gw.EveryRows(self.more[phase]) if self.more.get(phase) else None

    def spec(self, unit: timedelta = timedelta(seconds=1)) -> gw.WindowedAggregation:
        get = self.more.get
        kind = self.shape[0]
        size = [s * unit for s in self.shape[1:]]
        emits: dict[str, Any] = {
            "close": gw.OnClose(),
            "update": gw.OnUpdate(),
            "complete": gw.Complete(),
            "change": gw.OnChange(),
            "every row": gw.EveryRow(),
            "rows": gw.Trigger(early=self.firing("early", unit), late=self.firing("late", unit)),
        }
        windows: dict[str, Any] = {
            "sliding": lambda: gw.SlidingWindow(*size),
            "cumulative": lambda: gw.CumulativeWindow(*size),
            "session": lambda: gw.SessionWindow(*size),
            "gaps": lambda: gw.SessionWindow(gw.column("gap")),
            "global": gw.GlobalWindow,
        }
        return gw.WindowedAggregation(
            window=windows[kind](),
            keys=["key"],
            time="time",
            aggregates={
                "n": gw.count(),
                "total": gw.sum("value"),
                "low": gw.min("value"),
                "high": gw.max("value"),
                "all": gw.collect_list("value"),
            },
            watermark=gw.BoundedOutOfOrderness(get("delay", 0) * unit),
            allowed_lateness=get("lateness", 0) * unit,
            emit=emits[get("emit", "close")],
            accumulation=get("accumulation", "accumulating"),
            semantics=gw.Semantics(
                watermark_advance="row" if get("by_row") else "batch",
                watermark_scope="key" if get("by_key") else "stream",
                close="after_end" if get("strict") else "at_end",
                late_by="timestamp" if get("late_by_time") else "window",
                late_firing="row" if get("late_each") else "batch",
                session_touch=get("touch", "merge"),
                session_late_check="after_merge" if get("late_after_merge") else "before_merge",
            ),
        )


KEYS = st.sampled_from(["a", "b", None])


@st.composite
def streams(draw: st.DrawFn) -> list[list[Row]]:
    """Batches of rows whose times wander about zero, some of them far behind."""
    size = draw(st.integers(0, 24))
    times, at = [], draw(st.integers(-20, 5))
    for _ in range(size):
        at += draw(st.integers(0, 4))
        times.append(at - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9])))
    rows = [(draw(KEYS), t, 2**k) for k, t in enumerate(times)]
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def grids() -> st.SearchStrategy[tuple[Any, ...]]:
    sliding = st.tuples(st.just("sliding"), st.integers(1, 9), st.integers(1, 6), st.integers(-3, 4))
    steps = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(-3, 4))
    cumulative = steps.map(lambda s: ("cumulative", s[0] * s[1], s[0], s[2]))
    return st.one_of(sliding, sliding, cumulative, st.just(("global",)))


def sessions() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.one_of(st.tuples(st.just("session"), st.integers(1, 6)), st.tuples(st.just("gaps"), st.integers(2, 6)))


@st.composite
def options(draw: st.DrawFn, kind: str) -> Options:
    more: dict[str, Any] = {"delay": draw(st.integers(0, 5)), "strict": draw(st.booleans())}
    lateness = st.sampled_from([0, 0, 3, 10])
    if kind == "panes":
        more |= {"emit": draw(st.sampled_from(["close", "update"])), "lateness": draw(lateness)}
        more["late_by_time"] = draw(st.booleans())
        return Options(draw(grids()), more)
    if kind == "by row":
        more |= {"by_row": True, "by_key": draw(st.booleans()), "late_by_time": draw(st.booleans())}
        more["emit"] = draw(st.sampled_from(["close", "every row", "rows"]))
        if more["emit"] == "rows":
            more |= {"early": draw(st.integers(0, 3)), "late": 1, "lateness": draw(lateness)}
        return Options(draw(st.one_of(grids(), sessions())), more)
    if kind == "complete":
        return Options(draw(st.one_of(grids(), sessions())), {"emit": "complete"})
    if kind == "ordered":  # nothing is ever late
        return Options(draw(st.one_of(grids(), sessions())), {"delay": 10_000})
    if kind == "changes":
        sliding = st.tuples(st.just("sliding"), st.integers(1, 4), st.integers(1, 4), st.just(0))
        return Options(draw(sliding.map(lambda s: ("sliding", s[1] * s[2], s[2], 0))), {"emit": "change", **more})
    more["lateness"] = draw(lateness)
    if kind in ("any windows", "any sessions"):
        more |= {name: draw(st.booleans()) for name in ("by_row", "by_key", "late_by_time", "late_each")}
        more["emit"] = draw(st.sampled_from(["rows", "rows", "every row", "close", "update"]))
        more["accumulation"] = draw(st.sampled_from(["accumulating", "discarding", "retracting"]))
        if more["emit"] == "rows":
            more |= {"early": draw(st.integers(0, 3)), "late": draw(st.integers(0, 2))}
        if kind == "any windows":
            return Options(draw(grids()), more)
    elif kind == "event time":
        more |= {"emit": "rows", "accumulation": draw(st.sampled_from(["accumulating", "discarding", "retracting"]))}
        more |= {"by_key": draw(st.booleans()), "early_time": draw(st.integers(0, 4))}
        more[draw(st.sampled_from(["late", "late_time"]))] = draw(st.integers(0, 3))
        if draw(st.booleans()):
            return Options(draw(grids()), more)
    elif kind in ("firings", "session firings"):
        emit = draw(st.sampled_from(["rows", "rows", "every row", "close"]))
        more |= {"emit": emit, "accumulation": draw(st.sampled_from(["accumulating", "discarding", "retracting"]))}
        if emit == "rows":
            more |= {"early": draw(st.integers(0, 3)), "late": draw(st.integers(0, 2))}
        more["late_each"] = draw(st.booleans())
    else:
        more["emit"] = draw(st.sampled_from(["close", "update"]))
    if kind == "firings":
        return Options(draw(grids()), more)
    more |= {"touch": draw(st.sampled_from(["merge", "split"])), "late_after_merge": draw(st.booleans())}
    return Options(draw(sessions()), more)


@dataclass
class Answers:
    rows: list[list[tuple[Any, ...]]]
    late: int
    pairs: int
    unassigned: int


def table_of(rows: Sequence[Row], gaps: int = 1) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([r[0] for r in rows], pa.string()),
            "time": pa.array([r[1] * SECOND for r in rows], pa.timestamp("us")),
            "value": pa.array([r[2] for r in rows], pa.int64()),
            "gap": pa.array([gap_of(r[2], gaps) * SECOND for r in rows], pa.duration("us")),
        }
    )


def _told(table: pa.Table, order_free: bool) -> list[tuple[Any, ...]]:
    start, end = (table.column(n).cast(pa.int64()).to_pylist() for n in ("window_start", "window_end"))
    out = []
    for row, s, e in zip(table.to_pylist(), start, end, strict=True):
        values = sorted(row["all"]) if order_free else row["all"]
        bounds = (None, None) if s is None else (s // SECOND, e // SECOND)
        rest = (row.get("pane", ""), row.get("is_retraction", False))
        out.append((row["key"], *bounds, row["n"], row["total"], row["low"], row["high"], tuple(values), *rest))
    return sorted(out, key=repr)


Changes = dict[int, Options]
"""Options by the number of a batch, with which the stream goes on behind it, from a snapshot."""


def answers(
    chosen: Options,
    stream: list[list[Row]],
    restore: bool = False,
    order_free: bool = False,
    then: Changes | None = None,
) -> Answers:
    spec = chosen.spec()
    op = spec.start(schema=table_of([]).schema)
    tables = []
    for k, batch in enumerate(stream):
        tables.append(op.process(table_of(batch, chosen.shape[1] if chosen.shape[0] == "gaps" else 1)))
        if then is not None and k in then:
            op = then[k].spec().restore(op.snapshot(), allow_changes=True)
        if restore:
            op = spec.restore(op.snapshot())
    tables.append(op.finish())
    m = op.metrics
    return Answers([_told(t, order_free) for t in tables], m.rows_late, m.window_rows_late, m.rows_unassigned)


def expected_answers(chosen: Options, stream: list[list[Row]], then: Changes | None = None) -> Answers:
    oracle = chosen.oracle()
    batches = []
    for k, batch in enumerate(stream):
        batches.append(oracle.process(batch))
        if then is not None and k in then:
            oracle.delay, oracle.lateness = then[k].more.get("delay", 0), then[k].more.get("lateness", 0)
    batches.append(oracle.finish())
    told = []
    for batch in batches:
        out = []
        for key, start, end, rows, pane, back in batch:
            bounds = (None, None) if start == NONE_YET or end == FOR_EVER else (start, end)
            pane = pane if chosen.more.get("emit") == "rows" else ""
            sums = (len(rows), sum(rows) if rows else None, min(rows, default=None), max(rows, default=None))
            in_order = tuple(sorted(rows))  # values rise in order of arrival
            out.append((key, *bounds, *sums, in_order, pane, back))
        told.append(sorted(out, key=repr))
    return Answers(told, oracle.rows_late, oracle.pairs_late, oracle.unassigned)

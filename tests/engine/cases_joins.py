"""Cases of kind "join"."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
from cases_runner import span, window_of

import gpuwin as gw


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

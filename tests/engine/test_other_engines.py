"""Worked examples of public pages, in the words that docs/semantics.md has for them. Each is played row by row, with a
snapshot after every row, and, where it says nothing of batches, in as few batches as there are watermarks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw

TEAM = [(26, 5), (146, 7), (219, 3), (259, 4), (186, 8), (399, 3), (86, 9), (446, 8), (466, 1)]
"""The scores of "Streaming Systems", chapter 2, in order of arrival: seconds after 12:00, points."""

PASSES = {1: 120, 4: 240, 5: 360, 8: 480}
"""Where its heuristic watermark comes to, after which of them."""

ROWS = [(i, 10 * i) for i in range(1, 8)]

EACH = gw.Trigger(gw.EveryRows(1), gw.EveryRows(1))
HOUR: dict[str, Any] = {"allowed_lateness": "1 hour"}
OF_ROWS: dict[str, Any] = {"window": gw.GlobalWindow(), "aggregates": {"points": gw.collect_list("points")}}

EXAMPLES: dict[str, tuple[list[tuple[int, int]], dict[int, int], dict[str, Any], list[tuple[Any, ...]]]] = {
    "Streaming Systems, a watermark that is wrong once": (
        TEAM,
        PASSES,
        {},
        [(0, 120, 5), (120, 240, 18), (240, 360, 4), (360, 480, 12)],
    ),
    "Streaming Systems, early, on time, late": (
        TEAM,
        PASSES,
        {"emit": EACH, **HOUR},
        [
            *((0, 120, 5, "early"), (120, 240, 7, "early"), (0, 120, 5, "on_time"), (120, 240, 10, "early")),
            *((240, 360, 4, "early"), (120, 240, 18, "early"), (120, 240, 18, "on_time"), (360, 480, 3, "early")),
            *((240, 360, 4, "on_time"), (0, 120, 14, "late"), (360, 480, 11, "early"), (360, 480, 12, "early")),
            (360, 480, 12, "on_time"),
        ],
    ),
    "Streaming Systems, sessions that take back": (
        TEAM,
        {},
        {"window": gw.SessionWindow("1 minute"), "emit": gw.OnUpdate(), "accumulation": "retracting"},
        [
            *((26, 86, 5, False), (146, 206, 7, False), (219, 279, 3, False)),
            *((219, 279, 3, True), (219, 319, 7, False)),
            *((146, 206, 7, True), (219, 319, 7, True), (146, 319, 22, False), (399, 459, 3, False)),
            *((26, 86, 5, True), (146, 319, 22, True), (26, 319, 36, False)),
            *((399, 459, 3, True), (399, 506, 11, False), (399, 506, 11, True), (399, 526, 12, False)),
        ],
    ),
    "Flink countWindow(3)": (
        ROWS,
        {},
        {**OF_ROWS, "emit": gw.Trigger(gw.EveryRows(3), on_time=False), "accumulation": "discarding"},
        [(None, None, [10, 20, 30], "early"), (None, None, [40, 50, 60], "early")],
    ),
    "Flink countWindow(4, 2)": (
        ROWS,
        {},
        {**OF_ROWS, "emit": gw.Trigger(gw.EveryRows(2), on_time=False, evict=gw.KeepLast(4))},
        [(None, None, points, "early") for points in ([10, 20], [10, 20, 30, 40], [30, 40, 50, 60])],
    ),
    "Kafka Streams, grace and suppress": (
        [(60, 1), (720, 1), (540, 1), (900, 1), (540, 1)],
        {},
        {"window": gw.TumblingWindow("10 minutes"), "watermark": gw.BoundedOutOfOrderness("5 minutes")},
        [(0, 600, 2), (600, 1200, 2)],
    ),
    "Kafka Streams, grace alone": (
        [(60, 1), (720, 1), (540, 1), (900, 1), (540, 1)],
        {},
        {
            "window": gw.TumblingWindow("10 minutes"),
            "watermark": gw.BoundedOutOfOrderness("0 seconds"),
            "allowed_lateness": "5 minutes",
            "emit": gw.OnUpdate(),
        },
        [(0, 600, 1), (600, 1200, 1), (0, 600, 2), (600, 1200, 2)],
    ),
    "Azure Stream Analytics, windows with their end": (
        [(1, 1), (5, 1), (10, 1), (11, 1)],
        {},
        {"window": gw.TumblingWindow("10 seconds", "1 microsecond")},
        [(0, 10, 3), (10, 20, 1)],
    ),
}


def spec_of(more: dict[str, Any]) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.TumblingWindow("2 minutes"),
        "aggregates": {"points": gw.sum("points")},
        "watermark": gw.ExplicitWatermark(),
    }
    return gw.WindowedAggregation(time="time", **{**given, **more})


def batch(rows: list[tuple[int, int]]) -> pa.Table:
    return pa.table({"time": pa.array([t for t, _ in rows], pa.timestamp("s")), "points": [n for _, n in rows]})


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    ends = [table[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    bounds = [[None if t is None else t // 1_000_000 for t in times] for times in ends]
    return list(zip(*bounds, *(column.to_pylist() for column in table.columns[2:]), strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str) -> None:
    rows, passes, more, answer = EXAMPLES[name]
    spec = spec_of(more)
    op, one_by_one = spec.start(device="cpu"), []
    for i, row in enumerate(rows):
        tables = [op.process(batch([row]))]
        if i in passes:
            tables.append(op.advance_watermark(passes[i] * 1_000_000))
        one_by_one += [line for table in tables for line in told(table)]
        op = spec.restore(op.snapshot(), device="cpu")
    one_by_one += told(op.finish())
    assert same(one_by_one, answer)
    if isinstance(spec.watermark, gw.ExplicitWatermark) and not isinstance(spec.emit, gw.OnUpdate):
        op, cut, at = spec.start(device="cpu"), [], 0
        for i in [*passes, len(rows) - 1]:
            cut += told(op.process(batch(rows[at : i + 1])))
            at = i + 1
            if i in passes:
                cut += told(op.advance_watermark(passes[i] * 1_000_000))
        assert same([*cut, *told(op.finish())], answer)


def same(found: list[tuple[Any, ...]], answer: list[tuple[Any, ...]]) -> bool:
    return Counter(map(repr, found)) == Counter(map(repr, answer))

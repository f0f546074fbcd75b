"""The pictures of the demo's page: the busiest day, times of batches, state, and the plan."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from .busiest import BusiestDay
from .drawing import Axis, Drawing, Frame, Point, runs_of
from .report import Comparison, hours, operators, replaced_nodes
from .runs import Batch

_WIDTH: Final = 880
_SIDES: Final = (("plain", "plain Spark"), ("device", "gpuwin"))


def busiest(day: BusiestDay) -> str:
    """Departures of each airport as stacked bars, one for each window, and the mean delay below them."""
    delays = [w.mean_delay for w in day.windows if w.mean_delay is not None]
    picture = Drawing(
        _WIDTH,
        442,
        f"{day.title}, by window",
        f"Departures of the last {hours(day)} hours at each hour, by airport, up to {day.most:,}; the mean delay "
        f"lies between {min(delays, default=0):.1f} and {max(delays, default=0):.1f} minutes.",
    )
    bars = Frame(70, 58, _WIDTH - 90, 200)
    axis = Axis.of([sum(w.departures) for w in day.windows])
    picture.axis(bars, axis, "flights")
    entries = [(f"airport-{i % 3}", a) for i, a in enumerate(day.airports)]
    picture.legend(bars.left, 18, entries)
    step = bars.width / len(day.windows)
    below = Frame(bars.left, bars.bottom + 70, bars.width, 70)
    delay_axis = Axis.of(delays)
    picture.axis(below, delay_axis, "minutes")
    picture.text(below.left, below.top - 12, "mean delay at departure", "strong")
    points: list[Point | None] = []
    for i, window in enumerate(day.windows):
        x, y = bars.left + i * step, bars.bottom
        for airport, departures in enumerate(window.departures):
            height = axis.share(departures) * bars.height
            y -= height
            picture.rect(x + step * 0.12, y, step * 0.76, height, f"airport-{airport % 3}")
        if i % 2:
            picture.text(x + step / 2, bars.bottom + 18, window.until, "tick", "middle")
            picture.text(x + step / 2, below.bottom + 18, window.until, "tick", "middle")
        shown = None if window.mean_delay is None else (x + step / 2, below.y(window.mean_delay, delay_axis))
        points.append(shown)
    for stretch in runs_of(points):
        picture.path(stretch, "neutral")
    picture.text(below.left + below.width, below.bottom + 34, f"end of the window of {hours(day)} h, New York time",
                 "tick", "end")  # fmt: skip
    return picture.svg()


def batch_times(c: Comparison) -> str:
    """Seconds of each micro-batch on both sides."""
    sides = {kind: outcome.batches for (kind, _), outcome in zip(_SIDES, (c.plain, c.device), strict=True)}
    words = {kind: f"{name}: {_median(sides[kind])}" for kind, name in _SIDES}
    picture = Drawing(_WIDTH, 290, f"Time of each micro-batch, {c.query.title}", "; ".join(words.values()) + ".")
    frame = Frame(70, 58, _WIDTH - 90, 180)
    axis = Axis.of([b.milliseconds / 1000 for batches in sides.values() for b in batches])
    picture.axis(frame, axis, "seconds")
    picture.legend(frame.left, 18, list(words.items()))
    count = max(c.batches, *(b.number + 1 for batches in sides.values() for b in batches), 1)
    step = frame.width / count
    for place, batches in enumerate(sides.values()):
        for b in batches:
            y = frame.y(b.milliseconds / 1000, axis)
            x = frame.left + (b.number + 0.12 + 0.38 * place) * step
            picture.rect(x, y, step * 0.36, frame.bottom - y, _SIDES[place][0])
    _number_batches(picture, frame, count)
    if c.plain.status == "stopped":
        x = frame.left + len(c.plain.batches) * step
        picture.line((x, frame.top), (x, frame.bottom), "stop")
        before = x > frame.left + frame.width * 0.6
        words_at = (x - 8, "end") if before else (x + 8, "start")
        picture.text(words_at[0], frame.top + 12, f"plain Spark stopped after {c.plain.seconds:.0f} s", "", words_at[1])
    return picture.svg()


def state(c: Comparison) -> str:
    """Rows and bytes of state at the end of each batch, on both sides."""
    most = f"plain Spark up to {c.plain.state_rows:,} rows, gpuwin up to {c.device.state_rows:,}"
    picture = Drawing(_WIDTH, 270, f"State after each micro-batch, {c.query.title}", f"{most}.")
    half = (_WIDTH - 170) / 2
    panels = (
        (Frame(80, 64, half, 150), "rows of state", "thousands", lambda b: b.state_rows / 1e3),
        (Frame(80 + half + 80, 64, half, 150), "memory of the state, as Spark reports it", "MiB", _mib),
    )
    picture.legend(80, 18, _SIDES)
    count = max(c.batches, *(b.number + 1 for o in (c.plain, c.device) for b in o.batches), 1)
    for frame, words, unit, value in panels:
        outcomes = (c.plain, c.device)
        axis = Axis.of([value(b) for o in outcomes for b in o.batches])
        picture.axis(frame, axis, unit)
        picture.text(frame.left, frame.top - 12, words, "strong")
        for (kind, _), outcome in zip(_SIDES, outcomes, strict=True):
            step = frame.width / count
            points = [(frame.left + (b.number + 0.5) * step, frame.y(value(b), axis)) for b in outcome.batches]
            picture.path(points, kind)
        _number_batches(picture, frame, count)
    return picture.svg()


def plan(c: Comparison) -> str:
    """Picture of Spark's plan of the aggregation beside gpuwin's; rows go from the bottom up."""
    nodes, ours = replaced_nodes(c), operators(c) or ["nothing"]
    title = f"The plan, {c.query.title}"
    picture = Drawing(
        _WIDTH, 110 + 62 * max(len(nodes), 2), title, f"In place of {', '.join(nodes) or 'nothing'}: {'; '.join(ours)}."
    )
    width, left, right = 380.0, 20.0, _WIDTH - 400.0
    bottom = picture.height - 40
    picture.text(left, 24, "plain Spark", "strong")
    picture.text(right, 24, "with gpuwin", "strong")
    for x in (left, right):
        picture.text(x + width / 2, bottom + 26, "rows of the stream", "tick", "middle")
    for kind, x, boxes in (("plain", left, nodes), ("device", right, [_name(o) for o in ours])):
        room = (bottom - 44) / max(len(boxes), 1)
        if not boxes:
            picture.text(x, 60, "No batch ended, so its plan is not known.")
        for i, words in enumerate(boxes):
            y = 44 + i * room
            picture.rect(x, y, width, room - 24, f"box {kind}-box", round_by=6)
            picture.text(x + width / 2, y + (room - 24) / 2 + 5, words, "", "middle")
            picture.arrow((x + width / 2, y + room - 2), (x + width / 2, y + room - 22))
    return picture.svg()


def _name(operator: str) -> str:
    """An operator and its keys: the beginning of what is said of it."""
    before, bracket, _ = operator.partition("]")
    return before + bracket


def _mib(batch: Batch) -> float:
    return batch.state_bytes / (1 << 20)


def _median(batches: tuple[Batch, ...]) -> str:
    if not batches:
        return "no batch ended"
    return f"median {median(b.milliseconds for b in batches) / 1000:.2f} s"


def _number_batches(picture: Drawing, frame: Frame, count: int) -> None:
    step = frame.width / count
    every = math.ceil(count * 40 / frame.width)
    for i in range(0, count, every):
        picture.text(frame.left + (i + 0.5) * step, frame.bottom + 18, str(i + 1), "tick", "middle")
    picture.text(frame.left + frame.width, frame.bottom + 36, "micro-batch", "tick", "end")

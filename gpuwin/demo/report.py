"""What the demo shows at its end: a table of both sides, the plan, and a chart of the busiest day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from .check import Check
from .queries import DemoQuery
from .runs import Outcome

NEW_YORK: Final = ZoneInfo("America/New_York")
_BAR_WIDTH: Final = 42


@dataclass(frozen=True)
class Comparison:
    """Both sides of one query; `check` is None where gpuwin did not finish."""

    query: DemoQuery
    batches: int
    plain: Outcome
    device: Outcome
    check: Check | None
    #: What the rows were compared with.
    against: str

    @property
    def right(self) -> bool:
        return self.check is not None and self.check.equal and self.device.offloaded


def table(comparisons: list[Comparison]) -> str:
    """A table with a line for each query."""
    head = ("query", "rows", "Spark", "gpuwin", "ratio", "rows of state", "rows equal")
    lines = [head, *(_cells(c) for c in comparisons)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = {0, 6}

    def line(cells: tuple[str, ...]) -> str:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * w for w in widths)
    return "\n".join([line(head), rule, *(line(c) for c in lines[1:])])


def notes(comparisons: list[Comparison]) -> list[str]:
    """A sentence for each thing in the table that needs one."""
    said = []
    for c in comparisons:
        if c.plain.status == "stopped":
            said.append(f"{c.query.title}: {_stopped(c)}")
        for side, outcome in (("plain Spark", c.plain), ("gpuwin", c.device)):
            if outcome.status == "failed":
                said.append(f"{c.query.title}: {side} failed. {outcome.message}")
        if c.check is not None and c.check.difference is not None:
            said.append(f"{c.query.title}: {c.check.difference}.")
        if c.device.status == "finished" and not c.device.offloaded:
            said.append(f"{c.query.title}: NOT all of its state was on gpuwin.\n{c.device.explanation}")
    return said


def plan(comparison: Comparison) -> str:
    """Which nodes of Spark's plan were replaced, and by what."""
    explained = comparison.device.explanation.strip()
    operators = [line[2:].partition(": ")[2] for line in explained.splitlines() if line.startswith(("+", "-"))]
    replaced = [n for n in comparison.plain.nodes if n not in comparison.device.nodes]
    copies = comparison.query.windows_per_row
    text = "\n".join(f"  gpuwin:  {o}" for o in operators)
    if replaced:
        nodes = [f"{n} (each row {copies} times)" if n == "Expand" else n for n in replaced]
        text = f"  Spark:   {' <- '.join(nodes)}\n{text}"
    return text


def chart(result: pa.Table, *, unicode: bool, size: timedelta) -> str:
    """The day with the most departures, hour by hour, out of the emitted windows alone.

    Args:
        result: of the query per origin, as `check.read_result` gives it.
        unicode: whether the terminal can show blocks.
        size: of the query's windows; a day must be a whole number of them.
    """
    by_end: dict[datetime, dict[str, tuple[int, float, int]]] = {}
    ends = result["end"].to_pylist()
    values = zip(
        result["origin"].to_pylist(),
        result["departures"].to_pylist(),
        result["mean_delay"].to_pylist(),
        result["cancelled"].to_pylist(),
        strict=True,
    )
    for end, (origin, departures, mean, cancelled) in zip(ends, values, strict=True):
        by_end.setdefault(end, {})[origin] = (departures, (mean or 0.0) * departures, cancelled)
    days: dict[datetime, int] = {}
    for end, origins in by_end.items():
        local = end.astimezone(NEW_YORK).replace(tzinfo=None)
        midnight = local.replace(hour=0, minute=0, second=0)
        if (local - midnight) % size == timedelta(0):  # windows that tile a day
            day = midnight - timedelta(days=1) if local == midnight else midnight
            days[day] = days.get(day, 0) + sum(n for n, _, _ in origins.values())
    if not days:
        return "(no window has closed, so there is no day to show)"
    busiest = max(days, key=lambda d: (days[d], d))
    blocks = "█▓░" if unicode else "#=-"
    airports = sorted(set(result["origin"].to_pylist()))
    legend = "  ".join(f"{b} {a}" for b, a in zip(blocks, airports, strict=False))
    hours = [(busiest + timedelta(hours=h)).replace(tzinfo=NEW_YORK) for h in range(1, 25)]
    shown = [(h, by_end.get(h.astimezone(ZoneInfo("UTC")), {})) for h in hours]
    most = max((sum(n for n, _, _ in o.values()) for _, o in shown), default=0) or 1
    lines = [
        f"The busiest day, {busiest:%A %d %B %Y}: {days[busiest]:,} departures. The last 6 hours, at each hour:",
        f"  {'until':<6} {legend:<{_BAR_WIDTH}}  {'flights':>7}  {'mean delay':>10}  {'cancelled':>9}",
    ]
    for hour, origins in shown:
        bar = ""
        for block, airport in zip(blocks, airports, strict=False):
            bar += block * round(origins.get(airport, (0, 0.0, 0))[0] / most * _BAR_WIDTH)
        flights = sum(n for n, _, _ in origins.values())
        late = sum(s for _, s, _ in origins.values())
        cancelled = sum(x for _, _, x in origins.values())
        delay = f"{late / flights:+.1f} min" if flights else ""
        name = "24:00" if hour.hour == 0 else f"{hour:%H:%M}"
        lines.append(f"  {name:<6} {bar:<{_BAR_WIDTH}}  {flights:>7,}  {delay:>10}  {cancelled:>9,}")
    return "\n".join(lines)


def _cells(c: Comparison) -> tuple[str, ...]:
    plain, device = c.plain, c.device
    equal = "no" if c.check is None or not c.check.equal else f"yes, to {c.against}"
    return (
        c.query.title,
        f"{c.check.rows:,}" if c.check else "-",
        _seconds(plain),
        _seconds(device),
        _ratio(plain, device),
        f"{plain.state_rows:,} / {device.state_rows:,}" if plain.batches else f"? / {device.state_rows:,}",
        equal,
    )


def _seconds(outcome: Outcome) -> str:
    return {
        "finished": f"{outcome.seconds:.1f} s",
        "stopped": f"> {outcome.seconds:.0f} s",
        "failed": "failed",
    }[outcome.status]


def _ratio(plain: Outcome, device: Outcome) -> str:
    if device.status != "finished" or plain.status == "failed":
        return "-"
    ratio = plain.seconds / device.seconds
    if plain.status == "finished":
        return f"{ratio:.1f}x"
    return f"> {ratio:.1f}x" if ratio > 1 else "-"


def _stopped(c: Comparison) -> str:
    """What is known of a run of plain Spark that was ended."""
    done = len(c.plain.batches)
    text = f"plain Spark was stopped after {c.plain.seconds:.0f} s, in batch {done + 1} of {c.batches}"
    if done:
        pace, than = c.plain.batches[-1].elapsed / done * c.batches, ""
    else:
        pace, than = c.plain.seconds * c.batches, "more than "
    text += f"; at that pace it needs {than}{_duration(pace)}"
    if c.device.status == "finished":
        text += f", {than}{pace / c.device.seconds:.0f} times as long as gpuwin"
    return f"{text}. The rows of gpuwin were checked against {c.against}."


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"

"""Report of the demo: sentences about each comparison, a table of both sides, the plan, and the busiest day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .busiest import BusiestDay
from .check import Check
from .queries import DemoQuery
from .runs import Batch, Outcome

RECOMPUTED: Final = "a recomputation without Spark"
NO_DAY: Final = "(no window has closed, so there is no day to show)"
_BAR_WIDTH: Final = 42


@dataclass(frozen=True)
class Comparison:
    """Both sides of one query.

    Attributes:
        query: that both ran.
        batches: micro-batches that there were.
        plain: the run on plain Spark.
        device: the run on gpuwin.
        check: of all of gpuwin's rows; None where gpuwin did not finish.
        against: what all rows were compared with.
        emitted: of the rows of the batches that plain Spark committed before it was stopped, against gpuwin's of the
            same batches; None where plain Spark was not stopped, or gpuwin did not finish.
    """

    query: DemoQuery
    batches: int
    plain: Outcome
    device: Outcome
    check: Check | None
    against: str
    emitted: Check | None = None

    @property
    def right(self) -> bool:
        whole = self.check is not None and self.check.equal and self.device.offloaded
        return whole and (self.emitted.equal if self.emitted is not None else self.plain.status != "stopped")

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of plain Spark, or those at the pace of its batches; None where that is not known."""
        if self.plain.status == "finished":
            return self.plain.seconds
        if self.plain.status == "stopped" and self.plain.batches:
            return self.plain.batches[-1].elapsed / len(self.plain.batches) * self.batches
        return None

    @property
    def ratio(self) -> float | None:
        """Ratio of the times of plain Spark and gpuwin; an estimate where plain Spark was stopped; None where it is not
        known.
        """
        whole = self.plain_seconds
        return whole / self.device.seconds if whole is not None and self.device.status == "finished" else None


def table(comparisons: list[Comparison]) -> str:
    """A table with a line for each query."""
    head = ("query", "rows", "Spark", "gpuwin", "ratio", "rows of state", "rows equal")
    lines = [head, *(cells(c) for c in comparisons)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = {0, 6}

    def line(cells: tuple[str, ...]) -> str:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * w for w in widths)
    return "\n".join([line(head), rule, *(line(c) for c in lines[1:])])


def cells(c: Comparison) -> tuple[str, ...]:
    """The table's line of one query: title, rows, both times, ratio, rows of state of both, and what rows equal."""
    plain, device = c.plain, c.device
    return (
        c.query.title,
        f"{c.check.rows:,}" if c.check else "-",
        _seconds(c, plain),
        _seconds(c, device),
        _ratio(c),
        f"{plain.state_rows:,} / {device.state_rows:,}" if plain.batches else f"? / {device.state_rows:,}",
        _equal(c),
    )


def sentences(c: Comparison) -> list[str]:
    """All that there is to say of one comparison, beyond the table, in order."""
    said = []
    if c.plain.status == "stopped":
        said.append(stopped(c.plain, c.batches))
    if c.emitted is not None:
        said.append(first_batches(c.plain.batches, c.device.batches, c.emitted))
    return said + findings(c)


def findings(c: Comparison) -> list[str]:
    """Sentences about a comparison once both sides have ended: failures, and all rows."""
    said = []
    for side, outcome in (("Plain Spark", c.plain), ("gpuwin", c.device)):
        if outcome.status == "failed":
            said.append(f"{side} failed. {outcome.message}")
    if c.check is not None:
        whole = f"All {c.check.rows:,} rows equal {c.against}."
        said.append(f"NOT equal to {c.against}: {c.check.difference}." if c.check.difference else whole)
    if c.device.status == "finished" and not c.device.offloaded:
        said.append(f"NOT all of its state was on gpuwin.\n{c.device.explanation}")
    return said


def stopped(plain: Outcome, batches: int) -> str:
    """Sentence about a run of plain Spark that was stopped: its batches, and the time of all of them at its pace."""
    done = len(plain.batches)
    text = f"Plain Spark had done {done} of {batches} batches when it was stopped after {plain.seconds:.0f} s"
    if not done:
        return f"{text}, so it would take more than {duration(plain.seconds * batches)}."
    return f"{text}; at that pace it would take about {duration(plain.batches[-1].elapsed / done * batches)}."


def first_batches(plain: Sequence[Batch], device: Sequence[Batch], check: Check) -> str:
    """Sentence about the batches that plain Spark did: the time of both sides, and whether their rows are equal."""
    done = min(len(plain), len(device))
    text = ""
    if done:
        slow, fast = plain[done - 1].elapsed, device[done - 1].elapsed
        them = "the first batch" if done == 1 else f"the first {done} batches"
        text = f"For {them} plain Spark took {slow:.1f} s and gpuwin {fast:.1f} s: {slow / fast:.1f} times as fast. "
    if check.difference:
        return f"{text}The rows that plain Spark had emitted by then are NOT gpuwin's: {check.difference}."
    if not check.rows:
        return f"{text}No rows had been emitted by then."
    return f"{text}All {check.rows:,} rows that plain Spark had emitted by then equal gpuwin's."


def plan(comparison: Comparison) -> str:
    """Nodes of Spark's plan that were replaced, and those in their place."""
    lines = [f"  gpuwin:  {o}" for o in operators(comparison)]
    replaced = replaced_nodes(comparison)
    if replaced:
        lines.insert(0, f"  Spark:   {' <- '.join(replaced)}")
    return "\n".join(lines)


def operators(comparison: Comparison) -> list[str]:
    """Lines of `gw.spark.explain` about each stateful operator."""
    lines = comparison.device.explanation.strip().splitlines()
    return [line[2:].partition(": ")[2] for line in lines if line.startswith(("+", "-"))]


def replaced_nodes(comparison: Comparison) -> list[str]:
    """The nodes of Spark's plan that gpuwin took the place of, the last first."""
    nodes = [n for n in comparison.plain.nodes if n not in comparison.device.nodes]
    return [f"{n} (each row {comparison.query.windows_per_row:,} times)" if n == "Expand" else n for n in nodes]


def chart(day: BusiestDay | None, *, unicode: bool) -> str:
    """The busiest day, window by window, as bars of text; `unicode`: whether the terminal can show blocks."""
    if day is None:
        return NO_DAY
    blocks = "█▓░" if unicode else "#=-"
    legend = "  ".join(f"{b} {a}" for b, a in zip(blocks, day.airports, strict=False))
    lines = [
        f"{day.title}. The last {hours(day)} hours, at each hour:",
        f"  {'until':<6} {legend:<{_BAR_WIDTH}}  {'flights':>7}  {'mean delay':>10}  {'cancelled':>9}",
    ]
    for window in day.windows:
        bar = ""
        for block, departures in zip(blocks, window.departures, strict=False):
            bar += block * round(departures / (day.most or 1) * _BAR_WIDTH)
        delay = f"{window.mean_delay:+.1f} min" if window.mean_delay is not None else ""
        flights = sum(window.departures)
        lines.append(f"  {window.until:<6} {bar:<{_BAR_WIDTH}}  {flights:>7,}  {delay:>10}  {window.cancelled:>9,}")
    return "\n".join(lines)


def hours(day: BusiestDay) -> int:
    """The hours of the day's windows."""
    return round(day.size.total_seconds() / 3600)


def duration(seconds: float) -> str:
    """A time in plain words: seconds, minutes from 100 s, hours from two."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def _equal(c: Comparison) -> str:
    if not c.right:
        return "no"
    if c.emitted is not None and c.emitted.rows:
        return f"yes, to {c.against}, and to Spark's {c.emitted.rows:,}"
    return f"yes, to {c.against}"


def _seconds(c: Comparison, outcome: Outcome) -> str:
    if outcome.status == "finished":
        return f"{outcome.seconds:.1f} s"
    if outcome.status == "failed":
        return "failed"
    whole = c.plain_seconds
    return f"about {duration(whole)}" if whole is not None else f"> {outcome.seconds:.0f} s"


def _ratio(c: Comparison) -> str:
    if c.ratio is None:
        return "-"
    return f"{c.ratio:.1f}x" if c.plain.status == "finished" else f"about {c.ratio:.0f}x"

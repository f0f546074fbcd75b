"""Estimate of how much faster a query may become: the range of an estimate, with its arithmetic, and no promise."""

from __future__ import annotations

from dataclasses import dataclass

from .progress import Batch


@dataclass(frozen=True)
class Gain:
    """A range for old time / new time, and the lines that show where it comes from.

    Attributes:
        low: if only the time in the state falls.
        high: if all of addBatch falls as the copies of rows do; where there are none, if the state costs nothing.
        arithmetic: the calculation, line by line.
    """

    low: float
    high: float
    arithmetic: tuple[str, ...]


def estimate(batches: list[Batch], at: int, overlap: int | None, cores: int | None = None) -> Gain | None:
    """The range for offloading operator number `at` of these batches; None where no batch took any time.

    Spark copies a row that lies in k windows k times, and those copies are aggregated, shuffled, and written to the
    state; gpuwin puts it into one pane. Reports give T (triggerExecution), A (addBatch), and the time S that tasks
    spent in the state (updates, removals, commit), but not the time of the copies, of reading and of the sink, so:

    * high: all of A shrinks to A/k. Where k is 1, or unknown, only S can be saved, and all of it on one core.
    * low: S alone shrinks to S/k, while tasks ran on as many cores as there are partitions. Where k is 1 or unknown: 1,
      since whether a segment is cheaper to write than its rows is not in the reports.

    The first batch with rows is left out if there are others: it compiles code on either side.
    """
    busy = [b for b in batches if b.rows > 0 and at < len(b.operators)]
    busy = busy[1:] or busy
    trigger, add = sum(b.trigger_ms for b in busy), sum(b.add_batch_ms for b in busy)
    if trigger <= 0 or add <= 0:
        return None
    state = sum(b.operators[at].state_ms for b in busy)
    parallel = max(1, min([b.operators[at].instances for b in busy] + ([cores] if cores else [])))
    k = overlap or 1
    wall = min(state / parallel, add)
    low = trigger / (trigger - wall + wall / k)
    rest = add / k if k > 1 else add - min(state, add)
    floor = max(trigger - add + rest, 1.0)
    high = trigger / floor
    clock = state / parallel
    lines = (
        f"{len(busy)} batches, {sum(b.rows for b in busy)} rows: T = {trigger} ms, of which addBatch A = {add} ms",
        f"time of tasks in the state: S = {state} ms, at least {state}/{parallel} = {clock:.0f} ms by the clock",
        f"rows lie in k = {k} windows" + ("" if overlap else " at least (the window is not known)"),
        f"low  = T / (T - S' + S'/k) = {trigger} / ({trigger} - {wall:.0f} + {wall / k:.0f}) = {low:.2f}, "
        f"where S' = {wall:.0f} ms",
        f"high = T / (T - A + A/k) = {trigger} / ({trigger - add} + {rest:.0f}) = {high:.2f}"
        if k > 1
        else f"high = T / (T - min(S, A)) = {trigger} / {floor:.0f} = {high:.2f}",
    )
    return Gain(low, max(low, high), lines)

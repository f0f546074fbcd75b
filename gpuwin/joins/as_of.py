"""Join of each left row with the newest right row of its key that is not after it: as of its time.

Left rows wait until the watermark has passed them, since until then a newer right row may come. Of the right rows that
it has passed, a run keeps the newest of each key, and a tolerance evicts those that are too old: no later left row asks
for others. Runs fall in size as everywhere, so a key has a row in a few of them, and the newest of these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gpuwin.joins.interval import Sides
from gpuwin.joins.kernels import CPU, JoinKernels
from gpuwin.joins.side import Alone, Found, Side, shifted
from gpuwin.state.rows.gathering import gathered
from gpuwin.state.rows.row_runs import RowRun, tidied_runs
from gpuwin.state.rows.waiting_rows import WaitingRows
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.order import order_in_threads
from gpuwin_kernels.cpu.parallel import each


@dataclass(frozen=True, slots=True)
class _Source:
    """Right rows to look for partners in: a run without values, and where the values of its rows lie."""

    run: RowRun
    values: tuple[pa.Array, ...]
    order: np.ndarray | None = None  # int64[n]: places of the values of the rows; None: in the order of the rows

    @classmethod
    def of_run(cls, run: RowRun) -> _Source:
        return cls(replace(run, values=()), run.values)

    @classmethod
    def of_rows(cls, rows: WaitingRows) -> _Source:
        """Rows that came since the watermark moved last. Most are not asked for, so only their numbers are sorted."""
        order = order_in_threads(rows.code, rows.time)
        (code, time, seq), _ = gathered((rows.code, rows.time, rows.seq), (), order)
        return cls(RowRun.of_sorted(code, time, seq, ()), rows.values, order)

    def taken(self, at: np.ndarray) -> list[pa.Array]:
        """Values of the rows at some places, int64."""
        return gathered((), self.values, at if self.order is None else self.order[at])[1]

    def run_of(self, at: np.ndarray) -> RowRun:
        """Run of the rows at some places, int64, at least one, ascending."""
        (code, time, seq), _ = gathered((self.run.code, self.run.time, self.run.seq), (), at)
        return RowRun.of_sorted(code, time, seq, self.taken(at))


@dataclass(frozen=True, slots=True)
class AsOfLogic:
    """Logic of an as-of join. `tolerance`: how old a partner may be, microseconds; None: as old as there are."""

    tolerance: int | None
    exact: bool  # whether a right row of the same time is a partner
    keep_left: bool
    alone: Alone | None = None
    kernels: JoinKernels = field(default=CPU, repr=False, compare=False)

    @property
    def keep_right(self) -> bool:
        """Whether right rows without a partner come out: in none of these joins."""
        return False

    @property
    def waits(self) -> bool:
        """Whether new rows wait until they leave: nobody looks for them before the watermark has passed them."""
        return True

    def empty(self, left: Side, right: Side) -> Sides:
        return Sides(left, right)

    def add(self, sides: Sides, left: WaitingRows | None, right: WaitingRows | None) -> tuple[Sides, list[Found]]:
        """State with new rows of both sides, without late ones."""
        return Sides(sides.left.with_rows(left), sides.right.with_rows(right)), []

    def advance(self, sides: Sides, watermark: int) -> tuple[Sides, list[Found]]:
        """State once no row with time < watermark (the largest int64: none at all) comes any more, on either side, and
        the left rows before it with their partners, by key, time and arrival.
        """
        settled, right = sides.right.settled(watermark)
        sources = [_Source.of_run(run) for run in right.runs]
        if settled is not None:
            sources.append(_Source.of_rows(settled))
        rows = sides.left.older(watermark)
        found = [] if rows is None else self._joined(sources, rows)
        left = sides.left.evicted(watermark)
        if watermark == INT64_MAX:
            return Sides(left, right.evicted(watermark)), found
        runs = [_thinned(run, watermark) if run.sample[-1] >= sides.left.before else run for run in right.runs]
        if settled is not None:
            runs.append(sources[-1].run_of(_newest_of_keys(sources[-1].run, watermark)))
        before = right.before if self.tolerance is None else max(watermark - self.tolerance, INT64_MIN)
        tidied = tidied_runs(runs, before, lambda run: _thinned(run, watermark))
        return Sides(left, replace(right, runs=tidied, before=before)), found

    def finish(self, sides: Sides) -> tuple[Sides, list[Found]]:
        return self.advance(sides, INT64_MAX)

    def _joined(self, sources: Sequence[_Source], rows: RowRun | WaitingRows) -> list[Found]:
        """Left rows, by key, time and arrival, with their partners; or those alone that have one, or none."""
        order = order_in_threads(rows.code, rows.time)
        (code, time), _ = gathered((rows.code, rows.time), (), order)
        source, place = self._partners(sources, code, time)
        if self.alone is not None or not self.keep_left:
            at = np.flatnonzero((source >= 0) != (self.alone == "anti"))
            order, source, place = order[at], source[at], place[at]
        if not len(order):
            return []
        mine = tuple(gathered((), rows.values, order)[1])
        theirs = None
        if self.alone is None and (source >= 0).any():
            theirs = tuple(_values(sources, source, place))
        return [Found(mine, theirs, len(order))]

    def _partners(
        self, sources: Sequence[_Source], code: np.ndarray, time: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Partners of left rows with these codes (int32[n]) and times (int64[n]), in that order: the number of a
        source, int64[n], -1 for none, and the place in it, int64[n].
        """
        most = time if self.exact else shifted(time, -1)
        source, place = np.full(len(time), -1), np.full(len(time), -1)
        when, arrival = np.full(len(time), INT64_MIN), np.full(len(time), -1)
        for number in reversed(range(len(sources))):  # the last has the newest rows, which mostly decides
            run = sources[number].run
            asked = np.flatnonzero(when <= run.sample[-1])
            at = self.kernels.newest(run, code[asked], most[asked])
            theirs, seq = run.time[at], run.seq[at]  # of no row, where there is none
            better = (at >= 0) & ((theirs > when[asked]) | (seq > arrival[asked]))
            if not self.exact:
                better &= theirs < time[asked]  # nothing is before the smallest int64
            if self.tolerance is not None:
                better &= theirs >= shifted(time[asked], -self.tolerance)
            asked, at = asked[better], at[better]
            source[asked], place[asked] = number, at
            when[asked], arrival[asked] = theirs[better], seq[better]
        return source, place


def _newest_of_keys(run: RowRun, watermark: int) -> np.ndarray:
    """Places of the newest row of each key with time < watermark, and of all others, ascending; int64."""
    last = np.concatenate((run.code[1:] != run.code[:-1], [True]))
    last[:-1] |= run.time[1:] >= watermark  # the next row of the key is one of the others
    return np.flatnonzero(last)


def _thinned(run: RowRun, watermark: int) -> RowRun:
    """Run without the rows that a newer one of their key replaces, if these are half of it."""
    at = _newest_of_keys(run, watermark)
    return run if 2 * len(at) > len(run) else _Source.of_run(run).run_of(at)


def _values(sources: Sequence[_Source], source: np.ndarray, place: np.ndarray) -> list[pa.Array]:
    """Values at these places of sources, int64[n] each, at least one; null where the source is -1."""
    rows = [np.flatnonzero(source == number) for number in range(len(sources))]
    some = [number for number, at in enumerate(rows) if len(at)]
    taken = [sources[number].taken(place[rows[number]]) for number in some]
    if len(some) == 1 and len(rows[some[0]]) == len(source):
        return taken[0]
    columns = [pa.concat_arrays(parts) for parts in zip(*taken, strict=True)]
    at = np.full(len(source), -1)
    found = np.concatenate([rows[number] for number in some])
    at[found] = np.arange(len(found))
    if len(found) == len(at):
        return gathered((), columns, at)[1]
    places = pa.array(at, mask=at < 0)
    return each(lambda column: column.take(places), columns)

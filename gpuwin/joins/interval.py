"""Join of rows that meet within a span of time: every new row finds its partners among the rows kept of the other side.

A hash join is the case without a span: rows meet whenever they come, and none is ever evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gpuwin.joins.kernels import CPU, JoinKernels
from gpuwin.joins.side import Alone, Found, Side, shifted
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN


@dataclass(frozen=True, slots=True)
class Sides:
    left: Side
    right: Side


@dataclass(frozen=True, slots=True)
class IntervalLogic:
    """Logic of an interval join: `lower <= right time - left time <= upper`, microseconds, both inclusive; None: no
    bound (hash join).
    """

    lower: int | None
    upper: int | None
    keep_left: bool
    keep_right: bool
    alone: Alone | None = None
    kernels: JoinKernels = field(default=CPU, repr=False, compare=False)

    @property
    def waits(self) -> bool:
        """Whether new rows wait until they leave. Here the next batch looks for partners among them."""
        return False

    def empty(self, left: Side, right: Side) -> Sides:
        return Sides(left, right)

    def add(self, sides: Sides, left: RowRun | None, right: RowRun | None) -> tuple[Sides, list[Found]]:
        """State with new rows of both sides, without late ones, and the pairs that they make with kept rows and with
        each other.
        """
        l_side, r_side = sides.left, sides.right
        found: list[Found] = []
        if left is not None:
            l_side, r_side, pairs = self._added(l_side, r_side, left, is_left=True)
            found += pairs
        if right is not None:
            r_side, l_side, pairs = self._added(r_side, l_side, right, is_left=False)
            found += pairs
        return Sides(l_side, r_side), found

    def _added(self, mine: Side, other: Side, rows: RowRun, *, is_left: bool) -> tuple[Side, Side, list[Found]]:
        """One side with new rows, the other side with marks at their partners, and the pairs."""
        if is_left:
            lower, upper, keep_mine, keep_other = self.lower, self.upper, self.keep_left, self.keep_right
        else:
            lower, upper, keep_mine, keep_other = (
                _negated(self.upper),
                _negated(self.lower),
                self.keep_right,
                self.keep_left,
            )
        semi = self.alone == "semi"
        marks_mine, marks_other = keep_mine or (semi and is_left), keep_other or (semi and not is_left)
        found: list[Found] = []
        met, partners = [], []
        least, most = self._span(rows.time, lower, upper)
        for number, who, position in other.partners(rows, least, most, self.kernels):
            run = other.runs[number]
            if self.alone is None:
                theirs = run.take(position)
                found.append(_found(rows.take(who), theirs, len(who), is_left))
            elif semi and not is_left:
                first = _each_once(position, len(run))
                first = first[run.marks()[first] == 0]
                found.append(Found(run.take(first), None, len(first)))
            met.append(who)
            partners.append((number, position))
        if met and semi and is_left:
            some = _each_once(np.concatenate(met), len(rows))
            found.append(Found(rows.take(some), None, len(some)))
        if marks_mine and met:
            rows = rows.with_marks(np.concatenate(met))
        if marks_other:
            other = other.marked(partners)
        if keep_mine:
            found += [_found(v, None, len(v[0]), is_left) for v in mine.unmatched_at_once(rows)]
        return mine.with_rows(rows.kept(mine.before)), other, found

    @staticmethod
    def _span(time: np.ndarray, lower: int | None, upper: int | None) -> tuple[np.ndarray, np.ndarray]:
        least = np.full(len(time), INT64_MIN) if lower is None else shifted(time, lower)
        most = np.full(len(time), INT64_MAX) if upper is None else shifted(time, upper)
        return least, most

    def advance(self, sides: Sides, watermark: int) -> tuple[Sides, list[Found]]:
        """State once no row with time < watermark comes any more, on either side: rows without a future are evicted,
        unmatched ones as outer rows.

        A left row meets right rows up to its time + upper, so it leaves once that is before the watermark; the other
        side likewise.
        """
        left_before = self._leaves(watermark, self.upper)
        right_before = self._leaves(watermark, _negated(self.lower))
        return self._leave(sides, left_before, right_before)

    def finish(self, sides: Sides) -> tuple[Sides, list[Found]]:
        return self._leave(sides, INT64_MAX, INT64_MAX)

    @staticmethod
    def _leaves(watermark: int, reach: int | None) -> int:
        if reach is None:
            return INT64_MIN
        return int(min(max(watermark - reach, INT64_MIN), INT64_MAX - 1))

    def _leave(self, sides: Sides, left_before: int, right_before: int) -> tuple[Sides, list[Found]]:
        found: list[Found] = []
        if self.keep_left:
            for values in sides.left.unmatched(left_before):
                found.append(Found(values, None, len(values[0])))
        if self.keep_right:
            for values in sides.right.unmatched(right_before):
                found.append(Found(None, values, len(values[0])))
        return replace(sides, left=sides.left.evicted(left_before), right=sides.right.evicted(right_before)), found


def _each_once(position: np.ndarray, rows: int) -> np.ndarray:
    """Positions below `rows` that are among these, ascending."""
    there = np.zeros(rows, bool)
    there[position] = True
    return np.flatnonzero(there)


def _negated(bound: int | None) -> int | None:
    return None if bound is None else min(-bound, INT64_MAX)


def _found(mine: tuple[pa.Array, ...], theirs: tuple[pa.Array, ...] | None, rows: int, is_left: bool) -> Found:
    return Found(mine, theirs, rows) if is_left else Found(theirs, mine, rows)

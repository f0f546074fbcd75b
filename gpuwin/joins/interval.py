"""Join of rows that meet within a span of time: every new row finds its partners among the rows kept of the other side.

A hash join is the case without a span: rows meet whenever they come, and none is ever evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gpuwin.joins.kernels import CPU, JoinKernels
from gpuwin.joins.side import Found, Side, shifted
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
    kernels: JoinKernels = field(default=CPU, repr=False, compare=False)

    def empty(self, left: Side, right: Side) -> Sides:
        return Sides(left, right)

    def add(self, sides: Sides, left: RowRun | None, right: RowRun | None) -> tuple[Sides, list[Found]]:
        """State with new rows of both sides, without late ones, and the pairs that they make with kept rows and with
        each other.
        """
        found: list[Found] = []
        l_side, r_side = sides.left, sides.right
        if left is not None:
            least, most = self._span(left.time, self.lower, self.upper)
            mine, theirs = [], []
            for number, who, position in r_side.partners(left, least, most, self.kernels):
                partner = r_side.runs[number].take(position)
                found.append(Found(l_side.plain(left.take(who)), r_side.plain(partner), len(who)))
                mine.append(who)
                theirs.append((number, position))
            if self.keep_left and mine:
                left = left.with_marks(np.concatenate(mine))
            if self.keep_right:
                r_side = r_side.marked(theirs)
            if self.keep_left:
                found += [Found(l_side.plain(v), None, len(v[0])) for v in l_side.unmatched_at_once(left)]
            l_side = l_side.with_run(left.kept(l_side.before))
        if right is not None:
            least, most = self._span(
                right.time, None if self.upper is None else -self.upper, None if self.lower is None else -self.lower
            )
            mine, theirs = [], []
            for number, who, position in l_side.partners(right, least, most, self.kernels):
                partner = l_side.runs[number].take(position)
                found.append(Found(l_side.plain(partner), r_side.plain(right.take(who)), len(who)))
                mine.append(who)
                theirs.append((number, position))
            if self.keep_right and mine:
                right = right.with_marks(np.concatenate(mine))
            if self.keep_left:
                l_side = l_side.marked(theirs)
            if self.keep_right:
                found += [Found(None, r_side.plain(v), len(v[0])) for v in r_side.unmatched_at_once(right)]
            r_side = r_side.with_run(right.kept(r_side.before))
        return Sides(l_side, r_side), found

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
        right_before = self._leaves(watermark, None if self.lower is None else -self.lower)
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
                found.append(Found(sides.left.plain(values), None, len(values[0])))
        if self.keep_right:
            for values in sides.right.unmatched(right_before):
                found.append(Found(None, sides.right.plain(values), len(values[0])))
        return replace(sides, left=sides.left.evicted(left_before), right=sides.right.evicted(right_before)), found

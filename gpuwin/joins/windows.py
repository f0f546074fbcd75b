"""Join of rows in a window: both sides are kept until the window closes, and then paired group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.grid import WindowGrid
from gpuwin.joins.kernels import CPU, JoinKernels
from gpuwin.joins.side import Alone, Found, Side, fits
from gpuwin.joins.spans import Spans, in_parts
from gpuwin.state.rows.gathering import gathered
from gpuwin.state.rows.row_runs import RowRun, stored_type
from gpuwin.state.rows.row_state import rows_of_windows, window_edges
from gpuwin.state.rows.waiting_rows import WaitingRows
from gpuwin.state.sessions.assignment import Touch, assign
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of
from gpuwin_kernels.cpu.order import order_by_code, order_in_threads
from gpuwin_kernels.cpu.parallel import each
from gpuwin_kernels.layout import CellLayout

Keep = Literal["all", "first", "last"]
NO_COLUMNS = CellLayout(())


@dataclass(frozen=True, slots=True)
class WindowSides:
    left: Side
    right: Side
    sessions: SessionState  # of the rows of both sides together
    closed: int = INT64_MIN  # grid: the last window that is closed


@dataclass(frozen=True, slots=True)
class _Members:
    """Rows of one side in the closing windows, by (code, window, time, arrival); `window` numbers them for the
    kernels.
    """

    values: tuple[pa.Array, ...]
    row: np.ndarray  # int64[k], places among the values
    code: np.ndarray  # int32[k]
    window: np.ndarray  # int64[k]

    @classmethod
    def of(cls, run: RowRun | None, row: np.ndarray, window: np.ndarray) -> _Members:
        """Members in any order."""
        if run is None or not len(row):
            return _NOBODY
        code = run.code[row]
        order = order_by_code(code, window)
        return cls(run.values, row[order], code[order], window[order])

    def chosen(self, keep: Keep) -> _Members:
        """The members of each (code, window) that are paired."""
        if keep == "all" or not len(self.row):
            return self
        differs = (self.code[1:] != self.code[:-1]) | (self.window[1:] != self.window[:-1])
        some = np.concatenate(([True], differs)) if keep == "first" else np.concatenate((differs, [True]))
        return _Members(self.values, self.row[some], self.code[some], self.window[some])

    def take(self, side: Side, at: np.ndarray) -> tuple[pa.Array, ...]:
        """Values of these members, of stored types, null where at is -1."""
        if not len(self.row):
            return tuple(pa.nulls(len(at), stored_type(type_)) for type_ in side.types)
        if len(at) and ends_of(at)[0] < 0:
            rows = pa.array(self.row[at], mask=at < 0)
            return tuple(each(lambda values: values.take(rows), self.values))
        return tuple(gathered((), self.values, self.row[at])[1])


_NOBODY = _Members((), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class WindowLogic:
    """Logic of a window join. One of `grid` and `gap` is given, or neither: one window for ever."""

    grid: WindowGrid | None
    gap: int | None
    touch: Touch
    last_event: bool  # a session ends with its last event, not a gap later
    keep_left: bool
    keep_right: bool
    cogroup: bool
    keep: Keep
    alone: Alone | None = None
    kernels: JoinKernels = field(default=CPU, repr=False, compare=False)

    @property
    def keeps(self) -> tuple[Keep, Keep]:
        """Rows of each side that are paired. For left rows alone one partner says as much as all."""
        return self.keep, "first" if self.alone is not None and self.keep == "all" else self.keep

    @property
    def waits(self) -> bool:
        """Whether new rows wait until they leave: those that are in one window are read once."""
        return self.grid is not None and not self.grid.overlaps

    def empty(self, left: Side, right: Side) -> WindowSides:
        return WindowSides(left, right, SessionState.empty(NO_COLUMNS))

    def fate(self, time: np.ndarray, closed: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Late and unassigned rows, bool[n] each: all windows of a late row have ended by `closed`; an unassigned row
        is in no window.
        """
        nowhere = np.zeros(len(time), bool)
        if self._none_late(time, closed):
            late = nowhere
        elif self.grid is not None:
            first, last = self.grid.windows_of(self.grid.panes(time))
            nowhere = last < first
            late = nowhere if closed is None else self.grid.ends(last) <= closed
        elif self.gap is not None and closed is not None:
            late = time <= closed - self.gap
        else:
            late = nowhere
        return late & ~nowhere, nowhere

    def _none_late(self, time: np.ndarray, closed: int | None) -> bool:
        """Whether the oldest row says so: where there are no gaps, each row is in a window that ends after it."""
        if self.grid is None or self.grid.gaps:
            return False
        return closed is None or not len(time) or closed <= min(ends_of(time)[0], INT64_MAX - 1)

    def add(
        self, sides: WindowSides, left: RowRun | WaitingRows | None, right: RowRun | WaitingRows | None
    ) -> tuple[WindowSides, list[Found]]:
        some = [rows for rows in (left, right) if rows is not None]
        sessions = sides.sessions
        if self.gap is not None and some:
            code = np.concatenate([rows.code for rows in some])
            time = np.concatenate([rows.time for rows in some])
            if self.touch == "forward_split":
                arrival = np.argsort(np.concatenate([rows.seq for rows in some]), kind="stable")
                cut = sessions.play(code[arrival], time[arrival], self.gap, INT64_MIN, touch=self.touch)
            else:
                cut = assign(code, time, self.gap, self.touch)
            sessions, _ = sessions.merge(cut, ())
        sides = replace(sides, left=sides.left.with_rows(left), right=sides.right.with_rows(right), sessions=sessions)
        return sides, []

    def advance(self, sides: WindowSides, bound: int) -> tuple[WindowSides, list[Found]]:
        """State without rows that are in no open window, and the pairs of the windows that close, with end <= bound."""
        if self.gap is not None:
            return self._close_sessions(sides, bound)
        if self.grid is None:
            return sides, []
        last = self.grid.last_closed(bound)
        return self.finish(sides) if last is None else self._close(sides, self.grid, last, bound)

    def _close(self, sides: WindowSides, grid: WindowGrid, last: int, bound: int) -> tuple[WindowSides, list[Found]]:
        """Pairs of the windows up to `last`, which close; no row of these has a time of `bound` or later."""
        if last <= sides.closed:
            return sides, []
        found = []
        before = grid.start_of(last + 1)
        parts = self._in_grid(sides, grid, last, bound) if grid.overlaps else [self._in_one(sides, grid, before)]
        for members in parts:
            for pairs in self._pair(sides, members):
                assert pairs.window_start is not None
                start, end = grid.starts(pairs.window_start), grid.ends(pairs.window_start)
                found.append(replace(pairs, window_start=start, window_end=end))
        left, right = sides.left.evicted(before), sides.right.evicted(before)
        return replace(sides, left=left, right=right, closed=last), found

    def finish(self, sides: WindowSides) -> tuple[WindowSides, list[Found]]:
        if self.gap is not None:
            return self._close_sessions(sides, INT64_MAX)
        if self.grid is not None:
            newest = max((t for t in (sides.left.newest, sides.right.newest) if t is not None), default=None)
            if newest is None:
                return sides, []
            last = int(self.grid.windows_of(self.grid.panes(np.array([newest])))[1][0])
            return self._close(sides, self.grid, last, INT64_MAX)
        members = []
        for side, keep in zip((sides.left, sides.right), self.keeps, strict=True):
            run = side.in_time(INT64_MIN, INT64_MAX)
            rows = np.arange(0 if run is None else len(run))
            members.append(_Members.of(run, rows, np.zeros(len(rows), np.int64)).chosen(keep))
        found = [replace(f, window_start=None) for f in self._pair(sides, members)]
        return replace(sides, left=sides.left.evicted(INT64_MAX), right=sides.right.evicted(INT64_MAX)), found

    # -- the rows of closing windows --------------------------------------------------------------------------------

    def _in_one(self, sides: WindowSides, grid: WindowGrid, before: int) -> list[_Members]:
        """Members of both sides, of which each is in one window: what is sorted by time is sorted by it, too."""
        members = []
        for side, keep in zip((sides.left, sides.right), self.keeps, strict=True):
            rows = side.older(before)
            if rows is None:
                members.append(_NOBODY)
                continue
            order = order_in_threads(rows.code, rows.time)
            (code, window), _ = gathered((rows.code, grid.windows_of(grid.panes(rows.time))[0]), (), order)
            members.append(_Members(rows.values, order, code, window).chosen(keep))
        return members

    def _in_grid(self, sides: WindowSides, grid: WindowGrid, last: int, bound: int) -> Iterator[list[_Members]]:
        """Members of both sides, in ranges of (code, window), ascending."""
        left, right = (
            Spans.of(side.in_time(INT64_MIN, bound), grid, sides.closed, last) for side in (sides.left, sides.right)
        )
        met = (
            left if self.keep_left or self.cogroup else left.met_by(right),
            right if self.keep_right or self.cogroup else right.met_by(left),
        )
        for part in in_parts(*met, tuning.JOIN_MEMBERS):
            yield [
                _Members.of(spans.run, *spans.listed(self.kernels)).chosen(keep)
                for spans, keep in zip(part, self.keeps, strict=True)
            ]

    def _close_sessions(self, sides: WindowSides, bound: int) -> tuple[WindowSides, list[Found]]:
        closing, sessions = sides.sessions.close(bound)
        if not len(closing):
            return sides, []
        after = np.where(closing.last == INT64_MAX, INT64_MAX, closing.last + 1)
        members = []
        kept = []
        for side, keep in zip((sides.left, sides.right), self.keeps, strict=True):
            positions = rows_of_windows(side.runs, side.before, closing.code, closing.start, after)
            run = side.gathered(list(zip(side.runs, positions, strict=True)))
            kept.append(side.without(positions))
            if run is None:
                members.append(_NOBODY)
                continue
            lo, hi = window_edges(run.code, run.time, closing.code, closing.start, after)
            size = hi - lo
            window = np.repeat(np.arange(len(lo)), size)
            row = np.arange(len(window)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(lo, size)
            members.append(_Members.of(run, row, window).chosen(keep))
        found = [
            replace(
                f,
                window_start=closing.start[f.window_start],
                window_end=(closing.last if self.last_event else closing.end)[f.window_start],
            )
            for f in self._pair(sides, members)
        ]
        return replace(sides, left=kept[0], right=kept[1], sessions=sessions), found

    def _pair(self, sides: WindowSides, members: Sequence[_Members]) -> list[Found]:
        """Pairs of all groups; `window_start` carries the number of the window, for the caller to replace."""
        left, right = members
        if self.cogroup:
            return self._groups(sides, left, right)
        groups = (left.code, left.window), (right.code, right.window)
        at_left, at_right = self.kernels.pair_groups(*groups, self.keep_left, self.keep_right)
        if self.alone is not None:
            at = at_left[(at_right >= 0) == (self.alone == "semi")]
            return [Found(left.take(sides.left, at), None, len(at), window_start=left.window[at])] if len(at) else []
        if not len(at_left):
            return []
        window = np.empty(len(at_left), np.int64)
        has_left = at_left >= 0
        window[has_left] = left.window[at_left[has_left]]
        window[~has_left] = right.window[at_right[~has_left]]
        return [
            Found(left.take(sides.left, at_left), right.take(sides.right, at_right), len(window), window_start=window)
        ]

    def _groups(self, sides: WindowSides, left: _Members, right: _Members) -> list[Found]:
        """Groups, one row per (key, window): the rows of each side as lists, in order of time."""
        groups = (left.code, left.window), (right.code, right.window)
        window, left_first, right_first = self.kernels.union_groups(*groups)
        if not len(window):
            return []
        both = ((sides.left, left, left_first), (sides.right, right, right_first))
        return list(self._some_groups(both, window, 0, len(window)))

    def _some_groups(
        self, both: Sequence[tuple[Side, _Members, np.ndarray]], window: np.ndarray, lo: int, hi: int
    ) -> Iterator[Found]:
        """Groups `lo` to below `hi`, in parts whose texts have room in columns with offsets of 32 bits."""
        taken = [members.take(side, np.arange(first[lo], first[hi])) for side, members, first in both]
        if not all(map(fits, taken)):
            if hi - lo < 2:
                raise LimitExceeded(
                    "the rows of one group of this cogroup have more than 2 GiB of text in a column, for which a list "
                    "has no room; nothing was applied. Join by shorter windows, or with how='inner'"
                )
            middle = (lo + hi) // 2
            yield from self._some_groups(both, window, lo, middle)
            yield from self._some_groups(both, window, middle, hi)
            return
        lists, firsts = [], []
        for (side, members, first), values in zip(both, taken, strict=True):
            begins, ends = first[lo:hi], first[lo + 1 : hi + 1]
            offsets = pa.array((first[lo : hi + 1] - first[lo]).astype(np.int32))
            lists.append(tuple(pa.ListArray.from_arrays(offsets, v) for v in side.plain(values)))
            firsts.append(members.take(side, np.where(ends > begins, begins, -1)))
        yield Found(lists[0], lists[1], hi - lo, window_start=window[lo:hi], firsts=(firsts[0], firsts[1]))

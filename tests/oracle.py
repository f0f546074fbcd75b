"""What gpuwin must answer, as plainly as can be: windows in a list, looked at one by one. No code of the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NONE_YET, FOR_EVER = -(10**15), 10**15


def gap_of(value: int, n: int) -> int:
    """The gap of a row of sessions with a gap for each: 0 to n - 1."""
    return value.bit_length() * 7 % n


@dataclass(eq=False)
class Window:
    key: Any
    start: int
    end: int
    rows: list[Any] = field(default_factory=list)  # values, in order of arrival
    closed: bool = False
    count: int = 0  # rows since it last fired by rows
    emit_at: int | None = None  # the event time at which it fires next
    told: tuple[Any, ...] | None = None  # (start, end, values) as last reported
    parts: list[Any] = field(default_factory=list)  # the sessions that a row has just joined


@dataclass
class Oracle:
    """One aggregation over rows (key, time, value); times are integers. `shape`: ("sliding", size, slide, offset),
    ("cumulative", size, step, offset), ("session", gap), ("gaps", n): sessions with a
    gap for each row, `gap_of(value, n)`; or ("global",)."""

    shape: tuple[Any, ...]
    delay: int = 0
    lateness: int = 0
    by_row: bool = False  # the watermark moves after each row
    by_key: bool = False  # and each key has its own
    late_by_time: bool = False
    strict: bool = False  # closed when W > end
    emit: str = "close"  # or update, complete, change, every row, rows
    early: int = 0  # emit="rows": fire at each so many rows, before and after closing
    late: int = 0
    early_time: int = 0  # emit="rows": at each multiple that the watermark passes
    late_time: int = 0
    accumulation: str = "accumulating"
    late_each: bool = False  # emit="close": a closed window fires again for each late row
    touch: str = "merge"
    late_after_merge: bool = False

    def __post_init__(self) -> None:
        self.late_each = self.late_each and self.emit not in ("update", "complete")
        self.watermarks: dict[Any, int] = defaultdict(lambda: NONE_YET)
        self.windows: list[Window] = []
        self.rows_late = self.pairs_late = self.unassigned = 0

    def bounds(self, time: int, value: Any) -> Iterator[tuple[int, int]]:
        kind, size, step, offset = (*self.shape, 0, 0, 0)[:4]
        if kind == "global":
            yield NONE_YET, FOR_EVER
        elif kind == "session":
            yield time, time + size
        elif kind == "gaps":
            gap = gap_of(value, size)
            yield from [(time, time + gap)] * (gap > 0)
        elif kind == "cumulative":
            start = (time - offset) // size * size + offset
            yield from ((start, start + k) for k in range(step, size + 1, step) if time < start + k)
        else:
            newest = (time - offset) // step * step + offset
            yield from ((start, start + size) for start in range(newest, time - size, -step))

    def find(self, key: Any, start: int, end: int) -> Window:
        if self.shape[0] not in ("session", "gaps"):
            same = [w for w in self.windows if (w.key, w.start, w.end) == (key, start, end)]
            return same[0] if same else Window(key, start, end)
        reach = 0 if self.touch == "merge" else 1
        near = [w for w in self.windows if w.key == key and w.start + reach <= end and start + reach <= w.end]
        whole = Window(key, min([start, *(w.start for w in near)]), max([end, *(w.end for w in near)]), parts=near)
        for w in near:
            whole.rows = whole.rows + w.rows
            if (w.start, w.end) == (whole.start, whole.end):
                whole.told = w.told
        whole.closed = any(w.closed for w in near) and self.over(whole, 0)
        whole.count = sum(w.count for w in near if w.closed == whole.closed)  # late rows count for late firings only
        whole.emit_at = min(
            (w.emit_at for w in near if w.closed == whole.closed and w.emit_at is not None), default=None
        )
        return whole

    def watermark(self, key: Any, seen: int = NONE_YET) -> int:
        at = key if self.by_key else None
        self.watermarks[at] = max(self.watermarks[at], seen - self.delay)
        return self.watermarks[at]

    def over(self, w: Window, lateness: int) -> bool:
        watermark = NONE_YET if self.emit == "complete" else self.watermark(w.key)
        return watermark >= FOR_EVER or w.end + lateness + self.strict <= watermark

    def process(self, rows: list[tuple[Any, int, Any]]) -> list[tuple[Any, ...]]:
        out, touched, before = [], list[Window](), max(self.watermarks.values(), default=NONE_YET)
        for key, time, value in rows:
            out += self.add(key, time, value, touched)
            if self.by_row:
                self.watermark(key, time)
                out += self.close()
        for key, time, _ in rows:
            self.watermark(key, time)
        touched = self.windows if self.emit == "complete" else touched
        if self.emit in ("update", "complete"):
            out += [r for w in touched for r in self.fire(w, "")]
        elif self.emit == "close" and not self.late_each:
            out += [r for w in touched if w.closed for r in self.fire(w, "late")]
        moved = self.by_row or self.by_key or self.watermark(None) > before
        return out + self.close(moved)

    def add(self, key: Any, time: int, value: Any, touched: list[Window]) -> list[tuple[Any, ...]]:
        out, late, all_bounds = list[tuple[Any, ...]](), 0, list(self.bounds(time, value))
        self.unassigned += not all_bounds
        for start, end in all_bounds:
            w = self.find(key, start, end)
            is_late = self.over(w if self.late_after_merge else Window(key, start, end), self.lateness)
            if time < self.watermark(key) - self.lateness if self.late_by_time else is_late:
                late += 1
                continue
            for part in w.parts:
                if part.told and not w.told and self.accumulation == "retracting":
                    out.append((key, *part.told, "late" if w.closed else "early", True))
                self.windows.remove(part)
            touched[:] = [t for t in touched if t not in w.parts]
            w.parts, w.rows, w.count = [], [*w.rows, value], w.count + 1
            self.windows += [] if w in self.windows else [w]
            if w.closed or self.emit != "close":
                touched[:] = [t for t in touched if t is not w] + [w]
            if not w.closed and self.over(w, 0) and (self.late_each or self.emit in ("rows", "every row")):
                w.closed, w.count, w.emit_at = True, 0, None  # opened after its end: this row is its first, and on time
                out += self.fire(w, "on_time") if self.emit in ("close", "rows") else self.fire(w, "late")
                continue
            step = self.late_time if w.closed else self.early_time
            if step and w.emit_at is None:
                w.emit_at = (max(time, self.watermark(key)) if w.closed else time) // step * step + step
            each = self.emit == "every row" or (self.emit == "close" and self.late_each and w.closed)
            n = 1 if each else self.late if w.closed else self.early
            if n and w.count >= n:
                out += self.fire(w, "late" if w.closed else "early")
                w.count = 0
        self.pairs_late += late
        self.rows_late += 0 < late == len(all_bounds)
        return out

    def fire(self, w: Window, pane: str) -> list[tuple[Any, ...]]:
        if not w.rows:
            return []
        out = [(w.key, *w.told, pane, True)] if w.told and self.accumulation == "retracting" else []
        w.told = (w.start, w.end, tuple(w.rows))
        w.rows = [] if self.accumulation == "discarding" else w.rows
        return [*out, (w.key, *w.told, pane, False)]

    def close(self, moved: bool = True) -> list[tuple[Any, ...]]:
        out = [r for w in self.windows if moved for r in self.timed(w)]
        for w in [w for w in self.windows if not w.closed and self.over(w, 0)]:
            w.closed, w.count, w.emit_at = True, 0, None
            out += self.fire(w, "on_time") if self.emit in ("close", "rows") else []
        self.windows = [w for w in self.windows if not self.over(w, self.lateness)]
        return out

    def timed(self, w: Window) -> list[tuple[Any, ...]]:
        """At each multiple; late ones once more after that, where nothing else would say it."""
        step, out = self.late_time if w.closed else self.early_time, list[tuple[Any, ...]]()
        last = w.end + self.lateness if w.closed else w.end - 1
        must = w.closed and w.emit_at is not None and w.emit_at > last
        while step and w.emit_at is not None and w.emit_at <= self.watermark(w.key) and (w.emit_at <= last or must):
            out += self.fire(w, "late" if w.closed else "early")
            w.emit_at, must = w.emit_at + step, False
            if last >= FOR_EVER - 1 and self.watermark(w.key) >= FOR_EVER:
                break
        return out

    def finish(self) -> list[tuple[Any, ...]]:
        self.watermarks = defaultdict(lambda: FOR_EVER)
        return [] if self.emit == "complete" else self.close()

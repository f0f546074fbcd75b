"""Two streams and their join by nested loops, which shares no code with the engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from gpuwin.vocabulary.windows import (
    CumulativeWindow,
    SlidingWindow,
    TumblingWindow,
)

SECOND = 1_000_000
Row = tuple[Any, int | None, str]  # key, seconds, value
LEFT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("l", pa.string())])
RIGHT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("r", pa.string())])


def table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    k, _t, v = (pa.array([row[j] for row in rows], pa.string() if j != 1 else pa.int64()) for j in range(3))
    micros = pa.array([None if row[1] is None else row[1] * SECOND for row in rows], pa.int64())
    return pa.table([k, micros.cast(schema.field("t").type), v], schema=schema)


def pairs(result: pa.Table) -> Counter[tuple[Any, ...]]:
    """(key, window start and end in seconds if there are any, left value, right value if there is one)."""
    bounds = [n for n in ("window_start", "window_end") if n in result.column_names]
    columns = [result.column(n).to_pylist() for n in ("k", *bounds, "l", "r") if n in result.column_names]
    return Counter(tuple(seconds(v) for v in row) for row in zip(*columns, strict=True))


def seconds(v: Any) -> Any:
    if isinstance(v, datetime):
        return (v - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return tuple(v) if isinstance(v, list) else v


def run(spec: Any, left: list[Row], right: list[Row], steps: list[tuple[int, int]]) -> Counter[tuple[Any, ...]]:
    """Feeds both streams in steps of (left rows, right rows), and finishes."""
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    found: Counter[tuple[Any, ...]] = Counter()
    i = j = 0
    for a, b in [*steps, (len(left), len(right))]:
        result = op.process(left=table(left[i : i + a], LEFT), right=table(right[j : j + b], RIGHT))
        assert result.schema == op.output_schema
        found += pairs(result)
        i, j = i + a, j + b
    return found + pairs(op.finish())


def matched(left: list[Row], right: list[Row], how: str, meets: Callable[[Row, Row], bool]) -> Counter[tuple[Any, ...]]:
    if how in ("semi", "anti"):
        some = [a for a in left if any(a[0] is not None and a[0] == b[0] and meets(a, b) for b in right)]
        return Counter((a[0], a[2]) for a in left if any(a is x for x in some) == (how == "semi"))
    both = [(a, b) for a in left for b in right if a[0] is not None and a[0] == b[0] and meets(a, b)]
    found = Counter((a[0], a[2], b[2]) for a, b in both)
    if how in ("left", "full"):
        found += Counter((a[0], a[2], None) for a in left if not any(a is x for x, _ in both))
    if how in ("right", "full"):
        found += Counter((b[0], None, b[2]) for b in right if not any(b is x for _, x in both))
    return found


def rows_named(side: str, keys: list[Any] | None = None) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(st.sampled_from(keys or ["a", "b", None]), st.integers(-30, 30))
    return st.lists(row, max_size=12).map(lambda rows: [(k, t, f"{side}{i}") for i, (k, t) in enumerate(rows)])


steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5)
hows = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])


def grid_windows(window: Any, t: int) -> list[tuple[int, int]]:
    if isinstance(window, TumblingWindow):
        window = SlidingWindow(window.size, window.size, window.offset)
    size, offset = window.size // timedelta(seconds=1), window.offset // timedelta(seconds=1)
    if isinstance(window, CumulativeWindow):
        step = window.step // timedelta(seconds=1)
        start = (t - offset) // size * size + offset
        return [(start, e) for e in range(start + step, start + size + 1, step) if t < e]
    slide = window.slide // timedelta(seconds=1)
    first = (t - offset) // slide * slide + offset
    return [(s, s + size) for s in range(first, t - size, -slide) if s <= t < s + size]


def session_windows(rows: list[Row], gap: int, touch: str, last_event: bool) -> dict[int, tuple[int, int]]:
    """id(row) -> the session it is in."""
    found: dict[int, tuple[int, int]] = {}
    for key in {r[0] for r in rows}:
        mine = sorted((r for r in rows if r[0] == key), key=lambda r: r[1] or 0)
        groups: list[list[Row]] = []
        for r in mine:
            far = math.inf if not groups else r[1] - groups[-1][-1][1]
            if far < gap or (far == gap and touch == "merge"):
                groups[-1].append(r)
            else:
                groups.append([r])
        for g in groups:
            for r in g:
                found[id(r)] = (g[0][1], g[-1][1] if last_event else g[-1][1] + gap)
    return found


def windowed(left: list[Row], right: list[Row], how: str, of: Callable[[Row], list[Any]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    sides = [[(r, w) for r in rows for w in of(r)] for rows in (left, right)]
    partner = [set(), set()]  # type: ignore[var-annotated]
    for a, w in sides[0]:
        for b, v in sides[1]:
            if a[0] is not None and a[0] == b[0] and w == v:
                found[(a[0], *w, a[2], b[2])] += 1
                partner[0].add((a[2], w))
                partner[1].add((b[2], w))
    if how in ("semi", "anti"):
        return Counter((a[0], *w, a[2]) for a, w in sides[0] if ((a[2], w) in partner[0]) == (how == "semi"))
    if how in ("left", "full"):
        found += Counter((a[0], *w, a[2], None) for a, w in sides[0] if (a[2], w) not in partner[0])
    if how in ("right", "full"):
        found += Counter((b[0], *w, None, b[2]) for b, w in sides[1] if (b[2], w) not in partner[1])
    return found

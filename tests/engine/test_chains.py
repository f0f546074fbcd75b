"""Chains of operators against one plain model: no result is late for the operator after it, and nothing is lost or
counted twice. Each chain loses rows where its watermark is a microsecond further than the one that is stated."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from oracle import Oracle, gap_of

import gpuwin as gw
from gpuwin.errors import SchemaError, SpecificationError

Row = tuple[str, int, int]  # key, microseconds, a bit of its own
STREAMS = 10
TIME = pa.timestamp("us", "UTC")


def micros(n: int) -> timedelta:
    return timedelta(microseconds=n)


def stream_of(seed: int, size: int = 60) -> list[list[Row]]:
    """Batches of rows whose times wander, some of them far behind."""
    draw = random.Random(seed)
    rows, at = [], draw.randrange(-30, 5)
    for number in range(size):
        at += draw.choice([0, 0, 1, 1, 2, 5])
        rows.append((draw.choice("ab"), at - draw.choice([0, 0, 0, 1, 2, 5, 9]), 1 << number))
    cuts = sorted(draw.sample(range(size + 1), 12))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def table_of(rows: list[Row], time: str = "t", value: str = "v") -> pa.Table:
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    stamps = pa.array(times, pa.int64()).cast(TIME)
    gaps = pa.array([gap_of(v, 4) for v in values], pa.duration("us"))
    columns = {"k": pa.array(keys, pa.string()), time: stamps, value: pa.array(values, pa.int64()), "gap": gaps}
    return pa.table(columns)


def told(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    columns = [table[name] for name in names]
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


class Chain:
    """Operators, each fed with the results of the one before it; restarted from snapshots before some batch."""

    def __init__(
        self, specs: list[Any], between: Callable[[pa.Table], pa.Table], ahead: int, **schemas: pa.Schema
    ) -> None:
        self.specs, self.between, self.ahead = specs, between, ahead
        self.ops = [specs[0].start(**schemas), *(spec.start() for spec in specs[1:])]

    def restart(self) -> None:
        self.ops = [spec.restore(op.snapshot()) for spec, op in zip(self.specs, self.ops, strict=True)]

    def push(self, table: pa.Table, stated: Callable[[Any], int | None] = lambda op: op.output_watermark) -> pa.Table:
        """Results of the last operator for results of the first."""
        for before, op in zip(self.ops[:-1], self.ops[1:], strict=True):
            parts, watermark = [op.process(self.between(table))], stated(before)
            if watermark is not None:
                parts.append(op.advance_watermark(watermark + self.ahead))
            table = pa.concat_tables(parts)
        return table

    def finish(self) -> pa.Table:
        table = self.ops[0].finish()
        for op in self.ops[1:]:
            table = pa.concat_tables([op.process(self.between(table)), op.finish()])
        return table

    @property
    def late(self) -> int:
        return sum(op.metrics.rows_late for op in self.ops[1:])


def explicit(window: Any, **more: Any) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(window=window, watermark=gw.ExplicitWatermark(), **more)


SUMS = {"n": gw.sum("n"), "v": gw.sum("v")}
SHAPES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "tumbling": (("sliding", 4, 4, 0), gw.TumblingWindow(micros(4))),
    "sliding": (("sliding", 6, 2, 1), gw.SlidingWindow(micros(6), micros(2), micros(1))),
    "sessions": (("session", 3), gw.SessionWindow(micros(3))),
    "sessions of gaps": (("gaps", 4), gw.SessionWindow(gw.column("gap"))),
}
BELOW: dict[str, tuple[Any, Callable[[int, int], tuple[int, int]]]] = {
    "tumbling": (
        explicit(gw.TumblingWindow(micros(3)), time="window_time", aggregates=SUMS),
        lambda start, end: ((end - 1) // 3 * 3, (end - 1) // 3 * 3 + 3),
    ),
    "inherited": (explicit(gw.InheritedWindow(), aggregates=SUMS), lambda start, end: (start, end)),
}


def upstream(shape: str, **more: Any) -> tuple[gw.WindowedAggregation, Oracle]:
    words, window = SHAPES[shape]
    spec = gw.WindowedAggregation(
        window=window, keys=["k"], time="t", aggregates={"n": gw.count(), "v": gw.sum("v")},
        watermark=gw.BoundedOutOfOrderness(micros(2)), accumulation="discarding",
        allowed_lateness=micros(more.get("lateness", 0)),
    )  # fmt: skip
    return spec, Oracle(words, delay=2, accumulation="discarding", **more)


def summed(found: Iterable[tuple[int, int, list[int]]]) -> Counter[tuple[int, int, int, int]]:
    """(start, end, number of rows, their sum) of windows, from the values of parts of them."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for start, end, values in found:
        groups[start, end] += values
    return Counter((*window, len(values), sum(values)) for window, values in groups.items())


def lost_by(shape: str, below: str, lateness: int, seed: int, ahead: int = 0) -> int:
    """Rows that were late on the way down. Where none was, the results are those of the model."""
    spec, oracle = upstream(shape, lateness=lateness)
    second, window_of = BELOW[below]
    chain = Chain([spec, second], gw.window_time, ahead, schema=table_of([]).schema)
    batches, found, expected = stream_of(seed), [], []
    for place, batch in enumerate(batches):
        if place == len(batches) // 2:
            chain.restart()
        found += told(chain.push(chain.ops[0].process(table_of(batch))), "window_start", "window_end", "n", "v")
        expected += oracle.process(batch)
    found += told(chain.finish(), "window_start", "window_end", "n", "v")
    expected += oracle.finish()
    if not chain.late:
        assert Counter(found) == summed((*window_of(s, e), values) for _, s, e, values, _, _ in expected)
        assert chain.ops[0].metrics.rows_late == oracle.rows_late
    return chain.late


@pytest.mark.parametrize("lateness", [0, 5])
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_aggregations(shape: str, below: str, lateness: int) -> None:
    assert [lost_by(shape, below, lateness, seed) for seed in range(STREAMS)] == [0] * STREAMS
    assert any(lost_by(shape, below, lateness, seed, ahead=1) for seed in range(4 * STREAMS))


def test_three_aggregations() -> None:
    """The watermark goes through the one in the middle."""
    for seed in range(STREAMS):
        spec, oracle = upstream("sliding")
        split = gw.Semantics(session_touch="split")  # or a row of the watermark's instant would join a closed session
        middle = explicit(gw.SessionWindow(micros(3)), time="window_time", aggregates=SUMS, semantics=split)
        last = explicit(gw.TumblingWindow(micros(10)), time="window_time", aggregates=SUMS)
        chain = Chain([spec, middle, last], gw.window_time, 0, schema=table_of([]).schema)
        found, expected = [], []
        for batch in stream_of(seed):
            found += told(chain.push(chain.ops[0].process(table_of(batch))), "window_start", "n", "v")
            chain.restart()
            expected += oracle.process(batch)
        found += told(chain.finish(), "window_start", "n", "v")
        expected += oracle.finish()
        assert chain.late == 0
        sessions: list[tuple[int, list[int]]] = []  # the last event of each, and what is in it
        for time, values in sorted((end - 1, values) for _, _, end, values, _, _ in expected):
            if sessions and time - sessions[-1][0] < 3:
                sessions[-1] = (time, [*sessions[-1][1], *values])
            else:
                sessions.append((time, [*values]))
        whole = summed(((at + 2) // 10 * 10, 0, values) for at, values in sessions)
        assert Counter(found) == Counter({(start, n, v): count for (start, _, n, v), count in whole.items()})


# -- joins in the middle -----------------------------------------------------------------------------------------------

SPANS = [(-2, 4), (1, 4), (-4, -1), (0, 0)]


def pairs_lost(side: str, span: tuple[int, int], seed: int, ahead: int = 0) -> int:
    """Pairs that were late for the aggregation below an interval join, by the time of one side."""
    lower, upper = span
    join = gw.IntervalJoin(["k"], "t", "u", micros(lower), micros(upper), watermark=gw.BoundedOutOfOrderness(micros(2)))
    counts = {"n": gw.count(), "v": gw.sum("v"), "w": gw.sum("w")}
    below = explicit(gw.TumblingWindow(micros(3)), time={"left": "t", "right": "u"}[side], aggregates=counts)
    schemas = {"left_schema": table_of([]).schema, "right_schema": table_of([], "u", "w").schema}
    chain = Chain([join, below], lambda table: table, ahead, **schemas)
    sides = stream_of(seed), stream_of(seed + 1000)
    found: list[tuple[Any, ...]] = []
    kept: tuple[list[Row], list[Row]] = ([], [])
    newest = [-(10**9), -(10**9)]

    def stated(op: Any) -> int | None:
        return op.left_output_watermark if side == "left" else op.right_output_watermark

    for place, (left, right) in enumerate(zip(*sides, strict=True)):
        if place == len(sides[0]) // 2:
            chain.restart()
        watermark = min(newest) - 2
        for number, rows in enumerate((left, right)):
            kept[number].extend(row for row in rows if row[1] >= watermark)
            newest[number] = max([newest[number], *(row[1] for row in rows)])
        pairs = chain.ops[0].process(left=table_of(left), right=table_of(right, "u", "w"))
        found += told(chain.push(pairs, stated), "window_start", "n", "v", "w")
    found += told(chain.finish(), "window_start", "n", "v", "w")
    if not chain.late:
        expected: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for a in kept[0]:
            for b in kept[1]:
                if a[0] == b[0] and lower <= b[1] - a[1] <= upper:
                    group = expected[(a if side == "left" else b)[1] // 3 * 3]
                    for place, more in enumerate((1, a[2], b[2])):
                        group[place] += more
        assert sorted(found) == sorted((start, *group) for start, group in expected.items())
    return chain.late


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_an_interval_join_before_an_aggregation(side: str, span: tuple[int, int]) -> None:
    assert [pairs_lost(side, span, seed) for seed in range(STREAMS)] == [0] * STREAMS
    assert any(pairs_lost(side, span, seed, ahead=1) for seed in range(4 * STREAMS))


def met_again(lateness: int, seed: int, ahead: tuple[int, int] = (0, 0)) -> int:
    """Rows that were late on their way through two halves of a stream, their join by window, and an aggregation of
    that. Where none was, the results are those of the model.
    """
    join = gw.WindowJoin(gw.InheritedWindow(), ["k"], how="full", watermark=gw.ExplicitWatermark())
    specs, oracles = zip(*(upstream("sliding", lateness=lateness) for _ in range(2)), strict=True)
    halves = [spec.start(schema=table_of([]).schema) for spec in specs]
    schema = halves[0].output_schema
    joined = join.start(left_schema=schema, right_schema=schema)
    total = explicit(gw.InheritedWindow(), aggregates={"n": gw.sum("n"), "m": gw.sum("n_right")}).start()
    expected: list[list[tuple[Any, ...]]] = [[], []]
    found = []
    for left, right in zip(stream_of(seed), stream_of(seed + 1000), strict=True):
        sides = [op.process(table_of(rows)) for op, rows in zip(halves, (left, right), strict=True)]
        tables = [joined.process(left=sides[0], right=sides[1])]
        stated = [op.output_watermark for op in halves]
        if None not in stated:
            tables.append(joined.advance_watermark(min(stated) + ahead[0]))
        joined = join.restore(joined.snapshot())
        found.append(total.process(pa.concat_tables(tables)))
        if joined.output_watermark is not None:
            found.append(total.advance_watermark(joined.output_watermark + ahead[1]))
        for oracle, rows, told_ in zip(oracles, (left, right), expected, strict=True):
            told_ += oracle.process(rows)
    found.append(total.process(joined.process(left=halves[0].finish(), right=halves[1].finish())))
    found += [total.process(joined.finish()), total.finish()]
    for oracle, told_ in zip(oracles, expected, strict=True):
        told_ += oracle.finish()
    late = joined.metrics.rows_late + total.metrics.rows_late
    if not late:
        got = [row for table in found for row in told(table, "window_start", "window_end", "n", "m")]
        assert sorted(got) == sorted(rejoined(*expected))
    return late


@pytest.mark.parametrize("lateness", [0, 5])
def test_results_of_two_aggregations_that_meet_again(lateness: int) -> None:
    assert [met_again(lateness, seed) for seed in range(STREAMS)] == [0] * STREAMS
    for ahead in ((1, 0), (0, 1)):
        assert any(met_again(lateness, seed, ahead) for seed in range(STREAMS))


def rejoined(
    left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]
) -> list[tuple[int, int, int | None, int | None]]:
    """Rows of the last operator: of each window, what each side's results count in the pairs that they make."""
    sides = []
    for results in (left, right):
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for key, start, end, values, _, _ in results:
            groups[key, start, end].append(len(values))
        sides.append(groups)
    windows: dict[tuple[int, int], list[int | None]] = defaultdict(lambda: [None, None])
    for key in {*sides[0], *sides[1]}:
        sums = windows[key[1:]]
        for mine, other, place in ((sides[0], sides[1], 0), (sides[1], sides[0], 1)):
            if key in mine:
                sums[place] = (sums[place] or 0) + sum(mine[key]) * max(len(other.get(key, ())), 1)
    return [(start, end, *sums) for (start, end), sums in windows.items()]  # type: ignore[misc]


# -- the time of a result ----------------------------------------------------------------------------------------------


def test_the_time_of_a_result_is_the_last_instant_of_its_window() -> None:
    for type_ in (pa.timestamp("us"), TIME, pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ns"), pa.date32()):
        ends = pa.array([86_400_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
        ends = (
            ends.cast(type_) if pa.types.is_timestamp(type_) and type_.tz else ends.cast(pa.timestamp("us")).cast(type_)
        )
        results = pa.table({"n": [1, 2], "window_end": ends})
        for given in (results, results.to_batches()[0], results.set_column(1, "window_end", ends.dictionary_encode())):
            found = gw.window_time(given)
            assert found.column_names == ["n", "window_end", "window_time"]
            zone = type_.tz if pa.types.is_timestamp(type_) else None
            assert found.schema.field("window_time").type == pa.timestamp("us", zone)
            assert found["window_time"].cast(pa.int64()).to_pylist() == [86_399_999_999, None]
    low = pa.table({"window_end": pa.array([-(1 << 63), 5], pa.int64()).cast(TIME)})
    assert gw.window_time(low)["window_time"].cast(pa.int64()).to_pylist() == [-(1 << 63), 4]
    assert gw.window_time(low.slice(0, 0)).num_rows == 0
    assert gw.window_time(pa.concat_tables([low, low])).num_rows == 4


def test_what_has_no_time_of_a_result() -> None:
    with pytest.raises(SchemaError, match="no column 'window_end'"):
        gw.window_time(pa.table({"n": [1]}))
    with pytest.raises(SchemaError, match="'window_end' is int64"):
        gw.window_time(pa.table({"window_end": [1]}))
    with pytest.raises(SchemaError, match="'window_time' already"):
        gw.window_time(gw.window_time(pa.table({"window_end": pa.array([1], TIME)})))
    with pytest.raises(SchemaError, match="not list"):
        gw.window_time([1])


def test_rows_that_bring_their_windows_along_need_no_time() -> None:
    rows = pa.table(
        {"v": [1, 2, 4], "window_start": pa.array([0, 0, 9], TIME), "window_end": pa.array([9, 9, 20], TIME)}
    )
    spec = gw.WindowedAggregation(
        window=gw.InheritedWindow(), aggregates={"v": gw.sum("v"), "last": gw.last("v"), "all": gw.collect_list("v")},
        semantics=gw.Semantics(order="time"),
    )  # fmt: skip
    op = spec.start()
    assert op.process(rows)["all"].to_pylist() == [[1, 2]]  # the newest row is of 19
    assert op.watermark == 19
    missing = rows.set_column(2, "window_end", pa.nulls(3, TIME))
    op.process(missing)
    assert op.metrics.rows_null_time == 3
    assert op.process(rows).num_rows == 0
    assert op.metrics.rows_late == 2
    backwards = rows.set_column(1, "window_start", pa.array([None, 9, 10], TIME))
    with pytest.raises(gw.SchemaError, match=r"row 2 ends before it starts: window_start is .*, window_end"):
        op.process(backwards.set_column(2, "window_end", pa.array([0, 9, 9], TIME)))
    join = gw.WindowJoin(gw.InheritedWindow(), ["v"], watermark=gw.ExplicitWatermark()).start()
    with pytest.raises(gw.SchemaError, match="row 2 ends before it starts"):
        join.process(left=backwards.set_column(2, "window_end", pa.array([0, 9, 9], TIME)), right=rows)
    assert op.finish().select(["v", "last"]).to_pylist() == [{"v": 8, "last": 4}]
    with pytest.raises(SpecificationError, match="time is missing"):
        gw.WindowedAggregation(window=gw.TumblingWindow("1 minute"), aggregates={"n": gw.count()})

"""Aggregates of the user's own."""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
import re
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numba import njit
from numba.core.event import install_recorder

import gpuwin as gw
from gpuwin.planning import folding


@gw.accumulation
class Recent:
    """An exponentially weighted mean: a value's weight falls by half every minute."""

    state = {"weighted": 0.0, "weight": 0.0, "at": 0}  # noqa: RUF012

    def add(weighted, weight, at, value, time):
        newest = max(at, time) if weight > 0.0 else time
        old, new = 0.5 ** ((newest - at) / 60e6) if weight > 0.0 else 0.0, 0.5 ** ((newest - time) / 60e6)
        return weighted * old + value * new, weight * old + new, newest

    def merge(weighted, weight, at, weighted2, weight2, at2):
        newest = max(at, at2)
        old, new = 0.5 ** ((newest - at) / 60e6), 0.5 ** ((newest - at2) / 60e6)
        return weighted * old + weighted2 * new, weight * old + weight2 * new, newest

    def result(weighted, weight, at):
        return weighted / weight


@gw.accumulation
class Changes:
    """How often a value differs from the one before it: order matters, so rows are kept and seen in order."""

    state = {"last": 0, "changes": -1}  # noqa: RUF012
    ordered = True

    def add(last, changes, value):
        return value, changes + 1 if changes < 0 or value != last else changes

    def merge(last, changes, last2, changes2):
        return last2, changes + changes2

    def result(last, changes):
        return changes


def batch(times: list[int], values: list[Any]) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s")), "value": pa.array(values, pa.float64())})


def spec(aggregate: Any, **more: Any) -> gw.WindowedAggregation:
    window = gw.SlidingWindow("4 minutes", "2 minutes")
    return gw.WindowedAggregation(window=window, time="time", aggregates={"out": aggregate}, **more)


def weighted(rows: list[tuple[int, float]]) -> float:
    weights = [0.5 ** ((rows[-1][0] - t) / 60) for t, _ in rows]
    return math.fsum(w * v for w, (_, v) in zip(weights, rows, strict=True)) / math.fsum(weights)


def test_a_mean_in_fifteen_lines() -> None:
    op = spec(Recent("value", "time")).start()
    tables = [op.process(batch([0, 60], [1.0, 2.0])), op.process(batch([150, 170], [None, 4.0])), op.finish()]
    found = pa.concat_tables(tables)
    by_start = dict(zip(found["window_start"].cast(pa.int64()).to_pylist(), found["out"].to_pylist(), strict=True))
    assert by_start[-120_000_000] == pytest.approx(weighted([(0, 1.0), (60, 2.0)]))
    assert by_start[0] == pytest.approx(weighted([(0, 1.0), (60, 2.0), (170, 4.0)]))
    assert by_start[120_000_000] == 4.0


def test_the_example_of_the_docstring_is_that_mean() -> None:
    text = inspect.getdoc(gw.accumulation) or ""
    example = textwrap.dedent(text.partition("::\n")[2].partition("\nThe functions are compiled")[0])
    there: dict[str, Any] = {"gw": gw}
    exec(compile(example, "accumulation", "exec"), there)
    rows = batch([60, 0, 170], [2.0, 1.0, 4.0])
    assert gw.aggregate(rows, spec(there["Recent"]("value", "time"))) == gw.aggregate(
        rows, spec(Recent("value", "time"))
    )


@pytest.mark.parametrize(("order", "changes"), [("time", 1), ("arrival", 2)])
def test_ordered_accumulations_see_rows_in_order(order: Any, changes: int) -> None:
    later = spec(Changes("value"), watermark=gw.ExplicitWatermark(), semantics=gw.Semantics(order=order))
    rows = batch([10, 30, 20], [1, 2, 1]).set_column(1, "value", pa.array([1, 2, 1], pa.int64()))
    assert gw.aggregate(rows, later)["out"].to_pylist() == [changes, changes]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_number_of_rows(ordered: bool) -> None:
    """Rows without values have no order that could be seen."""

    def add(n: int) -> int:
        return n + 1

    def merge(n: int, other: int) -> int:
        return n + other

    def result(n: int) -> int:
        return n

    number = gw.accumulation(state={"n": 0}, add=add, merge=merge, result=result, ordered=ordered)
    op = spec(number()).start()
    op.process(batch([0, 60], [1.0, None]))
    op.process(batch([30], [1.0]))
    assert op.finish()["out"].to_pylist() == [3, 3]


def test_survives_a_snapshot_and_pickling() -> None:
    views = pickle.loads(pickle.dumps(spec(gw.sum("value"))))
    assert views == spec(gw.sum("value"))
    op = spec(Recent("value", "time")).start()
    op.process(batch([0, 60], [1.0, 2.0]))
    again = spec(Recent("value", "time")).restore(op.snapshot())
    assert again.finish() == op.finish()


@pytest.mark.parametrize(
    ("type_", "unit"),
    [
        (pa.timestamp("s"), 1_000_000),
        (pa.duration("ms"), 1_000),
        (pa.time32("s"), 1_000_000),
        (pa.time32("ms"), 1_000),
        (pa.time64("us"), 1),
        (pa.time64("ns"), 1e-3),
    ],
)
def test_times_come_in_microseconds(type_: pa.DataType, unit: float) -> None:
    largest = gw.accumulation(
        state={"n": -1}, add=lambda n, x: max(n, x), merge=lambda n, m: max(n, m), result=lambda n: n
    )
    rows = batch([0, 1, 2], [0.0] * 3).append_column("at", pa.array([1_999, 7, None], type_))
    assert gw.aggregate(rows, spec(largest("at")))["out"].to_pylist()[0] == int(1_999 * unit)


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ({}, "state is missing"),
        ({"state": {"n": 0}}, "add is missing"),
        ({"state": {"n": 0}, "add": lambda n, x: (n,)}, "merge is missing"),
        ({"state": {"n": 0}, "add": lambda n, x: (n,), "merge": lambda n: (n,)}, "merge takes twice its 1 fields"),
        ({"state": {"n": 0}, "add": lambda n, x: (n,), "merge": lambda a, b: (a,)}, "result is missing"),
        ({"state": {"n": "0"}}, "starts with an int or a float"),
        ({"state": {"n": 2**63}}, "'n' starts with 9223372036854775808, which is no int64"),
        ({"state": {"n": -(2**70)}}, "which is no int64"),
    ],
)
def test_says_what_is_missing(parts: dict[str, Any], missing: str) -> None:
    with pytest.raises(gw.SpecificationError, match=missing):
        gw.accumulation(**parts)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_second_operator_compiles_nothing(ordered: bool) -> None:
    class Squares:
        state = {"total": 0.0}  # noqa: RUF012

        def add(total, x):
            return total + x * x

        def merge(total, other):
            return total + other

        def result(total):
            return total

    Squares.ordered = ordered
    squares = gw.accumulation(Squares)

    def compiled() -> int:
        with install_recorder("numba:compile") as recorder:
            gw.aggregate(batch([0, 30], [2.0, 3.0]), spec(squares("value")))
        return len(recorder.buffer)

    assert compiled() > 0
    assert compiled() == 0


@pytest.mark.parametrize(
    ("add", "merge", "expected"),
    [
        (lambda n, total, x: (n + 1, total + x), lambda n, total, m, other: (n + m, total + other), 4.75),
        (lambda n, total, x: (n + 1, total + 1), lambda n, total, m, other: (n + m, (total + other) / 1), 3.0),
    ],
    ids=["add", "merge"],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_field_that_begins_with_an_int_keeps_fractions(ordered: bool, add: Any, merge: Any, expected: float) -> None:
    """Each field by itself: one that stays a whole number stays int64."""
    results = {"total": lambda n, total: total, "n": lambda n, total: n}
    views = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        time="time",
        aggregates={
            name: gw.accumulation(
                state={"n": 0, "total": 0}, add=add, merge=merge, result=result, ordered=ordered, name=name
            )("value")
            for name, result in results.items()
        },
    )
    op = views.start(schema=batch([], []).schema)
    assert op.output_schema.types[-2:] == [pa.float64(), pa.int64()]
    op.process(batch([0, 1], [1.5, 2.5]))
    op = views.restore(op.snapshot())
    op.process(batch([2], [0.75]))
    assert op.finish().select(["total", "n"]).to_pylist() == [{"total": expected, "n": 3}]


def test_fields_may_begin_with_numbers_of_numpy() -> None:
    made = gw.accumulation(
        state={"n": np.int64(2), "total": np.float32(0.5)},  # type: ignore[dict-item]
        add=lambda n, total, x: (n + 1, total + x),
        merge=lambda n, total, m, other: (n + m, total + other),
        result=lambda n, total: n + total,
        name="both",
    )
    assert [type(value) for value in made.init] == [int, float]
    assert gw.aggregate(batch([0], [1.0]), spec(made("value")))["out"].to_pylist() == [4.5, 4.5]


def test_fields_of_integers_stay_exact() -> None:
    total = gw.accumulation(
        state={"total": 0}, add=lambda a, x: a + x, merge=lambda a, b: a + b, result=lambda a: a, name="total"
    )
    rows = batch([0, 1], [0.0] * 2).append_column("n", pa.array([2**53, 1]))
    found = gw.aggregate(rows, spec(total("n")))["out"]
    assert (found.type, found.to_pylist()) == (pa.int64(), [2**53 + 1] * 2)


def test_an_error_of_the_user_leaves_the_state_as_it_was() -> None:
    inverse = gw.accumulation(
        state={"sum": 0.0}, add=lambda a, x: a + 1 / x, merge=lambda a, b: a + b, result=lambda a: 1 / (a - 1)
    )
    op = spec(inverse("value"), watermark=gw.ExplicitWatermark()).start()
    op.process(batch([0], [1.0]))
    for failing in (lambda: op.process(batch([1, 2], [2.0, 0.0])), lambda: op.advance_watermark(240_000_000)):
        with pytest.raises(ZeroDivisionError) as raised:
            failing()
        (note,) = raised.value.__notes__
        assert "of 'out' (" in note
    assert op.metrics.rows_in == 1
    assert op.watermark is None
    op.process(batch([3], [2.0]))
    assert op.finish()["out"].to_pylist() == [2.0, 2.0]


def test_the_decorator_takes_its_options_before_the_class() -> None:
    @gw.accumulation(ordered=True, name="Later")
    class Last:
        state = {"n": 0.0}  # noqa: RUF012

        def add(n, x):
            return x

        def merge(n, other):
            return other

        def result(n):
            return n

    assert (Last.ordered, Last.name) == (True, "Later")
    rows = batch([1, 0], [1.0, 2.0])
    assert gw.aggregate(rows, spec(Last("value")))["out"].to_pylist() == [2.0, 2.0]


@pytest.mark.parametrize("given", [Recent, Changes])
def test_an_accumulation_without_its_columns_is_named_with_them(given: Any) -> None:
    call = 'Recent("...", "...")' if given is Recent else 'Changes("...")'
    with pytest.raises(gw.SpecificationError, match=f"{re.escape(f'; did you mean {call}?')}$"):
        spec(given)


def test_says_what_does_not_compile_before_the_first_batch() -> None:
    broken = gw.accumulation(
        state={"n": 0, "m": 0},
        add=lambda n, m, x: n + x,
        merge=lambda a, b, c, d: (a + c, b + d),
        result=lambda n, m: n,
    )
    with pytest.raises(gw.SpecificationError, match="must return a tuple of 2"):
        spec(broken("value")).start(schema=batch([], []).schema)
    pairs = gw.accumulation(
        state={"n": 0, "m": 0},
        add=lambda n, m, x: (n + x, (m, x)),
        merge=lambda a, b, c, d: (a + c, b + d),
        result=lambda n, m: n,
    )
    with pytest.raises(gw.SpecificationError, match="add must return a tuple of 2 numbers, and returns"):
        spec(pairs("value")).start(schema=batch([], []).schema)
    text = pa.schema([("time", pa.timestamp("s")), ("value", pa.string())])
    with pytest.raises(gw.SchemaError, match="takes numbers, booleans, dates and times"):
        spec(Recent("value", "time")).start(schema=text)


def test_a_state_may_begin_infinite() -> None:
    spread = gw.accumulation(
        state={"low": float("inf"), "high": float("-inf"), "nothing": float("nan")},
        add=lambda low, high, nothing, x: (min(low, x), max(high, x), nothing),
        merge=lambda a, b, n, c, d, m: (min(a, c), max(b, d), n),
        result=lambda low, high, nothing: high - low if nothing != nothing else -1.0,
    )
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"), keys=[], time="ts", aggregates={"spread": spread("v")}
    )
    rows = pa.table({"ts": pa.array([1, 2, 3]).view(pa.timestamp("us")), "v": [4.0, -1.0, 2.5]})
    assert gw.aggregate(rows, spec).column("spread").to_pylist() == [5.0]


@gw.accumulation
class Total:
    state = {"total": 0}  # noqa: RUF012

    def add(total, x):
        return (total + x,)

    def merge(total, other):
        return (total + other,)

    def result(total):
        return total


@pytest.mark.parametrize("ordered", [False, True])
def test_uint64_comes_as_int64_or_not_at_all(ordered: bool) -> None:
    total = Total
    if ordered:
        total = gw.accumulation(
            state={"total": 0}, add=Total.add, merge=Total.merge, result=Total.result, name="Total", ordered=True
        )
    op = spec(total("value"), watermark=gw.ExplicitWatermark()).start()
    rows = pa.table({"time": pa.array([0, 1], pa.timestamp("s")), "value": pa.array([5, None], pa.uint64())})
    op.process(rows)
    before = op.snapshot()
    with pytest.raises(gw.OverflowError, match="'value' holds a uint64"):
        op.process(rows.set_column(1, "value", pa.array([1, 2**63], pa.uint64())))
    assert op.snapshot() == before
    op.process(rows.set_column(1, "value", pa.array([1, 2**62], pa.uint64())))
    assert op.finish()["out"].to_pylist() == [6 + 2**62] * 2


def test_names_that_look_like_those_of_partial_columns() -> None:
    rows = pa.table(
        {
            "time": pa.array([0, 1], pa.timestamp("s")),
            "x": [3, 4],
            "a b": [1, 2],
            "a": [8, 9],
            "b c": [1, 0],
            "c": [0, 1],
        }
    )
    aggregates = {"max": Total("x"), "largest": gw.max("x"), "one": gw.min_by("a", "b c"), "c": gw.min_by("a b", "c")}
    tumbling = gw.WindowedAggregation(window=gw.TumblingWindow("1 minute"), time="time", aggregates=aggregates)
    (row,) = gw.aggregate(rows, tumbling).to_pylist()
    assert [row[name] for name in aggregates] == [7, 4, 9, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_state_of_one_field_may_be_a_number(as_tuple: bool, ordered: bool, device: str) -> None:
    def add(total: float, value: float) -> Any:
        return total + 2 * value

    def merge(total: float, other: float) -> Any:
        return total + other

    def add_of_tuple(total: float, value: float) -> Any:
        return (total + 2 * value,)

    def merge_of_tuples(total: float, other: float) -> Any:
        return (total + other,)

    def result(total: float) -> float:
        return total

    parts = (add_of_tuple, merge_of_tuples) if as_tuple else (add, merge)
    twice = gw.accumulation(state={"total": 0.0}, add=parts[0], merge=parts[1], result=result, ordered=ordered)
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow("4 seconds", "2 seconds"), time="time", aggregates={"twice": twice("value")}
    )
    table = pa.table({"time": pa.array([1, 3, 2, 5], pa.timestamp("s")), "value": [1.0, 3.0, 2.0, 5.0]})
    op = spec.start(device=device)
    found = pa.concat_tables([op.process(table), op.finish()])["twice"].to_pylist()
    assert found == [2.0, 12.0, 20.0, 10.0]


@pytest.mark.parametrize("page", ["no such file", "text.md"])
def test_functions_without_source_are_told_apart_by_their_constants(page: str, tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text("It's a page, and not Python.\n" * 20)  # an open string on its first line

    def weighted(weight: int) -> Any:
        lines = f"def add(n, x): return n + {weight} * x\ndef merge(n, o): return n + o\ndef result(n): return n\n"
        found: dict[str, Any] = {}
        exec(compile(lines, str(tmp_path / page), "exec"), found)
        return gw.accumulation(state={"n": 0}, add=found["add"], merge=found["merge"], result=found["result"])

    assert weighted(2).digest == weighted(2).digest
    assert weighted(2).digest != weighted(3).digest


SCALE = 2.0


@njit
def scaled(x: float) -> float:
    return x * SCALE


def powered(exponent: int, inner: Any = None) -> Any:
    def power(x: float) -> float:
        return x**exponent if inner is None else inner(x) ** exponent

    return power


def from_around(weight: Any, ordered: bool = False) -> Any:
    """An accumulation whose code is the same for every weight."""

    def add(total, value):
        return total + (scaled(value) if weight is None else weight * value)

    def merge(total, other):
        return total + other

    def result(total):
        return total

    return gw.accumulation(state={"total": 0.0}, add=add, merge=merge, result=result, ordered=ordered)


def test_a_snapshot_does_not_go_on_with_other_constants() -> None:
    op = spec(from_around(1.0)("value")).start()
    op.process(batch([1], [1.0]))
    again = spec(from_around(1.0)("value")).restore(op.snapshot())
    again.process(batch([2], [1.0]))
    assert again.finish()["out"].to_pylist() == [2.0, 2.0]
    with pytest.raises(gw.SnapshotError):
        spec(from_around(100.0)("value")).restore(op.snapshot())


def test_values_from_around_make_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [1, 1.0, True, "a", None, (1, 2), (1, (2, 3)), np.float32(1), np.int64(1), np.arange(3), np.arange(3.0)]
    digests = [from_around(weight).digest for weight in weights]
    assert len(set(digests)) == len(weights)
    assert digests == [from_around(weight).digest for weight in weights]
    assert from_around(powered(2, powered(3))).digest != from_around(powered(2, powered(4))).digest
    assert from_around(object()).digest == from_around(object()).digest  # which has no text
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert from_around(None).digest != digests[4]  # of a function that `add` calls


def test_accumulations_without_values_from_around_keep_their_digest() -> None:
    """That of the snapshots of before."""
    assert Recent.digest == "684cf5d93a5ae307"
    assert Changes.digest == "d4cd07a8b23f081b"


@pytest.mark.parametrize("at_a_time", [1, 7, 1 << 20])
@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize("disorder", [0, 3, 400])
def test_rows_of_overlapping_windows_come_in_order(
    order: Any, disorder: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of windows whose rows lie in that order already, and of others; the newest value and the number of changes show
    the order.
    """
    monkeypatch.setattr(folding, "_FOLDED_ROWS", at_a_time)
    rng = np.random.default_rng(disorder)
    n = 300
    seconds = np.sort(rng.integers(0, 1_500, n))
    late = rng.random(n) < 0.05 if disorder else np.zeros(n, bool)
    seconds = np.maximum(seconds - np.where(late, disorder, 0), 0)
    keys, values = rng.integers(0, 4, n), rng.integers(0, 3, n)
    mask = rng.random(n) < 0.1
    rows = pa.table(
        {
            "time": pa.array(seconds.tolist(), pa.timestamp("s")),
            "key": keys,
            "value": pa.array(values, mask=mask),
        }
    )
    found = gw.aggregate(
        rows,
        spec(Changes("value"), keys=["key"], watermark=gw.ExplicitWatermark(), semantics=gw.Semantics(order=order)),
    )
    expected: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for arrival, (s, key, value, null) in enumerate(zip(seconds, keys, values, mask, strict=True)):
        for start in (int(s) // 120 * 120 - 120, int(s) // 120 * 120):
            seen = expected.setdefault((start, int(key)), [])
            if not null:
                seen.append((int(s) if order == "time" else 0, arrival, int(value)))
    changes = {
        at: sum(a[2] != b[2] for a, b in itertools.pairwise(sorted(seen))) if seen else None
        for at, seen in expected.items()
    }
    starts = (found["window_start"].cast(pa.int64()).to_numpy() // 1_000_000).tolist()
    assert (
        dict(zip(zip(starts, found["key"].to_pylist(), strict=True), found["out"].to_pylist(), strict=True)) == changes
    )


def test_the_merge_of_an_ordered_accumulation_is_not_called() -> None:
    """It is compiled: one that does not is refused."""

    def made(merge: Any) -> Any:
        return gw.accumulation(
            state={"digits": 0},
            add=lambda digits, v: digits * 10 + v,
            merge=merge,
            result=lambda digits: digits,
            name="digits",
            ordered=True,
        )("v")

    def spec(window: Any, merge: Any) -> gw.WindowedAggregation:
        return gw.WindowedAggregation(
            window=window, time="time", aggregates={"x": made(merge)}, watermark=gw.EventClock(timedelta.max)
        )

    table = pa.table({"time": pa.array([1, 6, 3, 12], pa.timestamp("s")), "v": [1, 2, 3, 4]})
    for window in (gw.SlidingWindow("10 seconds", "5 seconds"), gw.SessionWindow("4 seconds"), gw.GlobalWindow()):
        answers = []
        for merge in (lambda a, b: a * 0 - 1, lambda a, b: a + b):
            op = spec(window, merge).start()
            answers.append(pa.concat_tables([*(op.process(table.slice(k, 1)) for k in range(4)), op.finish()]))
        assert answers[0] == answers[1]
        assert min(answers[0]["x"].to_pylist()) > 0
    with pytest.raises(gw.SpecificationError, match="merge does not compile"):
        spec(gw.TumblingWindow("10 seconds"), lambda a, b: a.nothing).start(schema=table.schema)

"""Triggers with an evictor: they fire when they would without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw

ALL = gw.KeepLast(10**6)  # evicts nothing
R = gw.EveryRows

COUNTS_ON = gw.Semantics(late_count="continue")
AFTER_END = gw.Semantics(late_pane="after_end")
BY_BATCH = gw.Semantics(count_trigger="batch")


def spec(trigger: gw.Trigger, **more: Any) -> gw.WindowedAggregation:
    start: dict[str, Any] = {"window": gw.TumblingWindow("10 seconds"), "allowed_lateness": "30 seconds", **more}
    return gw.WindowedAggregation(time="t", keys=["k"], aggregates={"n": gw.count()}, emit=trigger, **start)


def table(seconds: list[int], keys: str = "") -> pa.Table:
    return pa.table({"t": pa.array(seconds, pa.timestamp("s")), "k": list(keys or "a" * len(seconds))})


def told(out: pa.Table) -> list[tuple[int, str]]:
    return [(row["n"], row["pane"]) for row in out.to_pylist()]


@pytest.mark.parametrize(
    ("trigger", "semantics", "batches", "expected"),
    [
        (gw.Trigger(R(2), R(2), on_time=False), gw.Semantics(), [[1], [12], [2]], [[], [], [(2, "late")]]),
        (gw.Trigger(R(2), R(3), on_time=False), gw.Semantics(), [[1], [12], [2]], [[], [], []]),
        (gw.Trigger(R(2), R(2)), gw.Semantics(), [[1], [12], [2]], [[], [(1, "on_time")], []]),
        (gw.Trigger(late=R(2)), COUNTS_ON, [[1], [12], [2]], [[], [(1, "on_time")], [(2, "late")]]),
        (gw.Trigger(R(1)), gw.Semantics(), [[25], [12, 13]], [[(1, "early")], [(1, "on_time")]]),
        (gw.Trigger(late=R(1)), gw.Semantics(), [[25], [12, 13]], [[], [(1, "on_time"), (2, "late")]]),
        (gw.Trigger(late=R(1), on_time=False), gw.Semantics(), [[25], [12]], [[], [(1, "late")]]),
        (gw.Trigger(), AFTER_END, [[25], [12]], [[], [(1, "late")]]),
        (gw.Trigger(R(1), R(1)), BY_BATCH, [[1, 2, 3], [25], [12, 13], [14]],
         [[(3, "early")], [(3, "on_time"), (1, "early")], [(2, "on_time")], [(3, "late")]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("evict", [None, ALL])
def test_an_evictor_changes_no_moment(
    trigger: gw.Trigger, semantics: gw.Semantics, batches: list[list[int]], expected: list[Any], evict: Any
) -> None:
    op = spec(replace(trigger, evict=evict), semantics=semantics).start()
    assert [told(op.process(table(batch))) for batch in batches] == expected


@pytest.mark.parametrize("window", [gw.SlidingWindow("10 seconds", "5 seconds"), gw.GlobalWindow()])
@pytest.mark.parametrize("trigger", [gw.Trigger(R(2), R(2), on_time=False), gw.Trigger(R(3), R(1)), gw.Trigger()])
@pytest.mark.parametrize("semantics", [gw.Semantics(), gw.Semantics.BEAM, gw.Semantics.APEX])
def test_results_are_the_same_and_in_the_same_order_also_across_snapshots(
    window: Any, trigger: gw.Trigger, semantics: gw.Semantics
) -> None:
    batches = [table([3, 1, 9, 4], "abab"), table([12, 8], "ba"), table([6, 30, 11], "bba"), table([2, 14, 22], "aab")]

    def results(evict: Any) -> list[list[dict[str, Any]]]:
        one = spec(replace(trigger, evict=evict), window=window, semantics=semantics)
        op, found = one.start(), []
        for batch in batches:
            found.append(op.process(batch).to_pylist())
            op = one.restore(op.snapshot())
        return [*found, op.finish().to_pylist()]

    assert results(ALL) == results(None)


def test_an_evicted_row_counts_on_over_the_end() -> None:
    """The count is that of rows that came, whatever is left of them."""
    op = spec(gw.Trigger(R(2), R(2), on_time=False, evict=gw.KeepLast(1))).start()
    batches = [[1, 2, 3], [12], [4], [5, 6]]
    assert [told(op.process(table(batch))) for batch in batches] == [[(1, "early")], [], [(1, "late")], [(1, "late")]]


@pytest.mark.parametrize("first", [2, 1 << 60])
def test_near_values_are_compared_exactly(first: int) -> None:
    op = spec(gw.Trigger(R(1), evict=gw.KeepNear("v", 1)), window=gw.GlobalWindow()).start()
    rows = table([0, 1]).append_column("v", pa.array([first, first + 1]))
    assert [n for n, _ in told(op.process(rows))] == [1, 1]


def test_keep_within_counts_back_from_the_newest_row() -> None:
    op = gw.WindowedAggregation(
        window=gw.GlobalWindow(),
        time="time",
        watermark=gw.ExplicitWatermark(),
        aggregates={"all": gw.collect_list("v")},
        emit=gw.Trigger(early=gw.EveryRows(1), evict=gw.KeepWithin("10 seconds")),
    ).start()
    times = [1, 5, 20, 12, 3]
    table = pa.table({"time": pa.array(times, pa.timestamp("s")), "v": times})
    found = op.process(table)["all"].to_pylist()
    assert found == [[1], [1, 5], [20], [20, 12], [20, 12]]


@pytest.mark.parametrize("threshold", ["3", None, float("nan")])
def test_a_threshold_is_a_number(threshold: Any) -> None:
    with pytest.raises(gw.SpecificationError, match=r"KeepNear\.threshold is a number, not"):
        gw.KeepNear("v", threshold)

"""Triggers where the cases say little: Beam's own transcripts, clocks, event time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw


def rows(*times: int) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s")), "value": pa.array(times, pa.int64())})


def spec(emit: Any, **more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.TumblingWindow("10 seconds"),
        "time": "time",
        "aggregates": {"n": gw.count(), "all": gw.collect_list("value")},
        "watermark": gw.ExplicitWatermark(),
    }
    return gw.WindowedAggregation(**{**given, **more}, emit=emit)


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(table["all"].to_pylist(), table["pane"].to_pylist(), strict=True))


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("10 seconds")])
def test_beam_discarding_early(window: Any) -> None:
    """Beam's transcript discarding_early_fixed, and the same with sessions: the on-time pane may be empty."""
    semantics = gw.Semantics.BEAM
    trigger = gw.Trigger(early=gw.EveryRows(2))
    op = spec(trigger, window=window, accumulation="discarding", semantics=semantics).start()
    assert told(op.process(rows(1, 2, 3))) == [([1, 2, 3], "early")]
    assert told(op.process(rows(4))) == []
    assert told(op.process(rows(5))) == [([4, 5], "early")]
    assert told(op.process(rows(30))) == []
    assert told(op.process(rows(31))) == [([30, 31], "early")]
    assert told(op.process(rows(6))) == []
    table = op.advance_watermark(100_000_000)
    assert sorted(told(table)) == [([], "on_time"), ([6], "on_time")]
    assert sorted(table["n"].to_pylist()) == [0, 1]


def test_an_empty_on_time_pane_is_not_emitted_by_default() -> None:
    op = spec(gw.Trigger(early=gw.EveryRows(2)), accumulation="discarding").start()
    op.process(rows(1, 2))
    assert told(op.advance_watermark(100_000_000)) == []


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("10 seconds")])
@pytest.mark.parametrize("early", [None, gw.EveryRows(3), gw.Every("1 hour")])
def test_late_rows_continue_the_count_of_malhar(window: Any, early: Any) -> None:
    """Apex Malhar counts the tuples of a window through its end, and fires at multiples of that."""
    trigger = gw.Trigger(early=early, late=gw.EveryRows(2))
    found = []
    for semantics in (gw.Semantics.APEX, gw.Semantics()):
        op = spec(trigger, window=window, allowed_lateness="1 hour", semantics=semantics).start()
        op.process(rows(1, 1, 1, 1, 1))
        assert told(op.advance_watermark(12_000_000)) == [([1] * 5, "on_time")]
        op = spec(trigger, window=window, allowed_lateness="1 hour", semantics=semantics).restore(op.snapshot())
        found.append([len(told(op.process(rows(1)))) for _ in range(4)])
    assert found == [[1, 0, 1, 0], [0, 1, 0, 1]]


def test_late_by_system_time_counts_from_the_last_firing_where_the_close_was_none() -> None:
    now = [0]
    op = spec(gw.Trigger(late=gw.Every("5 seconds"), on_time=False), allowed_lateness="1 hour").start(
        clock=lambda: now[0]
    )
    op.process(rows(1))
    found = []
    for second in (4, 5, 6, 10):
        now[0] = second * 1_000_000
        table = op.process(rows())
        if second == 4:
            table = op.advance_watermark(20_000_000)
        found.append(told(table))
    assert found == [[], [([1], "late")], [], [([1], "late")]]


def test_system_time_counts_from_the_first_row_then_from_the_last_firing() -> None:
    now = [0]
    op = spec(gw.Trigger(early=gw.Every("5 seconds"), on_time=False)).start(clock=lambda: now[0])
    found = []
    for second, times in [(100, [1]), (103, [2]), (105, []), (108, [3]), (109, []), (110, []), (116, [])]:
        now[0] = second * 1_000_000
        found.append(told(op.process(rows(*times))))
    assert found == [[], [], [([1, 2], "early")], [], [], [([1, 2, 3], "early")], [([1, 2, 3], "early")]]


@pytest.mark.parametrize("early", [gw.EveryEventTime("1 second"), gw.EveryRows(2), gw.Every("3 seconds")], ids=repr)
@pytest.mark.parametrize("on_time", [True, False])
def test_late_by_system_time_counts_from_any_firing(early: Any, on_time: bool) -> None:
    now = [0]
    trigger = gw.Trigger(early=early, late=gw.Every("10 seconds"), on_time=on_time)
    op = spec(trigger, allowed_lateness="1 hour").start(clock=lambda: now[0])
    op.process(rows(7))
    now[0] = 12_000_000
    fired = told(op.process(rows(8))) + told(op.advance_watermark(50_000_000))
    assert fired
    found = []
    for second in (13, 21, 22):
        now[0] = second * 1_000_000
        found.append(told(op.process(rows())))
    assert found == [[], [], [([7, 8], "late")]]


@pytest.mark.parametrize("watermark", [gw.BoundedOutOfOrderness("0 seconds"), gw.EventClock("0 seconds")], ids=repr)
@pytest.mark.parametrize("window", [gw.TumblingWindow("100 seconds"), gw.SessionWindow("60 seconds")])
def test_event_time_waits_until_the_watermark_moves(window: Any, watermark: Any) -> None:
    """A row behind the watermark, in a window of its own."""
    trigger = gw.Trigger(early=gw.EveryEventTime("10 seconds"))
    op = spec(trigger, window=window, watermark=watermark, keys=["key"]).start(clock=lambda: 0)

    def process(key: str, *times: int) -> list[tuple[list[int], str]]:
        table = rows(*times)
        return told(op.process(table.append_column("key", pa.array([key] * len(table), pa.string()))))

    assert [process("a", 250), process("b", 215), process("b"), process("b", 216)] == [[]] * 4
    assert process("a", 251) == [([215, 216], "early")] * 4  # at 220, 230, 240 and 250


@pytest.mark.parametrize("scope", ["stream", "key"])
@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("10 seconds")])
def test_a_trigger_that_looks_at_the_clock_moves_no_watermark(window: Any, scope: Any) -> None:
    now = [0]
    given: dict[str, Any] = {"window": window, "watermark": gw.BoundedOutOfOrderness("0 seconds"), "keys": ["key"]}
    op = spec(gw.Trigger(early=gw.Every("1 hour")), **given, semantics=gw.Semantics(watermark_scope=scope)).start(
        clock=lambda: now[0]
    )
    found = []
    for hour, times in [(0, [1]), (2, []), (2, [2]), (4, [30])]:
        now[0] = hour * 3_600_000_000
        table = rows(*times)
        found.append(told(op.process(table.append_column("key", pa.array(["k"] * len(table), pa.string())))))
    assert found == [[], [([1], "early")], [], [([1, 2], "on_time")]]
    assert op.metrics.rows_late == 0


def test_event_time_at_multiples() -> None:
    op = spec(gw.Trigger(early=gw.EveryEventTime("3 seconds"))).start()
    op.process(rows(1, 4))
    assert [told(op.advance_watermark(w * 1_000_000)) for w in (2, 3, 5, 9, 10)] == [
        [],
        [([1, 4], "early")],
        [],
        [([1, 4], "early")] * 2,  # at 6 and at 9
        [([1, 4], "on_time")],
    ]


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("9 seconds")])
@pytest.mark.parametrize(
    ("accumulation", "only_updated", "early", "late"),
    [
        ("accumulating", False, 3, 2),
        ("accumulating", True, 1, 1),
        ("discarding", False, 1, 1),
        ("retracting", False, 5, 4),  # each takes back the one before
    ],
)
def test_event_time_fires_at_each_multiple_passed(
    window: Any, accumulation: Any, only_updated: bool, early: int, late: int
) -> None:
    """Flink's ContinuousEventTimeTrigger: its timer at 3 sets one at 6, and that one at 9, before the window's end."""
    trigger = gw.Trigger(gw.EveryEventTime("3 seconds"), gw.EveryEventTime("4 seconds"), only_updated=only_updated)
    op = spec(trigger, window=window, accumulation=accumulation, allowed_lateness="8 seconds").start()
    assert told(op.process(rows(1))) == []
    panes = op.advance_watermark(10_000_000)["pane"].to_pylist()
    assert panes.count("early") == early
    assert panes.count("on_time") == {"accumulating": 1 - only_updated, "discarding": 0, "retracting": 2}[accumulation]
    assert told(op.process(rows(1))) == []
    table = op.advance_watermark(17_000_000)  # 12 and 16
    assert table["pane"].to_pylist() == ["late"] * (late if accumulation != "retracting" else 4)
    assert table["n"].to_pylist()[-1] == (1 if accumulation == "discarding" else 2)


@pytest.mark.parametrize("semantics", [gw.Semantics(), gw.Semantics.FLINK])
def test_event_time_of_a_window_for_ever_fires_once_at_the_end_of_the_stream(semantics: gw.Semantics) -> None:
    trigger = gw.Trigger(gw.EveryEventTime("1 second"), on_time=False)
    op = spec(trigger, window=gw.GlobalWindow(), semantics=semantics).start()
    op.process(rows(1))
    with pytest.raises(gw.LimitExceeded, match="longer interval"):
        op.advance_watermark(10**15)
    assert told(op.advance_watermark(3_000_000)) == [([1], "early")] * 2
    assert told(op.finish()) == [([1], "early")]


@pytest.mark.parametrize("window", [gw.TumblingWindow("3 seconds"), gw.SessionWindow("3 seconds")])
def test_late_timers_run_from_the_watermark_that_the_first_late_row_finds(window: Any) -> None:
    """And a window without a late row has none: nothing fires when the stream ends."""
    more: dict[str, Any] = {"watermark": gw.BoundedOutOfOrderness("0 seconds"), "allowed_lateness": "1 minute"}
    op = spec(gw.Trigger(late=gw.EveryEventTime("5 seconds")), window=window, **more).start()
    assert told(op.process(rows(0, 7))) == [([0], "on_time")]
    assert told(op.process(rows(0, 8))) == []
    assert told(op.process(rows(13))) == [([0, 0], "late"), ([7, 8], "on_time")]
    assert op.finish()["pane"].to_pylist().count("late") == 10  # at 15 to 60; 63 is where [0, 3) is evicted


def test_only_updated_emits_no_value_twice_in_a_row() -> None:
    op = spec(gw.Trigger(early=gw.EveryRows(1), only_updated=True), aggregates={"high": gw.max("value")}).start()
    assert op.process(rows(5, 3, 7))["high"].to_pylist() == [5, 7]
    assert op.advance_watermark(100_000_000)["high"].to_pylist() == []


def test_a_row_that_is_late_for_a_window_closed_within_its_batch() -> None:
    """The window was open when the batch began and has rows of its own: what comes after its end is late."""
    semantics = gw.Semantics(watermark_advance="row")
    trigger = gw.Trigger(late=gw.EveryRows(1))
    more: dict[str, Any] = {"watermark": gw.BoundedOutOfOrderness("0 seconds"), "semantics": semantics}
    op = spec(trigger, allowed_lateness="5 seconds", **more).start()
    assert told(op.process(rows(1, 2))) == []
    assert told(op.process(rows(10, 3))) == [([1, 2], "on_time"), ([1, 2, 3], "late")]


def test_a_session_that_a_row_of_its_own_key_joins_before_it_would_close_it() -> None:
    """The watermark moves after the row, so events exactly one gap apart are one session here, too."""
    semantics = gw.Semantics(watermark_advance="row")
    trigger = gw.Trigger(late=gw.EveryRows(1))
    more: dict[str, Any] = {"watermark": gw.BoundedOutOfOrderness("0 seconds"), "semantics": semantics}
    op = spec(trigger, window=gw.SessionWindow("5 seconds"), allowed_lateness="9 seconds", **more).start()
    assert told(op.process(rows(1, 6, 12))) == [([1, 6], "on_time")]
    assert told(op.finish()) == [([12], "on_time")]


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("10 seconds")])
def test_a_window_that_opens_after_its_end_is_never_early(window: Any) -> None:
    trigger = gw.Trigger(early=gw.EveryRows(1), late=gw.EveryRows(1))
    op = spec(trigger, window=window, allowed_lateness="1 minute").start(schema=rows().schema)
    op.advance_watermark(30_000_000)
    assert told(op.process(rows(1))) == [([1], "on_time")]
    assert told(op.process(rows(2))) == [([1, 2], "late")]


@pytest.mark.parametrize("late", [None, gw.EveryRows(3)])
def test_late_rows_of_a_session_that_opens_again_do_not_count_for_early_firings(late: Any) -> None:
    """As in Beam and Flink: early and late triggers count rows each for themselves, and a merge adds like to like."""
    trigger = gw.Trigger(early=gw.EveryRows(3), late=late)
    op = spec(trigger, window=gw.SessionWindow("3 seconds"), allowed_lateness="9 seconds").start()
    assert told(op.process(rows(0, 4))) == []
    assert told(op.advance_watermark(4_000_000)) == [([0], "on_time")]
    assert told(op.process(rows(-1))) == []  # [-1, 3) has ended: one row for its late firings
    assert told(op.process(rows(3))) == []  # [-1, 7) is open: this row and that of [4, 7)
    assert told(op.process(rows(5))) == [([0, 4, -1, 3, 5], "early")]


def moving(emit: Any, **more: Any) -> gw.WindowOperator:
    """The watermark moves with each row."""
    semantics = gw.Semantics(watermark_advance="row", **more.pop("semantics", {}))
    given: dict[str, Any] = {"watermark": gw.BoundedOutOfOrderness("0 seconds"), "allowed_lateness": "9 seconds"}
    return spec(emit, semantics=semantics, **{**given, **more}).start()


SESSION = gw.SessionWindow("3 seconds")


@pytest.mark.parametrize("scope", ["stream", "key"])
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.EveryRow(), gw.Trigger()])
def test_no_row_is_late_or_apart_by_its_own_time(emit: Any, scope: str) -> None:
    """The watermark moves after each row, also where it is inclusive: rows in order are never late."""
    semantics = {"watermark_inclusive": True, "watermark_scope": scope}
    for window, times in [(gw.TumblingWindow("10 seconds"), (5, 9, 9)), (SESSION, (0, 3, 6))]:
        op = moving(emit, window=window, semantics=semantics, allowed_lateness="0 seconds")
        tables = [op.process(rows(*times)), op.finish()]
        assert [all_ for table in tables for all_ in table["all"].to_pylist()][-1] == list(times)
        assert op.metrics.rows_late == 0


@pytest.mark.parametrize("batches", [[(0, 0, 4, 2)], [(0,), (0, 4, 2)], [(0, 0, 4), (2,)]])
def test_a_session_fires_on_time_before_the_row_that_opens_it_again(batches: list[tuple[int, ...]]) -> None:
    """However the stream is cut, and with a trigger that counts no rows."""
    op = moving(gw.Trigger(), window=SESSION)
    assert [pane for batch in batches for pane in told(op.process(rows(*batch)))] == [([0, 0], "on_time")]
    assert told(op.finish()) == [([0, 0, 4, 2], "on_time")]


def test_late_rows_of_sessions_that_closed_within_their_batch_fire_when_it_ends() -> None:
    op = moving(gw.OnClose(), window=SESSION)
    assert op.process(rows(0, 10, 0, 0))["all"].to_pylist() == [[0], [0, 0, 0]]
    op = moving(gw.Trigger(late=gw.EveryRows(2)), window=SESSION, semantics={"count_trigger": "batch"})
    assert told(op.process(rows(0, 10, 0))) == [([0], "on_time")]
    assert told(op.process(rows(0, 0))) == [([0, 0, 0, 0], "late")]


def test_late_rows_are_emitted_even_where_their_window_is_evicted_in_the_same_batch() -> None:
    """OnUpdate: one row for a window that closes within the batch, with all that came."""
    for emit, expected in [(gw.OnClose(), [[0], [0, 0], [10]]), (gw.OnUpdate(), [[0, 0], [10], [25]])]:
        table = moving(emit, window=gw.TumblingWindow("5 seconds")).process(rows(0, 10, 0, 25))
        assert sorted(table["all"].to_pylist()) == expected


def test_an_early_firing_counted_by_batches_ends_where_its_window_closed() -> None:
    trigger = gw.Trigger(early=gw.EveryRows(1), late=gw.EveryRows(1))
    op = moving(trigger, semantics={"count_trigger": "batch"})
    assert told(op.process(rows(1, 11, 2))) == [([1], "early"), ([1], "on_time"), ([1, 2], "late"), ([11], "early")]


def test_rows_of_a_session_that_is_gone_are_not_those_of_one_that_reaches_back_over_it() -> None:
    """A live session takes up the last row (Flink's check after the merge), whose time is one of a closed session."""
    for emit in (gw.OnClose(), gw.Trigger(), gw.Trigger(early=gw.EveryRows(9))):
        semantics = {"session_late_check": "after_merge"}
        op = moving(emit, window=SESSION, allowed_lateness="0 seconds", semantics=semantics)
        assert op.process(rows(0, 1, 5, 6, 2))["all"].to_pylist() == [[0, 1]]
        assert op.finish()["all"].to_pylist() == [[5, 6, 2]]


@pytest.mark.parametrize("trigger", [gw.Trigger(), gw.Trigger(early=gw.EveryRows(9))])
def test_a_session_that_opens_after_its_end_fires_before_its_batch_takes_it_up(trigger: Any) -> None:
    """As Flink's EventTimeTrigger does, whether the trigger counts rows or not."""
    op = spec(trigger, window=SESSION, allowed_lateness="9 seconds").start(schema=rows().schema)
    op.advance_watermark(0)
    assert told(op.process(rows(0, -5, -2))) == [([-5], "on_time")]
    assert told(op.finish()) == [([0, -5, -2], "on_time")]


def test_sessions_that_merge_keep_the_earliest_timer() -> None:
    """Flink: a session's timer is set by its first row, and a merge keeps the earlier one."""
    op = spec(gw.Trigger(early=gw.EveryEventTime("2 seconds")), window=SESSION).start()
    assert told(op.process(rows(6, 0, 3))) == []
    assert told(op.advance_watermark(5_000_000)) == [([6, 0, 3], "early")] * 2  # at 2 and at 4


def test_a_late_row_beside_the_one_that_opened_its_window_after_the_end_sets_the_late_timer() -> None:
    more: dict[str, Any] = {"watermark": gw.BoundedOutOfOrderness("0 seconds"), "allowed_lateness": "30 seconds"}
    op = spec(gw.Trigger(late=gw.EveryEventTime("5 seconds")), **more).start()
    assert told(op.process(rows(20))) == []
    assert told(op.process(rows(1, 2, 26))) == [([1], "on_time"), ([1, 2], "late")]


def test_evicting_windows_that_are_gone_leave_no_rows() -> None:
    evict = gw.Trigger(early=gw.EveryRows(2), evict=gw.KeepLast(2))
    op = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), time="time", aggregates={"n": gw.count()}, emit=evict
    ).start()
    op.process(pa.table({"time": pa.array([0, 1, 2], pa.timestamp("s"))}))
    assert op.metrics.cells == 3
    op.advance_watermark(10_000_000)
    assert (op.metrics.windows_open, op.metrics.cells) == (0, 0)


@pytest.mark.parametrize("aggregate", [gw.count(), gw.collect_list("value")])
@pytest.mark.parametrize("accumulation", ["accumulating", "retracting"])
def test_every_row_emits_sessions_in_order_of_arrival(aggregate: Any, accumulation: Any) -> None:
    """Across keys, too, and whether the rows of a session are kept or not."""
    batch = rows(1, 4, 2, 5, 3).append_column("key", pa.array(list("abcba")))
    more: dict[str, Any] = {"window": gw.SessionWindow("3 seconds"), "keys": ["key"], "accumulation": accumulation}
    table = spec(gw.EveryRow(), aggregates={"a": aggregate}, **more).start().process(batch)
    again = [False] * 5 if accumulation == "accumulating" else [False, False, False, True, False, True, False]
    keys = "abcba" if accumulation == "accumulating" else "abcbbaa"
    assert "".join(table["key"].to_pylist()) == keys
    if accumulation == "retracting":
        assert table["is_retraction"].to_pylist() == again


def test_timers_that_the_end_of_the_stream_leaves_behind_call_no_window_empty_that_has_rows() -> None:
    """[-10, 10) is looked at, [0, 20) is jumped over, and so it is of [10, 30) that the empty value is told."""
    window = gw.SlidingWindow("20 seconds", "10 seconds")
    more: dict[str, Any] = {"window": window, "semantics": gw.Semantics.REDUCTION, "aggregates": {"n": gw.count()}}
    op = spec(gw.OnChange(), **more).start()
    op.process(rows(1))
    table = op.finish()
    starts = table["window_start"].cast(pa.int64()).to_pylist()
    assert [(start // 1_000_000, n) for start, n in zip(starts, table["n"].to_pylist(), strict=True)] == [
        (-10, 1),
        (10, 0),
    ]


def test_a_retraction_has_the_end_of_the_result_that_it_takes_back() -> None:
    """A row with a short gap may move a session's last event and not its end."""
    batch = rows(4, 5).append_column("gap", pa.array([10, 1], pa.duration("s")))
    more: dict[str, Any] = {"window": gw.SessionWindow(gw.column("gap")), "accumulation": "retracting"}
    op = spec(gw.EveryRow(), semantics=gw.Semantics(session_end="last_event"), **more).start()
    found = op.process(batch).select(["all", "window_end", "is_retraction"]).to_pylist()
    assert [(r["all"], r["window_end"].second, r["is_retraction"]) for r in found] == [
        ([4], 4, False),
        ([4], 4, True),
        ([4, 5], 5, False),
    ]


@pytest.mark.parametrize("emit", [gw.OnUpdate(), gw.OnClose()])
def test_a_window_evicted_within_a_batch_has_none_of_its_later_rows(emit: Any) -> None:
    """[0, 6) opens after its end, with 5, and is gone when 1 comes, which is in time for [0, 12) alone."""
    op = moving(emit, window=gw.CumulativeWindow("12 seconds", "3 seconds"), allowed_lateness="3 seconds")
    table = pa.concat_tables([op.process(rows(6, 5, 13, 1)), op.finish()])
    columns = (table["window_end"].cast(pa.int64()), table["n"], table["all"])
    found = {end // 1_000_000: (n, rows) for end, n, rows in zip(*(c.to_pylist() for c in columns), strict=True)}
    assert found[6] == (1, [5])
    assert found[9] == (2, [6, 5])
    assert found[12] == (3, [6, 5, 1])


@pytest.mark.parametrize("scope", ["stream", "key"])
@pytest.mark.parametrize(
    "trigger",
    [
        gw.Trigger(early=gw.EveryEventTime("3 seconds")),
        gw.Trigger(late=gw.EveryEventTime("3 seconds")),
        gw.Trigger(early=gw.EveryRows(2), late=gw.EveryEventTime("3 seconds")),
    ],
)
@pytest.mark.parametrize("window", [gw.SlidingWindow("20 seconds", "5 seconds"), gw.SessionWindow("8 seconds")])
def test_a_timer_sees_the_rows_up_to_the_one_that_moved_the_watermark(window: Any, trigger: Any, scope: str) -> None:
    """So that what is emitted does not depend on where a batch ends."""
    semantics = gw.Semantics(watermark_advance="row", watermark_scope=scope)
    late = rows(1, 2, 4, 12, 11, 3, 25, 26, 14, 31, 18, 60, 44, 61, 90)
    table = late.append_column("key", [["a", "b", "a"] * 5])
    both = {}
    for size in (1, 4, table.num_rows):
        op = spec(
            trigger,
            window=window,
            keys=["key"],
            watermark=gw.BoundedOutOfOrderness("1 second"),
            allowed_lateness="30 seconds",
            semantics=semantics,
            collect_late=True,
        ).start()
        found = [op.process(table.slice(at, size)) for at in range(0, table.num_rows, size)]
        emitted = pa.concat_tables([*found, op.finish()]).to_pylist()
        both[size] = sorted(map(repr, emitted)), op.late_rows()["value"].to_pylist(), op.metrics.rows_late
        assert any(row["pane"] == ("early" if trigger.early else "late") for row in emitted)
    assert both[1] == both[4] == both[table.num_rows]


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("8 seconds")])
@pytest.mark.parametrize(("interval", "late"), [("3 seconds", [([1, 2], "late")]), ("10 seconds", [])])
def test_a_late_timer_beyond_the_eviction_does_not_fire(window: Any, interval: str, late: list[Any]) -> None:
    """Flink's window is cleaned up at its end and the lateness, and its timers with it, also if the watermark jumps."""
    op = spec(gw.Trigger(late=gw.EveryEventTime(interval)), window=window, allowed_lateness="4 seconds").start()
    op.process(rows(1))
    assert told(op.advance_watermark(11_000_000)) == [([1], "on_time")]
    assert told(op.process(rows(2))) == []
    assert told(op.advance_watermark(30_000_000)) == late


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("8 seconds")])
@pytest.mark.parametrize("steps", [[30_000_000], [14_999_000, 30_000_000], [14_998_000, 14_999_000, 15_000_000]])
def test_an_inclusive_watermark_evicts_before_a_timer_at_the_end_of_the_lateness(
    window: gw.Window, steps: list[int]
) -> None:
    """Flink cleans a window up at its last instant and the lateness: 14.999 s, before the timer at 15 s."""
    late = gw.Trigger(late=gw.EveryEventTime("5 seconds"))
    op = spec(late, window=window, allowed_lateness="5 seconds", semantics=gw.Semantics.FLINK).start()
    op.process(rows(2))
    assert told(op.advance_watermark(11_000_000)) == [([2], "on_time")]
    assert told(op.process(rows(1))) == []
    assert [row for step in steps for row in told(op.advance_watermark(step))] == []


@pytest.mark.parametrize("window", [gw.TumblingWindow("1 second"), gw.SessionWindow("1 second")], ids=repr)
def test_a_window_that_opens_after_its_end_fires_for_what_the_watermark_then_passes(window: Any) -> None:
    views = gw.WindowedAggregation(
        window=window, time="time", aggregates={"n": gw.count()}, allowed_lateness="8 seconds",
        emit=gw.Trigger(late=gw.EveryEventTime("5 seconds"), on_time=False),
    )  # fmt: skip
    op = views.start()
    batches = [pa.table({"time": pa.array([second], pa.timestamp("s"))}) for second in (34, 27, 36)]
    assert [op.process(batch)["pane"].to_pylist() for batch in batches] == [[], [], ["late"]]


def test_a_session_that_waits_for_the_watermark_before_stays_early_with_rows_that_join_it() -> None:
    """Rows are tested against the watermark before the batch, and sessions close by it, too."""
    op = spec(
        gw.Trigger(), window=gw.SessionWindow("4 seconds"), allowed_lateness="1 hour",
        watermark=gw.BoundedOutOfOrderness("0 seconds"), semantics=gw.Semantics(late_filter="previous"),
    ).start()  # fmt: skip
    found = [told(op.process(rows(*times))) for times in ((7, 13), (24,), (10,))]
    assert found == [[], [([7], "on_time")], [([7, 13, 10], "on_time")]]


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("9 seconds")])
def test_system_time_is_looked_at_when_a_batch_ends_though_timers_part_it(window: Any) -> None:
    """The watermark moves with each row, and event time fires within the batch; `Every` does not."""
    now = [0]

    def moving_by_clock(trigger: gw.Trigger, lateness: str) -> gw.WindowOperator:
        now[0] = 0
        semantics = gw.Semantics(watermark_advance="row")
        views = spec(trigger, window=window, semantics=semantics, allowed_lateness=lateness)
        return replace(views, watermark=gw.BoundedOutOfOrderness()).start(clock=lambda: now[0])

    by_clock, by_event = gw.Every("5 seconds"), gw.EveryEventTime("1 second")
    op = moving_by_clock(gw.Trigger(early=by_clock, late=by_event), "1 hour")
    op.process(rows(1))
    now[0] = 6_000_000
    assert told(op.process(rows(3, 5, 7))) == [([1, 3, 5, 7], "early")]
    for lateness, batch, held in (("1 hour", (12, 1, 15, 1, 17), 3), ("4 seconds", (1, 15, 17), 2)):
        op = moving_by_clock(gw.Trigger(early=by_event, late=by_clock), lateness)
        op.process(rows(1, 11))
        now[0] = 6_000_000
        late = [found for found in told(op.process(rows(*batch))) if found[1] == "late"]
        assert late == [([1] * held, "late")]  # or when it is evicted, if that is first


@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
def test_a_firing_with_nothing_new_is_a_firing(accumulation: Any) -> None:
    now = [0]
    every = gw.Every("10 seconds")
    op = spec(
        gw.Trigger(early=every, late=every),
        window=gw.TumblingWindow("100 seconds"),
        accumulation=accumulation,
        watermark=gw.BoundedOutOfOrderness("0 seconds"),
        allowed_lateness="1 hour",
    ).start(clock=lambda: now[0])
    found = []
    steps: list[tuple[int, list[int]]] = [(0, [1]), (10, []), (20, []), (25, [2]), (29, []), (30, []), (35, [100])]
    steps += [(36, [3]), (41, []), (44, []), (45, [])]
    for second, times in steps:
        now[0] = second * 1_000_000
        table = op.process(rows(*times))
        found.append(list(zip(table["n"].to_pylist(), table["pane"].to_pylist(), strict=True)))
    same = accumulation == "accumulating"
    again, closing = [(1, "early")] if same else [], [(2, "on_time")] if same else []
    late = [(3, "late") if same else (1, "late"), (1, "early")]
    assert found == [
        *([], [(1, "early")], again, [], []),
        [(2 if same else 1, "early")],  # at 30, ten seconds after the one that said nothing new
        closing,
        *([], [], [], late),  # ten seconds after the window closed, whether or not that said anything
    ]


def test_sessions_on_update_replace_what_they_were_only_when_retracting() -> None:
    def counts(accumulation: Any) -> list[tuple[int, int, bool]]:
        op = spec(
            gw.OnUpdate(),
            window=gw.SessionWindow("10 seconds"),
            accumulation=accumulation,
            watermark=gw.BoundedOutOfOrderness("1 minute"),
        ).start()
        table = pa.concat_tables([op.process(rows(t)) for t in (0, 15, 8)])
        back = table["is_retraction"].to_pylist() if accumulation == "retracting" else [False] * table.num_rows
        start = [at.second for at in table["window_start"].to_pylist()]
        return list(zip(start, table["n"].to_pylist(), back, strict=True))

    assert counts("accumulating") == [(0, 1, False), (15, 1, False), (0, 3, False)]
    assert counts("retracting") == [(0, 1, False), (15, 1, False), (0, 1, True), (15, 1, True), (0, 3, False)]

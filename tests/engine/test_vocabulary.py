"""What a user writes: accepted forms, and errors that say what is wrong before any data is touched."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpuwin as gw


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {"window": gw.TumblingWindow("1 minute"), "time": "time", "aggregates": {"n": gw.count()}}
    return gw.WindowedAggregation(**{**given, **more})


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10 minutes", 600),
        ("1 hour 30 minutes", 5400),
        ("500 milliseconds", 0.5),
        ("7 days", 604800),
        ("2 weeks", 1209600),
        ("interval 1 day", 86400),
        ("1.5 seconds", 1.5),
        ("1 minute -10 seconds", 50),
        ("3 MICROSECONDS", 3e-6),
        (timedelta(hours=1), 3600),
        (np.timedelta64(90, "s"), 90),
        (np.timedelta64(1_500, "ns"), 1e-6),
        (np.timedelta64(2, "W"), 1209600),
        (pd.Timedelta(1_500, "ns"), 1e-6),
    ],
)
def test_durations(written: Any, seconds: float) -> None:
    assert gw.TumblingWindow(written).size == timedelta(seconds=seconds)
    assert repr(gw.TumblingWindow(written)) == repr(gw.TumblingWindow(timedelta(seconds=seconds)))


@pytest.mark.parametrize(
    "written",
    [60, 1.5, None, "", "10", "minutes", "1 month", "2 years", "ten minutes", "1.5 hours", "-1 second", "0 seconds",
     "٣ minutes", np.timedelta64("NaT", "s"), np.timedelta64(1, "M"), np.timedelta64(2**62, "D")],
)  # fmt: skip
def test_what_is_no_duration(written: Any) -> None:
    with pytest.raises(gw.SpecificationError) as raised:
        gw.TumblingWindow(written)
    assert isinstance(raised.value, ValueError | TypeError)


@pytest.mark.parametrize("number", ["NaT", 3])
def test_a_timedelta_without_a_unit_is_no_duration(number: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 advises against them, and still makes them
        written = np.timedelta64(number)
    with pytest.raises(gw.SpecificationError):
        gw.TumblingWindow(written)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"window": "1 minute"}, "window is for example"),
        ({"window": gw.GlobalWindow}, r"did you mean GlobalWindow\(\)"),
        ({"aggregates": {}}, "aggregates is a non-empty dict"),
        ({"aggregates": {"n": "count"}}, "gw.sum"),
        ({"aggregates": {"n": gw.count}}, r"did you mean count\(\)"),
        ({"keys": None}, "list of column names"),
        ({"keys": {"a", "b"}}, "list of column names"),
        ({"collect_late": "yes"}, "True or False"),
        ({"aggregates": {"window_start": gw.count()}}, "two columns called window_start"),
        ({"keys": "user"}, "list of column names"),
        ({"keys": ["n"]}, "two columns called n"),
        ({"time": None}, "SystemClock"),
        ({"watermark": "5 minutes"}, "watermark is for example"),
        ({"allowed_lateness": "-1 second"}, "must not be negative"),
        ({"allowed_lateness": 5}, "has no unit"),
        ({"emit": "append"}, "emit is for example"),
        ({"accumulation": "retract"}, "retracting"),
        ({"emit": gw.Trigger(only_updated=True), "accumulation": "discarding"}, "discarding"),
        ({"emit": gw.Complete(), "accumulation": "retracting"}, "whole windows"),
        ({"emit": gw.OnChange(), "window": gw.SessionWindow("1 minute")}, "none before it"),
    ],
)
def test_a_specification_that_means_nothing(more: dict[str, Any], says: str) -> None:
    with pytest.raises(gw.SpecificationError, match=says):
        spec(**more)


@pytest.mark.parametrize(
    "write",
    [
        lambda: gw.CumulativeWindow("10 minutes", "3 minutes"),
        lambda: gw.EveryRows(0),
        lambda: gw.Every("0 seconds"),
        lambda: gw.Trigger(early="10 seconds"),
        lambda: gw.Semantics(close="end"),
        lambda: gw.Semantics(watermark_start=1.5),
        lambda: gw.Limits(max_open_windows=0),
        lambda: gw.sum(None),
        lambda: gw.quantile("c", 1.5),
        lambda: gw.top_k("c", 0),
        lambda: gw.var("c", ddof=-1),
        lambda: gw.approx_count_distinct("c", 0),
        lambda: gw.BoundedOutOfOrderness("-1 second"),
        lambda: gw.MultipleInputs([gw.ExplicitWatermark()]),
        lambda: gw.MultipleInputs(gw.ExplicitWatermark()),  # type: ignore[arg-type]
        lambda: gw.Limits(max_state_bytes=1, spill_to=3),  # type: ignore[arg-type]
        lambda: gw.EveryRows(np.timedelta64(5, "s")),  # type: ignore[arg-type]
        lambda: spec().start().advance_watermark(np.timedelta64(5, "s")),  # type: ignore[arg-type]
        lambda: spec().start().advance_watermark(5, source="left"),  # type: ignore[arg-type]
        lambda: spec().start().branch(clock=3),  # type: ignore[arg-type]
        lambda: gw.column(""),
        lambda: gw.SessionWindow("timeout"),
        lambda: gw.KeepNear("c", "far"),
        lambda: gw.KeepNear("", 1.0),
        lambda: spec().start().advance_watermark(np.datetime64("NaT", "us")),
        lambda: spec().start().advance_watermark("2024-01-01"),
        lambda: spec().start().late_rows(),
        lambda: spec().start(clock=5),  # type: ignore[arg-type]
        lambda: spec().start(schema={"time": pa.timestamp("s")}),  # type: ignore[arg-type]
        lambda: gw.WindowJoin("1 minute", ["k"], "t", "t"),  # type: ignore[arg-type]
        lambda: gw.WindowJoin(gw.GlobalWindow(), ["k"], None, "t"),  # type: ignore[arg-type]
        lambda: gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", semantics="SPARK"),  # type: ignore[arg-type]
        lambda: gw.HashJoin(None),  # type: ignore[arg-type]
        lambda: gw.HashJoin(["k"], limits=gw.Limits(max_open_windows=1)),
        lambda: gw.HashJoin(["k"], limits=5),  # type: ignore[arg-type]
        lambda: spec().start().process(pa.table({"time": pa.array([0], pa.timestamp("s"))}), source=1),
        lambda: gw.top_k("v", 2**63),
        lambda: gw.EveryRows(2**70),
        lambda: gw.approx_quantile("v", 0.5, 2**70),
        lambda: gw.KeepNear("v", np.timedelta64(1, "s")),
        lambda: gw.KeepLast(2, after="no"),
        lambda: gw.quantile("v", np.timedelta64("NaT", "s")),
        lambda: gw.quantile("v", np.timedelta64(1, "Y")),
        lambda: gw.approx_count_distinct("v", np.timedelta64("NaT", "s")),
    ],
)
def test_wrong_words(write: Any) -> None:
    with pytest.raises(gw.SpecificationError):
        write()


def test_metrics_at_the_end_of_time() -> None:
    op = spec(window=gw.TumblingWindow("1 microseconds")).start()
    op.process(pa.table({"time": pa.array([2**63 - 1]).view(pa.timestamp("us"))}))
    op.finish()
    assert op.metrics.windows_open == 0


@pytest.mark.parametrize(
    "time",
    [
        2**63,
        np.datetime64(10**15, "s"),
        np.datetime64(-(10**15), "s"),
        np.datetime64(2**62, "ms"),  # NumPy makes 1970 of it
        np.datetime64(300_000, "Y"),
        np.datetime64(2**60, "M"),
    ],
)
def test_a_watermark_beyond_int64_is_refused(time: Any) -> None:
    op = spec(watermark=gw.ExplicitWatermark()).start()
    with pytest.raises(gw.SpecificationError, match="must fit int64 microseconds"):
        op.advance_watermark(time)
    assert op.watermark is None


@pytest.mark.parametrize(
    ("time", "micros"),
    [
        (np.datetime64(-1, "ns"), -1),
        (np.datetime64("2024-02"), 1_706_745_600_000_000),
        (np.datetime64("1969"), -31_536_000_000_000),
        (np.datetime64(3, "10s"), 30_000_000),
        (2**63 - 2, 2**63 - 2),
    ],
)
def test_a_watermark_of_any_unit(time: Any, micros: int) -> None:
    op = spec(watermark=gw.ExplicitWatermark()).start()
    op.advance_watermark(time)
    assert op.watermark == micros


def test_the_largest_time_is_the_end_of_the_stream() -> None:
    for largest in (2**63 - 1, np.datetime64(2**63 - 1, "us")):
        with pytest.raises(gw.SpecificationError, match=r"call finish\(\)"):
            spec(watermark=gw.ExplicitWatermark()).start().advance_watermark(largest)


def test_an_input_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(gw.SpecificationError, match="0 to 0, not 1; MultipleInputs declares several"):
        spec().start().advance_watermark(5, source=1)
    two = spec(watermark=gw.MultipleInputs([gw.ExplicitWatermark()] * 2)).start()
    with pytest.raises(gw.SpecificationError, match="0 to 1, not 2"):
        two.advance_watermark(5, source=2)


@pytest.mark.parametrize(
    ("only_updated", "late_filter", "named"), [(True, "current", "only_updated"), (False, "previous", "late_filter")]
)
def test_what_does_not_go_with_an_evictor_is_named(only_updated: bool, late_filter: Any, named: str) -> None:
    emit = gw.Trigger(gw.EveryRows(2), only_updated=only_updated, evict=gw.KeepLast(1))
    with pytest.raises(gw.SpecificationError, match=f"not with .*{named}"):
        spec(emit=emit, semantics=gw.Semantics(late_filter=late_filter))


def test_specifications_are_frozen_comparable_and_picklable() -> None:
    one = spec(keys=["k"], window=gw.SessionWindow(gw.column("gap")), semantics=gw.Semantics.FLINK)
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one)
    with pytest.raises(FrozenInstanceError):
        one.time = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.aggregates["m"] = gw.count()  # type: ignore[index]


def test_numbers_of_numpy_are_numbers() -> None:
    assert gw.EveryRows(np.int32(3)) == gw.EveryRows(3)  # type: ignore[arg-type]
    assert repr(gw.top_k("c", np.int64(3))) == repr(gw.top_k("c", 3))  # type: ignore[arg-type]
    assert repr(gw.Semantics(watermark_start=np.int64(5))) == repr(gw.Semantics(watermark_start=5))  # type: ignore[arg-type]
    assert gw.Limits(max_open_windows=np.int64(7)).max_open_windows == 7  # type: ignore[arg-type]
    assert repr(gw.quantile("c", np.float32(0.5))) == repr(gw.median("c"))  # type: ignore[arg-type]
    assert spec(keys=(name for name in "ab")).keys == ("a", "b")


def test_the_text_of_a_specification_says_what_differs_from_the_defaults() -> None:
    told = repr(spec(semantics=gw.Semantics.SPARK, aggregates={"most": gw.top_k("c", 3)}))
    assert told == (
        "WindowedAggregation(window=TumblingWindow(size=datetime.timedelta(seconds=60), offset=datetime.timedelta(0)), "
        "time='time', aggregates={'most': Aggregate(kind='top_k', column='c', k=3)}, "
        "semantics=Semantics(watermark_start=0, watermark_precision='ms', restored_inputs='dropped'))"
    )


def test_an_operator_is_not_copied() -> None:
    op = spec().start(device="cpu")
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"op.snapshot\(\)"):
            copied(op)
    assert op.branch().metrics == op.metrics
    assert repr(op).startswith("<WindowOperator on cpu: Metrics(rows_in=0,")


def test_an_operator_without_input() -> None:
    op = spec(keys=["k"], collect_late=True).start()
    assert op.watermark is None
    assert op.metrics == gw.Metrics()
    assert op.output_schema.names == ["k", "window_start", "window_end", "n"]
    assert op.advance_watermark(datetime(2024, 1, 1, tzinfo=UTC)).schema == op.output_schema
    assert op.watermark == 1_704_067_200_000_000
    assert op.advance_watermark(5).num_rows == 0
    assert op.watermark == 1_704_067_200_000_000
    assert spec(keys=["k"], collect_late=True).restore(op.snapshot()).watermark == op.watermark
    assert op.finish().num_rows == 0
    with pytest.raises(gw.SpecificationError, match="has finished"):
        op.finish()


def test_a_schema_may_be_given_beforehand() -> None:
    schema = pa.schema([("time", pa.timestamp("ns", "UTC")), ("k", pa.large_string())])
    op = spec(keys=["k"], collect_late=True).start(schema=schema)
    assert op.output_schema.field("k").type == pa.large_string()
    assert op.output_schema.field("window_end").type == pa.timestamp("us", "UTC")
    assert op.late_rows().schema == schema
    with pytest.raises(gw.SchemaError, match="no column 'k'"):
        spec(keys=["k"]).start(schema=schema.remove(1))


def test_everything_the_package_names_is_there() -> None:
    for name in gw.__all__:
        assert getattr(gw, name) is not None
    assert set(gw._LATER) <= set(gw.__all__), "what is loaded when first used is public, too"
    fresh = [sys.executable, "-c", "import gpuwin; print(*dir(gpuwin))"]
    listed = set(subprocess.run(fresh, capture_output=True, text=True, check=True).stdout.split())
    assert {*gw.__all__, "spark", "__version__"} <= listed, "a shell completes what is loaded when first used, too"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gw.nothing  # noqa: B018


def test_devices() -> None:
    assert spec().start(device="cpu").device == "cpu"
    with pytest.raises(gw.DeviceError, match="device must be"):
        spec().start(device="tpu")


def test_numbers_of_numpy_are_plain_ones_in_an_evictor() -> None:
    """So that equal specifications have one text, which is in a snapshot."""
    assert repr(gw.KeepNear("c", np.float32(2.0))) == repr(gw.KeepNear("c", 2.0))
    assert repr(gw.KeepNear("c", np.int64(2))) == repr(gw.KeepNear("c", 2))

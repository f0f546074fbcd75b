"""Queries over topics that end and begin again, and a broker that does: every row is there, and none twice."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pipelines_harness.broker import Broker
from pipelines_harness.events import MINUTE, events, from_json, over_json, records, windowed
from pipelines_harness.sides import Pipeline, Running, both
from pipelines_harness.topics import Topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    Recording,
    Run,
    assert_equal,
    assert_placed,
    await_until,
    in_sink,
    new_session,
    row_differences,
)

pytestmark = pytest.mark.pipelines


def test_stopped_in_the_middle(spark: SparkSession, pipeline: Pipeline, topics: Topics, tmp_path: Path) -> None:
    """Stopped at any moment, while there is more to read, and started again, twice."""
    topic = topics.create()
    topics.send(topic, records(events()))

    def side(enabled: bool) -> Running:
        session = new_session(spark, {}, enabled=enabled)
        frame = windowed(from_json(pipeline.source(session, subscribe=topic, maxOffsetsPerTrigger="51")))
        running = Running(session, frame, tmp_path / str(enabled), enabled=enabled)
        for done in (1, 3) if enabled else ():
            await_until(lambda done=done: len(running.batches) >= done, f"{done} batches")  # type: ignore[misc]
            running.stop()
            running.again()
        running.query.processAllAvailable()
        running.stop()
        return running

    plain, device = both(side)
    assert len(plain.batches) >= 6
    assert plain.batches.keys() == device.batches.keys()
    for number, rows in plain.batches.items():
        assert list(row_differences(rows, device.batches[number])) == [], number
    assert len(plain.rows()) > 20


@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=pytest.mark.sweep)])
def test_rolled_back_by_starting_timestamp(mode: str, pipeline: Pipeline, topics: Topics) -> None:
    """Back to plain Spark as docs/moving_state.md has it ("Without giving back"), with a partition that is empty."""
    topic = topics.create(4)
    topics.send(topic, records(events(204), timed=True))
    how = Run(mode)
    before, plain = (pipeline.recorder(over_json(), enabled, how, subscribe=topic) for enabled in (True, False))
    before.once()
    plain.once()
    assert_placed(before.recording, ["gpuwin"])
    topics.send(topic, records(events(204, first=204), timed=True))
    noted = before.recording.batches[-1].watermark
    assert noted is not None
    start = str(int(dt.datetime.fromisoformat(noted).timestamp() * 1000) - 2 * MINUTE)

    def filtered(session: SparkSession, frame: DataFrame) -> DataFrame:
        return over_json()(session, frame).where(F.col("window.end") > F.lit(noted).cast("timestamp"))

    options = {"subscribe": topic, "startingTimestamp": start}
    literal = pipeline.recorder(filtered, False, how, name="literal", **options)
    literal.once()
    assert literal.recording.error is not None, "the empty partition has no record of that time or later"
    options["startingOffsetsByTimestampStrategy"] = "latest"
    after = pipeline.recorder(filtered, False, how, name="back", **options)
    after.once()
    assert after.recording.error is None
    assert_placed(after.recording, ["stateStoreSave"])
    assert 204 < sum(b.input_rows for b in after.recording.batches) < 408, "some rows are read again, and not all"
    plain.once()  # goes on, undisturbed
    wanted, found = in_sink(mode, plain.recording), in_sink(mode, before.recording, after.recording)
    assert wanted
    assert after.recording.all_rows()
    assert not list(row_differences(wanted, found, plain.recording.columns))


@pytest.mark.parametrize("end", [Broker.kill, pytest.param(Broker.stop, marks=pytest.mark.sweep)])
def test_broker_stopped_and_started(
    end: Callable[[Broker], None], pipeline: Pipeline, topics: Topics, broker: Broker
) -> None:
    """A broker that is away for some seconds: both queries wait for it."""
    topic = topics.create()
    options = {"subscribe": topic, "minOffsetsPerTrigger": "102", "maxOffsetsPerTrigger": "1000"}
    how = Run(trigger="processing")
    sides = {enabled: pipeline.recorder(over_json(), enabled, how, **options) for enabled in (False, True)}
    topics.send(topic, records(events(102)))
    both(lambda enabled: sides[enabled].process_all())
    topics.send(topic, records(events(102, first=102)))
    both(lambda enabled: sides[enabled].process_all())
    end(broker)
    time.sleep(2)  # each query asks for new offsets meanwhile
    broker.start()
    topics.send(topic, records(events(102, first=204)))
    both(lambda enabled: sides[enabled].process_all())
    both(lambda enabled: sides[enabled].stop())
    assert_equal(sides[False].recording, sides[True].recording)
    assert [b.input_rows for b in sides[True].recording.batches if b.input_rows] == [102] * 3


@pytest.mark.sweep
def test_broker_away_for_too_long(pipeline: Pipeline, topics: Topics, broker: Broker) -> None:
    """Both queries end with Kafka's error; started again, they go on where they were."""
    topic = topics.create()
    patience = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
    topics.send(topic, records(events()))

    def side(enabled: bool) -> Recording:
        recorder = pipeline.recorder(over_json(), enabled, Run(), subscribe=topic, **patience)
        recorder.once()
        return recorder.recording

    plain, device = both(side)
    assert_equal(plain, device)
    broker.kill()
    away = both(side)
    broker.start()
    for recording in away:
        assert recording.error is not None
        assert "Timeout" in recording.error.message
        assert not recording.batches
    topics.send(topic, records(events(102, first=306)))
    plain, device = both(side)
    assert_equal(plain, device, late=None)

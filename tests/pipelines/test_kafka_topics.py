"""Which topics and partitions a query reads: several, by name, pattern or number; idle, added and cut ones."""

from __future__ import annotations

import json

import pytest
from pipelines_harness.events import events, from_json, over_json, records, windowed
from pipelines_harness.sides import Pipeline, both
from pipelines_harness.topics import Topics
from pyspark.sql import DataFrame, SparkSession
from spark_harness import Recording, Run, assert_equal

pytestmark = pytest.mark.pipelines


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern", "assign"])
def test_several_topics(how: str, pipeline: Pipeline, topics: Topics) -> None:
    """Of two topics with four partitions, of which two have nothing; a third topic is not asked for."""
    first, second = (topics.create(4, name=f"several-{how}") for _ in range(2))
    rows = events()
    topics.send(first, records(rows[::2], (0, 2)))
    topics.send(second, records(rows[1::2], (1, 3)))
    topics.send(topics.create(name="other"), records(rows))
    options = {
        "subscribe": f"{first},{second}",
        "subscribePattern": f"several-{how}-.*",
        "assign": json.dumps({first: [0, 1, 2], second: [1]}),
    }

    def query(_: SparkSession, source: DataFrame) -> DataFrame:
        return windowed(from_json(source, "topic", "partition"), "sliding", "topic", "partition")

    late = None if how == "assign" else True  # it leaves out a quarter of the rows, and may those that are late
    done = pipeline.compare(query, expected={"late": late}, **{how: options[how]})
    read = set(zip(done.column("topic"), done.column("partition"), strict=True))
    assert read == {(first, 0), (first, 2), (second, 1)} | ({(second, 3)} if how != "assign" else set())


def test_partitions_added_while_it_runs(pipeline: Pipeline, topics: Topics) -> None:
    """A batch waits until all rows of it are there, so that both sides have the same batches."""
    topic = topics.create(1)
    options = {"subscribe": topic, "minOffsetsPerTrigger": "153", "maxOffsetsPerTrigger": "1000"}
    how = Run(trigger="processing")
    sides = {enabled: pipeline.recorder(over_json(), enabled, how, **options) for enabled in (False, True)}
    topics.send(topic, records(events(153), (0,)))
    both(lambda enabled: sides[enabled].process_all())
    for total, first in ((3, 153), (4, 306)):
        topics.add_partitions(topic, total)
        topics.send(topic, records(events(153, first=first), range(total)))
        both(lambda enabled: sides[enabled].process_all())
    both(lambda enabled: sides[enabled].stop())
    assert_equal(sides[False].recording, sides[True].recording)
    assert [b.input_rows for b in sides[True].recording.batches if b.input_rows] == [153] * 3


def test_retention_that_removed_rows(pipeline: Pipeline, topics: Topics) -> None:
    """Of a query that stood still, the next rows are gone: it says so, or goes on after them, as it is told."""
    topic, how = topics.create(1), Run(sink="parquet")
    topics.send(topic, records(events(), (0,)))

    def sides(fails_on_loss: bool) -> tuple[Recording, Recording]:
        def side(enabled: bool) -> Recording:
            loss = str(fails_on_loss).lower()
            recorder = pipeline.recorder(over_json(), enabled, how, subscribe=topic, failOnDataLoss=loss)
            recorder.once()
            return recorder.recording

        plain, device = both(side)
        return plain, device

    assert_equal(*sides(True))
    topics.send(topic, records(events(102, first=306), (0,)))
    topics.delete_records(topic, {0: 306 + 30})
    for lost in sides(True):
        assert lost.error is not None
        assert "Some data may have been lost" in lost.error.message
        assert f"offset [306, 408) for topic partition {topic}-0" in lost.error.message
        assert not lost.batches
    plain, device = sides(False)
    assert_equal(plain, device, late=None)
    assert [b.input_rows for b in device.batches if b.input_rows] == [102 - 30]

"""Topics of a broker: made, filled and cut by Kafka's own Java client, in the JVM of a Spark session.

The client is on its class path with Spark's connector, so Python needs none of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from spark_harness import await_until

#: A record that cannot be written in this time is an error; Kafka's own limit is two minutes.
_HASTE: Final = {"delivery.timeout.ms": "20000", "request.timeout.ms": "10000"}
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"


@dataclass(frozen=True)
class Record:
    """A record of a topic. Without a value it is a tombstone; without a partition Kafka takes that of the key.

    Attributes:
        time: milliseconds since 1970, the record's own timestamp; without it, the producer's clock.
    """

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    time: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Topics:
    """What a test does to the topics of one broker. Use as a context manager."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._address = address
        self._numbers = itertools.count()
        settings = {"bootstrap.servers": address}
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._map(settings))
        producer = {**settings, "key.serializer": _BYTES, "value.serializer": _BYTES, "linger.ms": "5", **_HASTE}
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(self._map(producer))

    def create(self, partitions: int = 3, name: str = "", **settings: str) -> str:
        """A new topic; its name begins with the one given, and no other topic has it. Settings are those of Kafka, with
        an underscore for each dot."""
        topic = f"{name or 'topic'}-{next(self._numbers)}"
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
        new.configs(self._map({key.replace("_", "."): value for key, value in settings.items()}))
        self._admin.createTopics(self._list([new])).all().get()
        self._await_leaders(topic, partitions)
        return topic

    def add_partitions(self, topic: str, total: int) -> None:
        """Gives a topic more partitions, `total` in all."""
        increased = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(total)
        self._admin.createPartitions(self._map({topic: increased})).all().get()
        self._await_leaders(topic, total)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Does what retention does: the records of each partition before an offset are gone."""
        cut = self._jvm.java.util.HashMap()
        for partition, offset in before.items():
            cut.put(self._partition(topic, partition), self._before(offset))
        self._admin.deleteRecords(cut).all().get()

    def ends(self, topic: str) -> list[int]:
        """The offset after the last record, of each partition."""
        partitions = len(self._described(topic))
        latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        wanted = self._jvm.java.util.HashMap()
        for partition in range(partitions):
            wanted.put(self._partition(topic, partition), latest)
        found = self._admin.listOffsets(wanted).all().get()
        return [int(found.get(self._partition(topic, p)).offset()) for p in range(partitions)]

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Appends records, in this order in each partition, and waits until the broker has them."""
        header = self._jvm.org.apache.kafka.common.header.internals.RecordHeader
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = []
        for r in records:
            headers = self._list(header(name, value) for name, value in r.headers)
            sent.append(self._producer.send(record(topic, r.partition, r.time, r.key, r.value, headers)))
        self._producer.flush()
        for answer in sent:
            answer.get()  # raises what became of a record that the broker has not

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._producer.close()
        self._admin.close()

    def _described(self, topic: str) -> list[Any]:
        """What Kafka says of each partition of a topic."""
        return list(self._admin.describeTopics(self._list([topic])).allTopicNames().get().get(topic).partitions())

    def _await_leaders(self, topic: str, partitions: int) -> None:
        """Waits until every partition has a leader that takes records, which is so a little after Kafka has said yes.

        Of the records that a producer sends before that, the first may be refused and later ones taken. Kafka then
        refuses the first for good, as out of order, and the producer tries for two minutes (seen with Kafka 4.4.0).
        """

        def have_leaders() -> bool:
            try:
                return sum(p.leader() is not None for p in self._described(topic)) == partitions
            except Py4JJavaError as e:
                if "UnknownTopicOrPartition" not in str(e):
                    raise
                return False

        await_until(have_leaders, f"a leader of each of the {partitions} partitions of {topic}")
        self.ends(topic)  # asks the leaders themselves, again and again until they know of it

    def _before(self, offset: int) -> Any:
        """RecordsToDelete.beforeOffset, a static method beside another one of its name, which py4j does not tell."""
        java = self._jvm.java.lang
        loader = java.Thread.currentThread().getContextClassLoader()
        types, values = self._gateway.new_array(java.Class, 1), self._gateway.new_array(java.Object, 1)
        types[0], values[0] = java.Long.TYPE, offset
        cut = loader.loadClass("org.apache.kafka.clients.admin.RecordsToDelete")
        return cut.getMethod("beforeOffset", types).invoke(None, values)

    def _partition(self, topic: str, number: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, number)

    def _map(self, values: Mapping[str, Any]) -> Any:
        made = self._jvm.java.util.HashMap()
        for key, value in values.items():
            made.put(key, value)
        return made

    def _list(self, values: Iterable[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

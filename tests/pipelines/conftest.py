"""One Kafka broker, one S3 server, and one Spark application that reaches both, for all tests of this folder.

They are those of a package, not of a whole run, since Spark's class path is that of PySpark's JVM: tests of other
folders that come after these get a JVM of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines_harness.broker import Broker
from pipelines_harness.maven import Module, Unreachable, broker_jars, hadoop_cloud_jar, s3a_jars, spark_module
from pipelines_harness.object_store import ObjectStore
from pipelines_harness.s3_proxy import S3Proxy
from pipelines_harness.s3_server import Bucket, S3Server, moto_is_there
from pipelines_harness.sides import Pipeline
from pipelines_harness.topics import Topics
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_harness import KNOWN_WARNINGS, end_jvm, start_session


def pytest_configure(config: pytest.Config) -> None:
    for message in KNOWN_WARNINGS:
        config.addinivalue_line("filterwarnings", message)


@pytest.fixture(scope="package")
def modules() -> list[Module]:
    """Spark's modules for Kafka and Avro."""
    try:
        return [spark_module("spark-sql-kafka-0-10"), spark_module("spark-avro")]
    except Unreachable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that runs. One that cannot be had is a skip; one that does not start is a failure."""
    try:
        jars = broker_jars()
    except Unreachable as e:
        pytest.skip(str(e))
    with Broker(jars, tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="package")
def for_s3a() -> tuple[Path, ...] | str:
    """The jars by which Spark reaches S3, or why they are not to be had."""
    try:
        return (*s3a_jars(), hadoop_cloud_jar())
    except Unreachable as e:
        return str(e)


@pytest.fixture(scope="package")
def spark(
    modules: list[Module], for_s3a: tuple[Path, ...] | str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """An application with gpuwin and Spark's connectors, and s3a where it is to be had."""
    if SparkContext._active_spark_context is not None:
        pytest.fail("another Spark application runs in this process: run tests/pipelines before tests/spark")
    end_jvm()
    jars = [jar for module in modules for jar in module.jars] + ([] if isinstance(for_s3a, str) else [*for_s3a])
    conf = {"spark.jars": ",".join(map(str, jars))}
    session = start_session(tmp_path_factory.mktemp("spark"), conf=conf)
    yield session
    end_jvm(session)


@pytest.fixture(scope="package")
def topics(spark: SparkSession, broker: Broker) -> Iterator[Topics]:
    with Topics(spark, broker.address) as client:
        yield client


@pytest.fixture
def pipeline(spark: SparkSession, broker: Broker, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, broker.address, tmp_path)


@pytest.fixture(scope="package")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that runs. Where moto is not installed it is a skip; one that does not start is a failure."""
    if not moto_is_there():
        pytest.skip(
            "moto is not installed, which is the S3 server of these tests: pip install -e '.[object-store-test]'"
        )
    with S3Server(tmp_path_factory.mktemp("s3")) as started:
        yield started


_numbers = itertools.count()


@pytest.fixture
def store(s3_server: S3Server, for_s3a: tuple[Path, ...] | str) -> Iterator[ObjectStore]:
    """A bucket of the test's own, and a proxy before it."""
    if isinstance(for_s3a, str):
        pytest.skip(for_s3a)
    with S3Proxy(s3_server.address) as proxy:
        yield ObjectStore(Bucket(s3_server, f"test-{next(_numbers)}"), proxy)

"""One Kafka broker, and one Spark application with Spark's connector to it, for all tests of this folder.

They are those of a package, not of a whole run, since Spark's class path is that of PySpark's JVM: tests of other
folders that come after these get a JVM of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines_harness.broker import Broker
from pipelines_harness.maven import Module, Unreachable, broker_jars, spark_module
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
def spark(modules: list[Module], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """An application with gpuwin and Spark's connectors."""
    if SparkContext._active_spark_context is not None:
        pytest.fail("another Spark application runs in this process: run tests/pipelines before tests/spark")
    end_jvm()
    jars = ",".join(str(jar) for module in modules for jar in module.jars)
    session = start_session(tmp_path_factory.mktemp("spark"), conf={"spark.jars": jars})
    yield session
    end_jvm(session)


@pytest.fixture(scope="package")
def topics(spark: SparkSession, broker: Broker) -> Iterator[Topics]:
    with Topics(spark, broker.address) as client:
        yield client


@pytest.fixture
def pipeline(spark: SparkSession, broker: Broker, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, broker.address, tmp_path)

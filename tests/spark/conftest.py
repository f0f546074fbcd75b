"""One Spark session, with the plugin loaded, for all tests of this folder that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_harness import KNOWN_WARNINGS, Both, Query, Recording, Run, Stream, assert_equal, run, start_session

_APPEND = Run()


def pytest_configure(config: pytest.Config) -> None:
    for message in KNOWN_WARNINGS:
        config.addinivalue_line("filterwarnings", message)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep-seed", type=int, default=1, help="seed of the randomised sweep of tests/spark")
    parser.addoption("--sweep-cases", type=int, default=200, help="queries in the randomised sweep of tests/spark")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(metafunc.config.getoption("--sweep-cases")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> Both:
    """Runs a query on Spark and on gpuwin, at the same time and over the same files, and fails where they differ.

    Keyword arguments other than `schema`, `check` and `folder` are those of `assert_equal`. A call with the folder of
    an earlier one goes on from there.
    """

    def both_sides(
        query: Query, stream: Stream, how: Run = _APPEND, *, folder: str = "", check: bool = True, **expected: Any
    ) -> tuple[Recording, Recording]:
        __tracebackhide__ = True
        schema = {"schema": expected.pop("schema")} if "schema" in expected else {}

        def side(enabled: bool) -> Recording:
            at = tmp_path / folder / ("device" if enabled else "plain")
            return run(spark, query, stream, how, at, enabled=enabled, **schema)

        with ThreadPoolExecutor(2) as pool:
            plain, device = pool.map(side, (False, True))
        if check:
            assert_equal(plain, device, **expected)
        return plain, device

    return both_sides

"""Comet and gpuwin in one application: the same rows, each does its part, and neither hides the other's reasons."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from pipelines_harness.comet import CONF, EXTENSIONS, comet_jar
from pipelines_harness.maven import Unreachable
from pyspark.sql import DataFrame, SparkSession
from spark_harness import (
    Case,
    Recording,
    SessionCase,
    StreamSpec,
    assert_equal,
    end_jvm,
    isolated,
    row_differences,
    rows_of,
    run,
    session_of,
    start_session,
    static,
    write,
)

pytestmark = pytest.mark.pipelines

#: One of each kind of window. Comet changes the plans of their batches without data.
CASES: Final = {
    "tumbling": Case("tumbling", "update", "string", "integers", partitions="2", trigger="processing", codegen="on"),
    "sliding": Case("sliding", "append", "long", "floats", partitions="2", trigger="processing", codegen="on"),
    "session": SessionCase(window="fixed", key="string", partitions="2", trigger="processing", codegen="on"),
}
OUR_EXTENSIONS: Final = "org.apache.spark.sql.gpuwin.GpuWindowExtensions"


@pytest.fixture(scope="module")
def jar() -> Path:
    try:
        return comet_jar()
    except Unreachable as e:
        pytest.skip(str(e))


def beside_comet(folder: Path, jar: Path, conf: Mapping[str, str]) -> SparkSession:
    """An application that has had Comet, and now has gpuwin as well."""
    return start_session(folder, conf={**CONF, "spark.driver.extraClassPath": str(jar), "spark.jars": str(jar), **conf})


def _streamed(folder: Path, jar: Path, case: Case, conf: Mapping[str, str]) -> tuple[Recording, Recording]:
    """A query on plain Spark, and on gpuwin beside Comet."""
    spark = beside_comet(folder, jar, conf)
    stream = write(case.stream, folder / "stream")

    def side(ours: bool) -> Recording:
        how = replace(case.how, conf={**case.how.conf, "spark.comet.enabled": str(ours).lower()})
        return run(spark, case.query, stream, how, folder / str(ours), enabled=ours)

    both = side(False), side(True)
    end_jvm(spark)
    return both


@pytest.mark.parametrize("kind", CASES)
def test_streams(kind: str, jar: Path, tmp_path: Path) -> None:
    plain, ours = isolated(_streamed, tmp_path, jar, CASES[kind], {})
    assert_equal(plain, ours, spark_operators=CASES[kind].spark_operators)


def test_a_user_who_names_comet_first(jar: Path, tmp_path: Path) -> None:
    """Then Comet has changed the plan of a batch without data before gpuwin sees it. It fails, rather than to begin
    again from nothing.
    """
    first = {"spark.sql.extensions": f"{EXTENSIONS},{OUR_EXTENSIONS}"}
    _, ours = isolated(_streamed, tmp_path, jar, CASES["session"], first)
    assert ours.error is not None
    assert "A batch of a query whose state is gpuwin's cannot run on gpuwin" in ours.error.message
    assert "there is no partial aggregate below the shuffle" in ours.error.message
    assert {batch.operators for batch in ours.batches} == {("gpuwin",)}


def _in_batch(folder: Path, jar: Path) -> tuple[list[str], str]:
    """How the rows of a batch query differ, and its plan with what both say of it."""
    case = Case("sliding", key="long", aggregate="counts", watermark="none", partitions="2", codegen="on")
    spark = beside_comet(folder, jar, {})
    write(StreamSpec(), folder / "rows")

    def side(ours: bool) -> DataFrame:
        on = str(ours).lower()
        session = session_of(spark, {**case.conf, "spark.comet.enabled": on, "spark.gpuwin.enabled": on})
        return case.query(session, static(session, folder / "rows"))

    plain, both = side(False), side(True)
    expected, text = rows_of(plain), io.StringIO()
    assert expected
    differences = list(row_differences(expected, rows_of(both)))
    with contextlib.redirect_stdout(text):
        both.explain()
    end_jvm(spark)
    return differences, text.getvalue()


def test_a_batch_query(jar: Path, tmp_path: Path) -> None:
    differences, text = isolated(_in_batch, tmp_path, jar)
    assert differences == []
    plan, gpuwin, comet = re.split(r"== Extended Information \(.*\) ==", text)
    for node in ("CometNativeScan", "CometHashAggregate", "CometExchange", "PaneWindows"):
        assert node in plan
    assert "1 of 1 aggregations by window in batch queries by panes or proto-sessions" in gpuwin
    assert "PaneWindows [COMET: PaneWindows is not supported]" in comet

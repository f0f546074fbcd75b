"""Every script in examples/ runs as a user runs it, and says what it should."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
#: Checked in tests/spark and tests/pipelines, where there is a session.
ON_SPARK = {"prometheus_listener", "kafka_to_delta"}


def result_of(script: str) -> Any:
    return runpy.run_path(str(FOLDER / f"{script}.py"))["main"]()


def test_every_example_is_checked_below() -> None:
    checked = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert set(SCRIPTS) <= checked | ON_SPARK


@pytest.mark.parametrize("script", ["word_count"])
def test_a_script_runs_by_itself(script: str) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / f"{script}.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_clickstream_sessions() -> None:
    visits = [
        (v["visitor"], v["clicks"], v["path"], v["ordered"], v["spent"]) for v in result_of("clickstream_sessions")
    ]
    assert sorted(visits, key=str) == sorted(
        [
            ("ada", 4, ["/", "/cups", "/tea", "/order"], True, 24.5),
            ("bob", 1, ["/"], False, None),
            ("bob", 1, ["/tea"], False, None),
            ("ada", 1, ["/"], False, None),
        ],
        key=str,
    )


def test_views_last_seven_days() -> None:
    changes = sorted((u, f"{until:%d %H:%M}", n) for u, until, n in result_of("views_last_seven_days"))
    assert changes == [
        ("ada", "01 09:01", 2),
        ("ada", "03 09:01", 3),
        ("ada", "08 09:01", 1),
        ("ada", "10 09:01", 0),
        ("bob", "01 09:04", 1),
        ("bob", "08 09:04", 0),
    ]


def test_sensors_late_rows() -> None:
    firings, too_late = result_of("sensors_late_rows")
    assert firings == [
        ("early", "00:00", 3, 21.0),
        ("on_time", "00:00", 3, 21.0),
        ("late", "00:00", 4, 22.25),
        ("on_time", "00:01", 1, 30.0),
    ]
    assert too_late == [99.0]


def test_word_count() -> None:
    totals = result_of("word_count")
    assert totals["the"] == 3
    assert sum(totals.values()) == 11


def test_split_and_rejoin() -> None:
    rows = [(r["host"], r["served"], r["median_ms"], r["failed"], r["statuses"]) for r in result_of("split_and_rejoin")]
    assert rows == [
        ("a", 2, 13.0, 1, [500]),
        ("a", 1, 9.0, None, None),
        ("b", 1, 7.0, 1, [503]),
        ("b", None, None, 1, [503]),
    ]


def test_dataframes() -> None:
    done = result_of("dataframes")
    tables = [table.to_pylist() for table in done["results"].values()]
    assert [(r["city"], r["rides"], r["fare"]) for r in sorted(tables[0], key=str)] == [
        ("Oslo", 2, 15.0),
        ("Oslo", 1, 30.0),
        ("Rome", 1, 9.0),
    ]
    assert all(table == tables[0] for table in tables)
    assert len(done["backs"]["polars"]) == len(done["backs"]["pandas"]) == len(done["backs"]["duckdb"]) == 3

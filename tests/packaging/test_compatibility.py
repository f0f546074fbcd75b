"""The table of Spark versions: each file of the plugin's tests is of a feature, and the pages hold what was run."""

from __future__ import annotations

from pathlib import Path

import pytest

SPARK = Path(__file__).parents[1] / "spark"


@pytest.fixture(autouse=True)
def beside_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPARK))


def test_every_file_of_the_plugin_s_tests_counts_for_one_feature() -> None:
    from compatibility import FEATURES

    files = sorted(p.stem.removeprefix("test_spark_") for p in SPARK.glob("test_spark_*.py"))
    assert sorted(name for names in FEATURES.values() for name in names) == files


def test_the_pages_hold_what_was_run() -> None:
    from compatibility import BEGIN, PAGES, read

    from gpuwin.planning.aggregate_pages import made

    assert read(), "runs are recorded"
    for path, table in PAGES.items():
        assert path.read_text() == made(path.read_text(), table(read()), BEGIN), path.name


REPORT = """<testsuites><testsuite>
<testcase classname="tests.spark.test_spark_batch" name="test_a[x]"/>
<testcase classname="tests.spark.test_spark_batch" name="test_b"><failure message="no"/></testcase>
<testcase classname="tests.spark.test_spark_repartition" name="test_c">
  <skipped message="Spark 4.0 cannot repartition"/></testcase>
<testcase classname="tests.service.test_protocol" name="test_d"/>
</testsuite></testsuites>"""


def test_a_run_is_counted_by_file_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    from compatibility import Run, add, counted, page_table, short_table

    report = tmp_path / "run.xml"
    report.write_text(REPORT)
    files, skipped = counted(report)
    assert files == {"batch": (1, 1, 0), "repartition": (0, 0, 1)}
    assert skipped == {"repartition": ["Spark 4.0 cannot repartition"]}
    runs = [Run("4.0.5", "3.11", "17", {"batch": (7, 0, 0), "cases": (2, 0, 0)})]
    add(runs, Run("4.0.5", "3.11", "17", files, skipped))
    add(runs, Run("4.1.4", "3.11", "17", {"cases": (3, 0, 0)}))
    assert runs[0].files == {"batch": (1, 1, 0), "cases": (2, 0, 0), "repartition": (0, 0, 1)}
    table = page_table(runs)
    assert "| batch queries | 1 passed, **1 failed** | not run |" in table
    assert "| known answers | 2 passed | 3 passed |" in table
    assert "not in this Spark | not run |" in table
    assert table.endswith("* Spark 4.0 cannot repartition\n")
    assert "| 4.0.5 | 3.11 | 17 | 3 passed, **1 failed** |" in short_table(runs)

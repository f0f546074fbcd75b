"""A standalone cluster that loses workers and gains one, tasks of which Spark starts a second copy, and one query that
is started twice: `pytest -m sweep tests/chaos/test_standalone.py`.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from spark_harness import await_until, spark_home

from .campaign import Campaign, assert_right
from .standalone import Standalone, submitted
from .strikes import Plan

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1200)]

PROVIDERS = ["hdfs", "rocksdb_changelog"]
PATIENCE = 240.0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_workers_are_lost_and_one_is_added(provider: str, tmp_path: Path) -> None:
    """One worker dies in the middle of a batch, a third comes, and another dies: every partition moves."""
    home = spark_home(tmp_path)
    with Standalone(tmp_path, home) as cluster:
        cluster.add_worker()
        cluster.add_worker()
        plan = Plan(31, provider, "sliding", 8, ())
        launch = submitted(home, cluster.url)
        conf = {"spark.sql.shuffle.partitions": "4"}
        query = Campaign(plan, tmp_path / "query", spark_home=home, master=cluster.url, conf=conf, launch=launch)
        first, second = (query.steps / f"mid_request.{batch}" for batch in (2, 5))
        for step in (first, second):
            step.with_name(f"{step.name}.armed").touch()
        lost: list[int] = []

        def lose(step: Path) -> None:
            hit = step.with_name(f"{step.name}.hit")
            await_until(hit.exists, str(hit), within=PATIENCE)
            lost.append(cluster.worker_of(int(hit.read_text())))
            cluster.kill_worker(lost[-1])
            hit.unlink()

        def strike() -> None:
            lose(first)
            added = cluster.add_worker()
            await_until(lambda: bool(cluster.executors(added)), "an executor on the new worker", within=PATIENCE)
            lose(second)
            if lost[-1] == added:  # then the old one does the rest
                return
            await_until(lambda: cluster.tasks_ran_on(added), "tasks on the new worker", within=PATIENCE)

        thread = threading.Thread(target=strike)
        thread.start()
        result = query.run()
        thread.join()
        assert len(set(lost)) == 2
        assert_right(result)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_speculative_copies(provider: str, tmp_path: Path) -> None:
    """At each step a task is held for good, so that Spark runs a copy on the other worker and kills the first."""
    home = spark_home(tmp_path)
    with Standalone(tmp_path, home) as cluster:
        cluster.add_worker()
        cluster.add_worker()
        conf = {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation.task.duration.threshold": "1s",
        }
        plan = Plan(32, provider, "session" if provider == "hdfs" else "sliding", 7, ())
        query = Campaign(plan, tmp_path / "query", spark_home=home, master=cluster.url, conf=conf)
        steps = ("before_request", "mid_request", "after_reply", "between_segment_and_commit", "after_commit")
        for batch, step in enumerate(steps, 1):
            (query.steps / f"{step}.{batch}.armed").touch()
        result = query.run()
        # Nobody let the held tasks go, for two minutes each; the query ended sooner, by the copies.
        hits = sorted(p.name for p in query.steps.glob("*.hit"))
        assert hits == sorted(f"{step}.{batch}.hit" for batch, step in enumerate(steps, 1))
        assert_right(result)
        assert result.seconds < 2 * 120


def test_one_query_started_twice(tmp_path: Path) -> None:
    """Two applications on one checkpoint: Spark lets one of them win each batch, and the sink is right."""
    home = spark_home(tmp_path)
    query = Campaign(Plan(33, "hdfs", "sliding", 10, ()), tmp_path / "query", spark_home=home, master="local[1]")
    rival = Campaign(query.plan, tmp_path / "rival", spark_home=home, master="local[1]")
    rival.folder = query.folder  # the same source, checkpoint and sink

    def compete() -> None:
        rival._start()
        assert rival.driver is not None
        rival.driver.wait()

    rival.drivers = 100  # logs of its own
    thread = threading.Thread(target=compete)
    thread.start()
    result = query.run()
    thread.join()
    said = "\n".join(log.read_text(errors="replace") for log in query.folder.glob("driver-*.log"))
    # Spark's words, by the log of offsets, that of the sink or the state's schema, whichever both came to at once.
    words = "CONCURRENT_STREAM_LOG_UPDATE|another writer already committed this batch|FAILED_RENAME_PATH"
    assert re.search(words, said), said[-3000:]
    assert result.rows > 0
    assert (result.lost, result.twice_or_wrong) == (0, 0), json.dumps(result.report(), indent=1)

"""Kills with `pytest -m sweep tests/chaos`, 12 and 200 of them; and in every run, that the harness would find what is
wrong. (Kills of the service in mid batch are in every run: tests/spark/test_spark_failures.py.)
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines_harness.maven import Unreachable
from spark_harness import spark_home

import gpuwin as gw

from . import faulty_service, stream
from .__main__ import _done_before, _write
from .campaign import Campaign, Result, assert_right
from .queries import APPENDING, QUERIES, REOPENED, SPARK_S_OWN, TRIGGERED
from .sinks import SINKS
from .sources import SOURCES, as_json
from .strikes import (
    BELOW_THE_SHUFFLE,
    BETWEEN_BATCHES,
    BETWEEN_SINK_AND_COMMIT,
    PIPELINES,
    STEPS,
    Pipeline,
    Plan,
    Strike,
    plans,
)

FEW = (
    Strike(0, "service", "mid_request"),
    Strike(1, "executor", "between_segment_and_commit"),
    Strike(2, "driver", "after_commit"),
)
#: The formats of tables, each of which is built for some lines of Spark.
TABLES = ("delta", "iceberg")
BELOW = (
    Strike(0, "executor", "before_rows"),
    Strike(1, "service", "mid_rows"),
    Strike(2, "driver", "after_cells"),
    Strike(3, "service", "after_cells"),
    Strike(4, "executor", "mid_rows"),
)


@pytest.mark.sweep
@pytest.mark.parametrize("query", [query for query in SPARK_S_OWN if query in APPENDING])
def test_kills_below_the_shuffle(query: str, tmp_path: Path) -> None:
    done = Campaign(Plan(4, "hdfs", query, 5, BELOW), tmp_path, spark_home=spark_home(tmp_path)).run()
    assert_right(done)
    assert [(k["target"], k["step"]) for k in done.kills] == [(s.target, s.step) for s in BELOW]


@pytest.mark.sweep
@pytest.mark.parametrize("query", APPENDING)
def test_a_few_kills(query: str, tmp_path: Path) -> None:
    """One of each process, in one query."""
    done = Campaign(Plan(3, "rocksdb_changelog", query, 3, FEW), tmp_path, spark_home=spark_home(tmp_path)).run()
    assert_right(done)
    assert [k["target"] for k in done.kills] == ["service", "executor", "driver"]


@pytest.mark.sweep
@pytest.mark.parametrize("query", APPENDING)
def test_a_fault_is_found(query: str, tmp_path: Path) -> None:
    """A service that loses a segment when it reads the log, which it has to once its executor or itself was killed."""
    home, conf = spark_home(tmp_path), {"spark.gpuwin.python": str(faulty_service.interpreter(tmp_path))}
    done = Campaign(Plan(3, "hdfs", query, 4, FEW), tmp_path / "query", spark_home=home, conf=conf).run()
    assert not done.failures
    assert done.twice_or_wrong if query == "deduplicated" else done.lost  # a key that is forgotten comes out again
    assert not done.right


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_many_kills(provider: str, tmp_path: Path) -> None:
    home = spark_home(tmp_path)
    for n, plan in enumerate(plans(7, 100, provider, 12)):
        done = Campaign(plan, tmp_path / str(n), spark_home=home).run()
        assert_right(done)


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_every_step_of_every_process_comes_before_any_comes_again(pipeline: Pipeline) -> None:
    made = plans(7, 100, "hdfs", 12, pipeline)
    first = made[: len(pipeline.queries)]
    assert {(plan.query, plan.sink) for plan in first} == set(pipeline.queries)
    assert {plan.source for plan in made} == {pipeline.source}
    assert sum(len(plan.strikes) for plan in made) == 100
    for own, steps in ((True, {*BELOW_THE_SHUFFLE, *STEPS}), (False, {*STEPS})):
        pairs = [(s.target, s.step) for plan in made if (plan.query in SPARK_S_OWN) == own for s in plan.strikes]
        all_pairs = len(pipeline.targets) * len(steps)
        assert {step for _, step in pairs} == steps
        assert len(set(pairs[:all_pairs])) == min(all_pairs, len(pairs))
    assert all(len({s.batch for s in plan.strikes}) == len(plan.strikes) for plan in made)
    assert made == plans(7, 100, "hdfs", 12, pipeline)
    assert made != plans(8, 100, "hdfs", 12, pipeline)


@pytest.mark.parametrize(
    ("strike", "left"),
    [
        (Strike(1, "service", BETWEEN_BATCHES), "mid_request.2.hit"),
        (Strike(1, "executor", BETWEEN_BATCHES), "mid_request.2.armed"),  # that executor was held there, and is gone
        (Strike(1, "driver", BETWEEN_BATCHES), "mid_request.2.armed"),
        (Strike(2, "executor", "mid_request"), None),
    ],
)
def test_a_task_that_is_ahead_waits_for_its_own_strike(strike: Strike, left: str | None, tmp_path: Path) -> None:
    campaign = Campaign(Plan(3, "hdfs", "sliding", 3, FEW), tmp_path, spark_home=tmp_path)
    for armed in campaign.steps.iterdir():
        armed.unlink()
    (campaign.steps / "mid_request.2.hit").write_text("17")
    campaign._release(strike, 17 if strike.target == "executor" else 18)
    assert [file.name for file in campaign.steps.iterdir()] == ([] if left is None else [left])


def test_the_batches_of_the_oracle_are_those_of_the_log(tmp_path: Path) -> None:
    data = stream.rows(1, 4)
    stream.write(data, tmp_path / "source")
    files = sorted((tmp_path / "source").iterdir())
    assert [pq.ParquetFile(file).metadata.num_rows for file in files] == [60, 60, 60, 60, 1, 1]
    log = tmp_path / "offsets"
    log.mkdir()
    for batch, last in enumerate([0, 2, 3]):  # the second batch has two files
        (log / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{last}}}')
    begun = stream.batches(data, tmp_path, SOURCES["files"].rows_before)
    assert begun == [data.files[0], data.files[1] + data.files[2], data.files[3]]
    every = [row for file in data.files for row in file]
    for batch, end in enumerate([60, 60, 170]):  # the second batch has no data
        (log / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"topic-0":{{"0":{end}}}}}')
    begun = stream.batches(data, tmp_path, SOURCES["kafka"].rows_before)
    assert begun == [tuple(every[:60]), (), tuple(every[60:170])]


def test_a_record_says_what_its_row_says() -> None:
    row = stream.rows(1, 1).files[0][0]
    record = json.loads(as_json(row))
    assert dt.datetime.fromisoformat(record.pop("ts")).timestamp() == row[1]
    assert record == {"key": row[0], "value": row[2]}


def test_what_a_report_has_right_is_not_done_again(tmp_path: Path) -> None:
    made = plans(7, 30, "hdfs", 12)
    results = [Result(plan, kills=[{"target": "driver", "step": "mid_request"}], rows=5) for plan in made]
    results[0].operators = results[1].operators = ["gpuwin"]
    results[1].lost = 1
    report = tmp_path / "report.json"
    _write(report, 7, 30, results)
    assert _done_before(report, made) == results[:1]
    assert _done_before(report, plans(8, 30, "hdfs", 12)) == []


def test_the_steps_are_those_of_the_plugin() -> None:
    source = (Path(__file__).parents[2] / "spark_plugin" / "scala" / "plugin" / "FailPoint.scala").read_text()
    for step in (*BELOW_THE_SHUFFLE, *STEPS):
        assert (f'"{step}"' in source) == (step != BETWEEN_BATCHES)


@pytest.mark.long
@pytest.mark.parametrize(("query", "spec"), [("triggered", TRIGGERED), ("reopened", REOPENED)])
def test_the_oracle_of_a_specification_says_what_the_engine_says(query: str, spec: gw.WindowedAggregation) -> None:
    """And the rows are such that all of it happens: late rows that fire again, and late rows that are dropped."""
    data = stream.rows(4, 10)
    expected = QUERIES[query].expected(data.files)
    operator = spec.start(device="cpu")
    tables = [operator.process(stream.table(file)) for file in data.files]
    assert stream.counted(pa.concat_tables(tables)) == expected
    assert operator.metrics.rows_late > 0
    if query == "triggered":
        assert {row[-2:] for row in expected} == {
            (pane, retracts) for pane in ("early", "on_time", "late") for retracts in (False, True)
        }
    else:
        sessions = sorted(row[:3] for row in expected if row[0])  # type: ignore[type-var]
        # One that fired again, merged with late rows, overlaps what it was.
        assert any(a[0] == b[0] and b[1] < a[2] for a, b in itertools.pairwise(sessions))  # type: ignore[operator]


def write_results(path: Path, rows: list[stream.OutputRow]) -> None:
    """Results of a query as Spark writes them."""
    key, start, end, *numbers = zip(*rows, strict=True)
    times = [pa.array([t * 1_000_000 for t in c], pa.timestamp("us", "UTC")) for c in (start, end)]  # type: ignore[operator]
    columns = [pa.array(key, pa.string()), *times, *(pa.array(c, pa.int64()) for c in numbers)]
    pq.write_table(pa.table(columns, names=["key", "start", "end", "n", "total", "low", "high"]), path)


def test_rows_that_are_lost_or_twice_are_found(tmp_path: Path) -> None:
    """A sink in the form of Spark's: two batches in a compacted log, one after it, one file that no log names."""
    expected = QUERIES["sliding"].expected(stream.rows(1, 5).files)
    rows = sorted(expected, key=repr)
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def file(name: str, part: list[stream.OutputRow]) -> str:
        write_results(tmp_path / name, part)
        return json.dumps({"path": (tmp_path / name).as_uri(), "action": "add"})

    committed = SINKS["parquet"].committed
    first, second = file("a b.parquet", rows[:20]), file("b.parquet", rows[20:40])
    (log / "1.compact").write_text("\n".join(["v1", first, second]))
    (log / "0").write_text("\n".join(["v1", first]))
    (log / "2").write_text("\n".join(["v1", file("c.parquet", rows[40:])]))
    file("orphan.parquet", rows[:5])
    assert committed(tmp_path) == expected
    (log / "3").write_text("\n".join(["v1", file("d.parquet", rows[:3])]))
    assert (committed(tmp_path) - expected).total() == 3
    (log / "2").unlink()
    assert (expected - committed(tmp_path)).total() == len(rows) - 40


def test_rows_of_a_delta_table_that_are_lost_or_twice_are_found(tmp_path: Path) -> None:
    """A table of two commits, the second of which replaces a file of the first, and a file that no commit names."""
    expected = QUERIES["sliding"].expected(stream.rows(1, 5).files)
    rows = sorted(expected, key=repr)
    log = tmp_path / "_delta_log"
    log.mkdir()
    committed = SINKS["delta"].committed
    assert not committed(tmp_path)

    def commit(number: int, *actions: tuple[str, str]) -> None:
        lines = [json.dumps({kind: {"path": file.replace(" ", "%20")}}) for kind, file in actions]
        (log / f"{number:020d}.json").write_text("\n".join(['{"commitInfo": {}}', *lines]))

    for name, part in {"a b": rows[:20], "old": rows[10:30], "new": rows[20:], "none": rows[:5]}.items():
        write_results(tmp_path / f"{name}.parquet", part)
    commit(0, ("add", "a b.parquet"), ("add", "old.parquet"))
    (log / f"{1:020d}.crc").write_text("{}")
    assert (committed(tmp_path) - expected).total() == 10
    commit(1, ("remove", "old.parquet"), ("add", "new.parquet"))
    assert committed(tmp_path) == expected
    commit(2, ("remove", "a b.parquet"))
    assert (expected - committed(tmp_path)).total() == 20


def test_a_table_of_update_mode_has_the_newest_row_of_each_window() -> None:
    """And all of its rows were there before in append mode, so every window of the stream has closed."""
    batches = stream.rows(4, 10).files
    emitted = QUERIES["updated"].emitted(batches)
    table = SINKS["delta merged"].table(emitted)
    assert table.total() == len({row[:3] for row in emitted}) < len(emitted)
    assert QUERIES["sliding"].expected(batches) < table
    assert {row[0] for row in table - QUERIES["sliding"].expected(batches)} == {"end"}


#: What dies between Kafka and a table.
KAFKA_TO_TABLE = (
    Strike(0, "broker", "mid_rows"),
    Strike(1, "service", "after_reply"),
    Strike(2, "executor", "between_segment_and_commit"),
    Strike(3, "driver", "after_commit"),
)


@pytest.mark.sweep
@pytest.mark.pipelines
@pytest.mark.parametrize("sink", [f"{table}{way}" for table in TABLES for way in ("", " by batch", " merged")])
def test_a_few_kills_between_kafka_and_a_table(sink: str, tmp_path: Path) -> None:
    """One of each process, the broker among them, and the table has each row once."""
    query = "updated" if sink.endswith("merged") else "sliding"
    plan = Plan(5, "rocksdb_changelog", query, 4, KAFKA_TO_TABLE, "kafka", sink)
    done = of_pipeline(plan, tmp_path).run()
    assert_right(done)
    assert [k["target"] for k in done.kills] == [s.target for s in KAFKA_TO_TABLE]


#: Windows close in batches 6 and 8, so that there are rows that may come twice.
FORGOTTEN = tuple(Strike(batch, "driver", BETWEEN_SINK_AND_COMMIT) for batch in (1, 6, 8))


@pytest.mark.sweep
@pytest.mark.pipelines
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "sink", ["delta", *(f"{table}{way}" for table in TABLES for way in (" by batch", " merged", " forgetful"))]
)
def test_a_table_has_a_batch_that_spark_knows_nothing_of(sink: str, tmp_path: Path) -> None:
    """The driver dies right after the table has the batch, three times, and the next one does the batch again.

    Iceberg's own sink leaves no time for a kill there: tests/pipelines/test_tables_as_sources.py has it fail instead.
    """
    query = "updated" if sink.endswith("merged") else "sliding"
    done = of_pipeline(Plan(6, "hdfs", query, 10, FORGOTTEN, "files", sink), tmp_path).run()
    assert [k["committed"] for k in done.kills] == [False] * len(FORGOTTEN)
    if sink.endswith("forgetful"):
        assert done.twice_or_wrong
        assert not done.lost
        assert not done.right
    else:
        assert_right(done)


@pytest.mark.sweep
@pytest.mark.pipelines
@pytest.mark.timeout(10800)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_many_kills_between_kafka_and_a_table(provider: str, table: str, tmp_path: Path) -> None:
    for n, plan in enumerate(plans(7, 50, provider, 12, PIPELINES[f"kafka-{table}"])):
        done = of_pipeline(plan, tmp_path / str(n)).run()
        assert_right(done)


def of_pipeline(plan: Plan, folder: Path) -> Campaign:
    """A campaign of what Maven brings; skipped where it does not."""
    try:
        return Campaign(plan, folder, spark_home=spark_home(folder))
    except Unreachable as e:
        pytest.skip(str(e))

"""`gpuwin qualify` on plans, progress reports and an event log that Spark wrote, and on what it cannot read."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from gpuwin.cli import main
from gpuwin.planning.aggregates import ON_SPARK
from gpuwin_spark.qualify import (
    Batch,
    OperatorReport,
    PlannedOperator,
    QualifyError,
    estimate,
    qualify,
    read_plan,
    read_progress,
)
from gpuwin_spark.service.operator_spec import MERGES

#: Captured from four micro-batches of 5,000 rows and one without rows.
CAPTURED = Path(__file__).parent / "qualify"
#: Batches of plain Spark in `benchmarks/spark_queries.py --only sliding`, and the ratio of that run.
BENCHMARK = Path(__file__).parent / "sliding_benchmark.json"
MINUTE = 60_000_000


def captured(*names: str) -> list[str]:
    return [str(CAPTURED / name) for name in names]


@pytest.mark.parametrize(
    ("plan", "node", "verdict", "overlap", "words"),
    [
        ("sliding_plain", "StateStoreSave", "can be offloaded", 10, "count, sum"),
        ("tumbling_plain", "StateStoreSave", "can be offloaded", 1, "count"),
        ("event_time_plain", "StateStoreSave", "can be offloaded", 1, "the event time itself"),
        ("session_plain", "SessionWindowStateStoreSave", "can be offloaded", None, "a session window"),
        ("list_plain", "StateStoreSave", "can be offloaded", 1, "collect_list"),
        ("histogram_plain", "StateStoreSave", "stays with Spark", 1, "histogram_numeric cannot be merged"),
        ("dedup_plain", "StreamingDeduplicate", "stays with Spark", None, "spark.gpuwin.deduplicate is false"),
        ("sliding_gpuwin", "GpuWindow", "on gpuwin", None, "sliding 10 min every 1 min already runs"),
    ],
)
def test_plans(plan: str, node: str, verdict: str, overlap: int | None, words: str) -> None:
    (operator,) = read_plan((CAPTURED / f"{plan}.txt").read_text())
    assert (operator.node, operator.verdict, operator.overlap) == (node, verdict, overlap)
    assert words in operator.reason


def test_a_deduplication_on_gpuwin() -> None:
    plan = (CAPTURED / "dedup_plain.txt").read_text().replace("StreamingDeduplicate [", "GpuWindowDeduplicate [")
    (operator,) = read_plan(plan)
    assert (operator.verdict, operator.reason) == ("on gpuwin", "a deduplication already runs on gpuwin")


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ("id#3L, int#4, 2, false, 0, 0", "stays with Spark"),
        ("struct(id, id#3L), concat(str#5, ,), 2, true, 0, 0", "stays with Spark"),
        ("id#3L, int#4", "can be offloaded"),
        ("array(id#3L, 2), struct(int, int#4, id, id#3L)", "can be offloaded"),
    ],
)
@pytest.mark.parametrize("name", ["max_by", "min_by"])
def test_several_values_by_an_order(name: str, arguments: str, verdict: str) -> None:
    """A third argument says of how many; what Spark writes behind it are its type and places of its own."""
    text = (CAPTURED / "tumbling_plain.txt").read_text()
    (operator,) = read_plan(re.sub(r"(partial|merge)_\w+\([^()]*\)", rf"\1_{name}({arguments})", text))
    assert operator.verdict == verdict
    assert (f"{name} has a third argument" in operator.reason) == (verdict == "stays with Spark")


@pytest.mark.parametrize(
    ("plan", "verdict", "words"),
    [
        ("tumbling_plain", "can be offloaded", "a window with pivotfirst"),
        ("session_plain", "stays with Spark", "one value of its pivot may take the place of another"),
    ],
)
def test_upper_aggregation_of_a_pivot(plan: str, verdict: str, words: str) -> None:
    text = re.sub(r"(partial|merge)_\w+\(", r"\1_pivotfirst(", (CAPTURED / f"{plan}.txt").read_text())
    (operator,) = read_plan(text)
    assert operator.verdict == verdict
    assert words in operator.reason


@pytest.mark.parametrize(
    ("plan", "cut", "verdict"),
    [
        ("sliding_plain", r"(?:merge|partial)_sum\(.*?\)", "undecided"),  # of the aggregates
        ("sliding_plain", r"named_struct\(start.*", "undecided"),  # of the windows
        ("event_time_plain", r"(?<=StateStoreSave \[).*?(?=\])", "undecided"),  # of the keys
        ("sliding_plain", r"(?<=LocalTableScan <empty>, \[).*(?=\])", "can be offloaded"),
        ("histogram_plain", r"(?<=keys=\[)[^\]]*", "stays with Spark"),  # the function is still there
    ],
)
def test_plan_that_was_cut(plan: str, cut: str, verdict: str) -> None:
    """Spark writes 25 columns of a node and the number of those that it left out."""
    text, cuts = re.subn(cut, "... 5 more fields", (CAPTURED / f"{plan}.txt").read_text())
    assert cuts
    (operator,) = read_plan(text)
    assert operator.verdict == verdict
    assert ("spark.sql.debug.maxToStringFields=1000" in operator.reason) is (verdict == "undecided")


def test_functions_of_many_buffers() -> None:
    """The buffers of approx_count_distinct are 52, of which Spark writes some; and it is not DISTINCT."""
    text = (CAPTURED / "sliding_plain.txt").read_text()
    many = re.sub(r"(partial|merge)_sum\(", r"\1_approx_count_distinct(", text).replace("sum#", "... 34 more fields#")
    (operator,) = read_plan(many)
    assert (operator.verdict, operator.overlap) == ("can be offloaded", 10)
    (operator,) = read_plan(re.sub(r"(partial|merge)_sum\(", r"\1_count(distinct ", text))
    assert (operator.verdict, operator.reason) == ("stays with Spark", "an aggregate is DISTINCT")


@pytest.mark.parametrize(
    ("above", "words"),
    [
        ("Filter ((isnotnull(t#1-T9ms) AND (t#1-T9ms >= w#2-T9ms.start)) AND (t#1-T9ms < w#2-T9ms.end))", None),
        ("Project [k#0, window#2-T9ms AS w#3-T9ms]", None),
        (
            "Filter (isnotnull(window#2-T9ms.end) AND ((minute(window#2-T9ms.end, None) % 2) = 0))",
            "since a condition on",
        ),
        ("Project [window#2-T9ms AS w#3-T9ms, window#2-T9ms.start AS _groupingexpression#5]", "since another column"),
        ("Generate explode(array(k#0)), [window#2-T9ms], false, [e#6]", "since rows are made of them"),
        ("BroadcastHashJoin [k#0], [j#7], Inner, BuildRight, false, false", "since BroadcastHashJoin stands between"),
        ("Exchange RoundRobinPartitioning(3), REPARTITION_BY_NUM, [plan_id=7]", "since Exchange stands between"),
        (  # what Spark derives from a window over the times of these windows
            "Filter ((t#1-T9ms < w#2-T9ms.end) AND isnotnull(precisetimestampconversion((precisetimestampconversion("
            "w#2-T9ms.end, TimestampType, LongType) - 1), LongType, TimestampType)))",
            None,
        ),
    ],
)
def test_what_lies_above_the_copies_of_a_sliding_window(above: str, words: str | None) -> None:
    operator = with_above(above)
    assert operator.verdict == "can be offloaded"
    assert operator.overlap == (10 if words is None else 1)
    assert (words or "a window with") in operator.reason


def with_above(above: str) -> PlannedOperator:
    """The aggregation of a sliding window, with a node above the copies; one that makes #77 makes the grouping."""
    plan = (CAPTURED / "sliding_plain.txt").read_text()
    at = plan.index("+- *(1) Expand [")
    nodes = plan[:at].replace("window#11", "w#77") if "#77" in above else plan[:at]
    indent = nodes.rpartition("\n")[2]
    (operator,) = read_plan(f"{nodes}+- *(1) {above}\n{indent}   {plan[at:]}")
    return operator


@pytest.mark.parametrize(
    ("above", "words"),
    [
        ("Project [k#0, v#1, window#11-T60000ms.start AS w#77-T60000ms]", "neither by a window"),
        ("Project [k#0, v#1, CASE WHEN b#5 THEN window#11-T60000ms END AS w#77]", "other than window(...)"),
        ("Generate explode(array(window#11-T60000ms)), [k#0, v#1], false, [w#77]", "other than window(...)"),
        (
            "Expand [[v#1L, k#0, window#11-T60000ms, 0], [v#1L, k#0, null, 1]], [v#1L, k#0, w#77-T60000ms, id#78L]",
            "grouping sets that do not all have the window",
        ),
        ("BroadcastHashJoin [k#0], [j#7], RightOuter, BuildLeft, false, false", "an outer join"),
        ("Union", "a union whose sides have sliding windows"),
    ],
)
def test_windows_that_are_none_of_one_grid(above: str, words: str) -> None:
    operator = with_above(above)
    assert operator.verdict == "stays with Spark"
    assert words in operator.reason


def test_an_aggregate_that_reads_a_sliding_window() -> None:
    text = (CAPTURED / "sliding_plain.txt").read_text()
    (plain,) = read_plan(text)
    (operator,) = read_plan(text.replace("partial_sum(v#1)", "partial_max((v#1 - window#11-T60000ms.start))"))
    assert (plain.overlap, operator.overlap) == (10, 1)
    assert "since an aggregate reads the window" in operator.reason


def test_grouping_that_the_text_does_not_show() -> None:
    """As that by a column of an aggregation below, which has another name for what it grouped by."""
    operator = with_above(
        "HashAggregate(keys=[window#11-T60000ms], functions=[count(1)], output=[w#77-T60000ms, n#78L])"
    )
    assert operator.verdict == "may be offloaded"
    assert "which the plan does not show" in operator.reason


@pytest.mark.parametrize(
    ("value", "read", "left"),
    [
        ("v#1", "k:int,v:decimal(38,2),s:struct<v:int,w:decimal(10,2)>", "over decimal(38,2) has no room"),
        ("v#1", "v:decimal(28,2)", None),
        ("v#1", "v:decimal(29,0)", "over decimal(29,0) has no room"),
        ("v#1", "v:bigint", None),
        ("v#1", "", None),
        ("cast(k#0 as decimal(38,0))", "", "over decimal(38,0) has no room"),
        ("cast((k#0 + cast(v#1 as decimal(38,0))) as decimal(20,0))", "", None),
        ("(cast(v#1 as decimal(38,0)) * cast(v#1 as decimal(38,0)))", "", None),
    ],
)
@pytest.mark.parametrize("function", ["sum", "avg", "try_sum"])
def test_decimals_without_room(function: str, value: str, read: str, left: str | None) -> None:
    text = (CAPTURED / "sliding_plain.txt").read_text().replace("sum(v#1)", f"{function}({value})")
    scan = f"FileScan parquet [k#0,v#1] Batched: true, ReadSchema: struct<{read}>"
    (operator,) = read_plan(re.sub(r"LocalTableScan.*", lambda _: scan, text))
    assert operator.verdict == ("can be offloaded" if left is None else "stays with Spark")
    assert operator.reason.startswith(f"{function} {left}" if left else "a window with")


def test_sums_of_decimals_whose_digits_are_not_in_the_text() -> None:
    text = (CAPTURED / "sliding_plain.txt").read_text()
    (operator,) = read_plan(re.sub(r"sum#(\d+), count", r"sum#\1, isEmpty#7, count", text))
    assert operator.verdict == "can be offloaded"
    assert operator.reason.endswith("and a sum of decimals of more than 28 digits stays with Spark")


def test_an_event_log_says_what_the_reports_say() -> None:
    (logged,) = read_progress([CAPTURED / "events_1_local"])
    (reported,) = read_progress([CAPTURED / "sliding_plain.jsonl"])
    assert logged == reported
    assert [b.rows for b in reported.batches.values()] == [5000] * 4 + [0]


def planned_in_a_log(plan: str, run: str) -> str:
    """The event of a batch that Spark writes before it runs; its plan is a tree, with nodes of code generation."""
    lines = (CAPTURED / f"{plan}.txt").read_text().split("== Physical Plan ==")[-1].strip().splitlines()
    node = None
    for line in reversed([line.lstrip(" +-:") for line in lines]):  # a chain
        text = re.sub(r"^\*\(\d+\) ", "", line)
        node = {"nodeName": text.split()[0].split("(")[0], "simpleString": text, "children": [node] if node else []}
        if text != line:
            node = {"nodeName": "WholeStageCodegen (1)", "simpleString": "WholeStageCodegen (1)", "children": [node]}
    event = {
        "Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart",
        "description": f"sliding\nid = 1\nrunId = {run}\nbatch = 0",
        "sparkPlanInfo": node,
    }
    return json.dumps(event, separators=(",", ":")) + "\n"


def test_the_plan_in_an_event_log(tmp_path: Path) -> None:
    log = tmp_path / "events_1_local"
    (run,) = read_progress([CAPTURED / "events_1_local"])
    log.write_text("".join([EVENTS[0], planned_in_a_log("sliding_plain", run.run), *EVENTS[1:]]))
    text = qualify([str(log)])
    assert "operator 0 (stateStoreSave): can be offloaded: a window with count, sum" in text
    assert "rows lie in k = 10 windows\n" in text
    assert "--window" not in text
    without = qualify(captured("events_1_local"))
    damaged = planned_in_a_log("sliding_plain", run.run)
    for plan in (
        planned_in_a_log("sliding_plain", "another"),
        re.sub(r'"simpleString":"[^"]*"', '"simpleString":null', damaged),
        damaged.replace('"children":[]', '"children":null'),
        damaged.replace('"description":', '"said":'),
    ):
        log.write_text("".join([EVENTS[0], plan, *EVENTS[1:]]))
        assert qualify([str(log)]) == without


EVENTS = (CAPTURED / "events_1_local").read_text().splitlines(keepends=True)
DATABRICKS = '{"Event":"DBCEventLoggingListenerMetadata","Rollover Number":1,"Rollover SessionId":7}\n'


@pytest.mark.parametrize("first", ["", DATABRICKS, '{ "Event" : "SparkListenerJobEnd", "Job ID": 5 }\n'])
@pytest.mark.parametrize("suffix", ["", ".inprogress", ".zstd", ".zstd.inprogress", ".gz"])
def test_parts_of_an_event_log(first: str, suffix: str, tmp_path: Path) -> None:
    """A later file of a log that is rolled begins with any event, and a vendor's has events of its own."""
    path = tmp_path / f"events_2_app{suffix}"
    codec = next((c for s, c in ((".zstd", "zstd"), (".gz", "gzip")) if s in suffix), None)
    with pa.output_stream(str(path), compression=codec) as out:
        out.write("".join([first, *EVENTS[2:]]).encode())
    assert qualify([str(path)]) == qualify(captured("events_1_local"))


def test_event_log_that_is_still_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "app.inprogress"
    path.write_bytes("".join(EVENTS[:7])[:-100].encode() + b"\xc3")
    (run,) = read_progress([path])
    (whole,) = read_progress([CAPTURED / "events_1_local"])
    assert len(run.batches) == len(whole.batches) - 1
    assert f"{path} ends in the middle of line 7" in caplog.text
    path.write_text("".join([*EVENTS[:3], EVENTS[3][:200] + "\n", *EVENTS[4:]]))
    with pytest.raises(QualifyError, match="line 4: a progress event that cannot be read"):
        read_progress([path])
    packed = tmp_path / "app.zstd.inprogress"
    others = [f'{{"Event":"Other","data":"{os.urandom(3000).hex()}"}}\n' for _ in range(100)]
    packed.write_bytes(pa.compress("".join([*EVENTS, *others]).encode(), "zstd", asbytes=True)[:-200])
    assert read_progress([packed])[0].batches.keys() == whole.batches.keys()
    assert f"{packed} is not whole after line" in caplog.text


def test_folder_with_what_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sliding_plain.jsonl", "tumbling_plain.txt"):
        (tmp_path / name).write_bytes((CAPTURED / name).read_bytes())
    said = qualify([str(tmp_path)])
    junk = {"a.bin": b"\x00\xff", "a.json": b'{"some": "thing"}', "a.lz4": b"x", "a.txt": b"== Physical Plan ==\n\n"}
    for name, content in junk.items():
        (tmp_path / name).write_bytes(content)
    assert qualify([str(tmp_path)]) == said
    assert sorted(set(re.findall(r"a\.\w+(?= )", caplog.text))) == ["a.bin", "a.json", "a.lz4"]
    assert caplog.text.count("It was skipped") == len(junk)
    for name in ("sliding_plain.jsonl", "tumbling_plain.txt", "a.json", "a.lz4"):
        (tmp_path / name).unlink()
    with pytest.raises(QualifyError, match=r"Nothing in .* can be read"):
        qualify([str(tmp_path)])


def test_reports_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (CAPTURED / "sliding_plain.jsonl").read_text().splitlines()
    monkeypatch.setattr("gpuwin_spark.qualify.progress.MOST", 2000)
    path, printed = tmp_path / "a.jsonl", json.dumps(json.loads(lines[-1]), indent=40)
    path.write_text("\n".join(lines))
    assert read_progress([path]) == read_progress([CAPTURED / "sliding_plain.jsonl"])
    path.write_text("\n".join([*lines[:-1], printed]))
    with pytest.raises(QualifyError, match=rf"line {len(lines)}: not JSON on one line, and too large"):
        read_progress([path])


def test_a_report_needs_no_number_that_nothing_is_told_by(tmp_path: Path) -> None:
    text = (CAPTURED / "sliding_plain.jsonl").read_text()
    (tmp_path / "less.jsonl").write_text(re.sub(r'"numRows(?:Total|Updated)" ?: ?\d+, ?', "", text))
    assert "numRowsTotal" not in (tmp_path / "less.jsonl").read_text()
    assert read_progress([tmp_path / "less.jsonl"]) == read_progress([CAPTURED / "sliding_plain.jsonl"])


def test_the_arithmetic() -> None:
    def batch(n: int, trigger: int, add: int, state: int) -> Batch:
        return Batch(n, 100, trigger, add, (OperatorReport("stateStoreSave", state, 0, 0, 4),))

    batches = [batch(0, 99_999, 99_999, 99_999), batch(1, 600, 500, 400), batch(2, 400, 300, 400)]
    gain = estimate(batches, 0, overlap=10)  # T = 1000, A = 800, S = 800 of four partitions
    assert gain is not None
    assert gain.low == pytest.approx(1000 / (1000 - 200 + 20))
    assert gain.high == pytest.approx(1000 / (200 + 80))
    assert "2 batches, 200 rows: T = 1000 ms, of which addBatch A = 800 ms" in gain.arithmetic[0]
    on_two = estimate(batches, 0, overlap=10, cores=2)
    assert on_two is not None
    assert on_two.low == pytest.approx(1000 / (1000 - 400 + 40))
    tumbling = estimate(batches, 0, overlap=1)
    assert tumbling is not None
    assert (tumbling.low, tumbling.high) == (1.0, pytest.approx(1000 / 200))
    assert estimate([Batch(0, 0, 10, 5, batches[0].operators)], 0, 10) is None


def test_a_measured_gain_lies_below_the_high_end() -> None:
    """The benchmark, which measured both sides, was 60 windows a row."""
    measured = json.loads(BENCHMARK.read_text())
    plain = measured["batches"]
    nothing = (OperatorReport("stateStoreSave", 0, 0, 0, 2),)
    gain = estimate([Batch(i, b["rows"], b["trigger_ms"], b["ms"], nothing) for i, b in enumerate(plain)], 0, 60)
    assert gain is not None
    assert gain.low < measured["ratio"] < gain.high < 2 * measured["ratio"]


def test_a_plan_and_its_reports_together() -> None:
    text = qualify(captured("sliding_plain.txt", "sliding_plain.jsonl"))
    assert "operator 0 (stateStoreSave): can be offloaded: a window with count, sum" in text
    assert "expected gain: between 1.2 and 3.1 times" in text
    assert "rows lie in k = 10 windows\n" in text
    assert "not a measurement" in text
    alone = qualify(captured("sliding_plain.jsonl"), size_us=10 * MINUTE, slide_us=MINUTE)
    assert "may be offloaded" in alone
    assert "expected gain: between 1.2 and 3.1 times" in alone
    assert "k = 1 windows at least" in qualify(captured("sliding_plain.jsonl"))


@pytest.mark.parametrize("name", ["histogram_plain", "dedup_plain"])
def test_no_gain_is_promised_for_what_stays(name: str) -> None:
    text = qualify(captured(f"{name}.txt", f"{name}.jsonl"))
    assert "stays with Spark" in text
    assert "gain" not in text


def test_sessions_of_a_spark_that_has_no_name_for_them(tmp_path: Path) -> None:
    """Spark 3.5 reports its operator for sessions under the name that an operator without one has."""
    reports = tmp_path / "session.jsonl"
    reports.write_text(
        (CAPTURED / "session_plain.jsonl").read_text().replace("sessionWindowStateStoreSaveExec", "defaultName")
    )
    said = qualify([str(reports)])
    assert "may be offloaded" in said
    assert "a session window" in said


def test_what_runs_on_gpuwin_already() -> None:
    text = qualify(captured("sliding_gpuwin.jsonl"))
    assert "operator 0 (gpuwin): on gpuwin" in text
    assert "gain" not in text


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["qualify", str(CAPTURED)]) == 0
    shown = capsys.readouterr().out
    assert "query sliding" in shown
    assert "query session" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO((CAPTURED / "tumbling_plain.txt").read_text()))
    assert main(["qualify", "-"]) == 0
    assert "can be offloaded" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["qualify", "x", "--window", "10"])
    assert "is not a duration" in capsys.readouterr().err


REPORT = '{"batchId": %s, "runId": "r", "id": "i", "numInputRows": 1, "durationMs": %s, "stateOperators": %s}'


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "", "is empty"),
        ("a.txt", "hello", "neither the text of a plan nor JSON"),
        ("a.json", '{"batchId": 1', "line 1: neither JSON"),
        ("a.json", '{"some": "thing"}', "not the progress of a query"),
        ("a.json", "[1, 2]", "not the progress of a query"),
        ("a.json", '{"batchId": 1, "runId": "r", "id": "i"}', "without a usable 'durationMs'"),
        ("a.json", REPORT % ('"one"', "{}", "[]"), "without a usable 'batchId'"),
        ("a.json", REPORT % ("1", "[]", "[]"), "without a usable 'durationMs'"),
        ("a.json", REPORT % ("1", '{"addBatch": null}', "[]"), "without a usable 'addBatch'"),
        ("a.json", REPORT % ("1", "{}", "[5]"), "without a usable 'stateOperators'"),
        ("a.json", REPORT % ("1", "{}", '[{"operatorName": "s", "allUpdatesTimeMs": Infinity}]'),
         "without a usable 'allUpdatesTimeMs'"),
        ("a.json", '{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}\n', "No progress of a streaming query"),
        ("events.lz4", "x", "is compressed"),
        ("events.zstd.inprogress", "x", "cannot be read"),
        ("a.txt", "== Analyzed Logical Plan ==\n+- Aggregate\n", "logical plans only"),
        ("a.txt", "== Physical Plan ==\nStateStoreSave (3)\n+- Exchange (2)\n   +- LocalTableScan (1)\n", "formatted"),
        ("a.txt", "== Physical Plan ==\n\n", "no plan under"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(
    name: str, content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(QualifyError, match=says):
        qualify([str(tmp_path / name)])
    assert main(["qualify", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith("gpuwin: ")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(QualifyError, match="There is no"):
        qualify([str(tmp_path / "nothing")])
    with pytest.raises(QualifyError, match="no files"):
        qualify([str(tmp_path)])
    with pytest.raises(QualifyError, match="/proc/self/mem cannot be read"):
        qualify(["/proc/self/mem"])  # a file that opens, and fails when it is read


def test_the_text_of_a_plan_from_a_pipe(tmp_path: Path) -> None:
    """As a shell's `<(...)` gives it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name, says in (("session_plain.txt", "can be offloaded"), ("dedup_plain.jsonl", "not the text of a plan")):
        writer = threading.Thread(target=pipe.write_text, args=((CAPTURED / name).read_text(),))
        writer.start()
        try:
            told = qualify([str(pipe)])
        except QualifyError as error:
            told = str(error)
        writer.join()
        assert says in told
    with pytest.raises(QualifyError, match="/dev/null is not the text of a plan"):
        qualify(["/dev/null"])


def test_the_table_of_aggregates_is_that_of_the_plugin() -> None:
    """Whoever teaches the plugin a function adds it to the table: the classes that Scala merges, and their merges."""
    plan = Path(__file__).parents[2] / "spark_plugin" / "scala" / "plan"
    scala = (plan / "MergeSpec.scala").read_text()
    cases = scala.split("def of(function")[1].split("TypedImperativeAggregate")[0]
    of_pieces = (plan / "Pieces.scala").read_text().split("def mergeOf(")[1].split("def of(")[0]
    kept = set(re.findall(r'"(\w+)"', of_pieces))
    in_pieces = {one.buffer for one in ON_SPARK if set(one.merge.merges) <= kept}
    assert set(re.findall(r"(?:case|\|) \w+: (\w+)", cases)) == {one.buffer for one in ON_SPARK} - in_pieces
    merges = set(re.findall(r'(?:MergeSpec|statistics|Right)\("(\w+)"', scala)) | kept
    assert merges == {merge for one in ON_SPARK for merge in one.merge.merges} == set(MERGES)
    names = [name for one in ON_SPARK for name in one.functions]
    assert len(names) == len(set(names)) > 40

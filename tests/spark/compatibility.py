"""The table of docs/compatibility.md: what the plugin's tests did on each Spark, Python and Java, by their runs.

    python -m pytest tests/spark --junitxml=run.xml && python tests/spark/compatibility.py run.xml

The second command adds the run to docs/compatibility.json, under the Spark, Python and Java of its own interpreter, and
writes the page, and the short table of the README, anew. A file of tests that ran again replaces what was there of it.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from gpuwin.planning.aggregate_pages import made

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = ROOT / "docs" / "compatibility.json"
BEGIN: Final = "<!-- made by `python tests/spark/compatibility.py` -->\n"

#: Files of tests/spark, without "test_spark_", by what a user gets from them.
FEATURES: Final = {
    "rows equal plain Spark's: tumbling, sliding and session windows": (
        "differential", "sweep", "sessions", "queries", "grouping", "window_columns", "around", "volume",
        "strain"),
    "groups without a window": ("without_window",),
    "deduplication": ("deduplicate",),
    "rows become cells in the device service, below the shuffle": (
        "map_side", "map_side_sessions", "dictionary_keys", "narrow", "event_times", "from_json"),
    "every aggregate, decimals and sums that overflow": (
        "aggregates", "aggregate_table", "nested_values", "pieces", "session_order", "wide_decimals"),
    "known answers": ("cases", "clock", "comparison"),
    "several stateful operators in a query": ("stacked",),
    "batch queries": ("batch", "batch_sessions"),
    "sources": ("sources",),
    "exactly once: kills, restarts, lost and damaged state": ("recovery", "failures", "damage", "roll_back", "release"),
    "wrong use, in words": ("wrong_use", "errors", "builders", "socket"),
    "`gw.spark.aggregate`: specifications and your own aggregates": (
        "aggregate", "aggregate_stream", "aggregate_parity", "observed", "local_files"),
    "executors: cores, GPUs and their services": ("placement", "gpu_scheduling"),
    "Spark's `repartition` of a checkpoint is refused, or repaired": ("repartition",),
    "the state in a checkpoint, shown, adopted, rescaled and given back": (
        "adopt", "give_back", "look", "moves", "moves_killed", "rehearsal", "rescale"),
    "Real-Time Mode stays Spark's": ("real_time",),
    "Spark Connect": ("connect",),
    "one checkpoint from version to version": ("versions",),
}  # fmt: skip


@dataclass
class Run:
    """What the tests did on one Spark, Python and Java.

    Attributes:
        files: passed, failed and skipped tests, by file.
        skipped: reasons of what was skipped, by file.
    """

    spark: str
    python: str
    java: str
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def where(self) -> tuple[str, str, str]:
        return self.spark, self.python, self.java

    def of(self, names: Iterable[str]) -> str:
        """A cell of the table: how many tests of some files passed, and how many did not."""
        passed, failed, skipped = (sum(self.files.get(n, (0, 0, 0))[i] for n in names) for i in range(3))
        if failed:
            return f"{passed} passed, **{failed} failed**"
        return f"{passed} passed" if passed else "not in this Spark" if skipped else "not run"


def counted(report: Path) -> tuple[dict[str, tuple[int, int, int]], dict[str, list[str]]]:
    """Counts of passed, failed and skipped tests by file, and the reasons of the latter, of a report in JUnit's XML."""
    files: dict[str, tuple[int, int, int]] = {}
    reasons: dict[str, list[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        found = re.search(r"test_spark_(\w+)", case.attrib["classname"] or case.attrib["name"])
        if found is None:
            continue
        name, skip = found[1], case.find("skipped")
        how = 2 if skip is not None else int(any(case.find(k) is not None for k in ("failure", "error")))
        before = files.get(name, (0, 0, 0))
        files[name] = (before[0] + (how == 0), before[1] + (how == 1), before[2] + (how == 2))
        if skip is not None and skip.attrib.get("message") not in reasons.setdefault(name, []):
            reasons[name].append(skip.attrib.get("message", ""))
    return files, reasons


def read() -> list[Run]:
    """The runs that were recorded, the newest Spark first."""
    runs = [Run(**run) for run in json.loads(RECORD.read_text())] if RECORD.exists() else []
    return sorted(runs, key=lambda run: [int(n) for n in run.spark.split(".")], reverse=True)


def add(runs: list[Run], run: Run) -> None:
    """Adds a run: its files replace those of an earlier one on the same Spark, Python and Java."""
    same = next((r for r in runs if r.where == run.where), None)
    if same is None:
        runs.append(run)
        return
    for name, counts in run.files.items():
        same.files[name] = counts
        same.skipped.pop(name, None)
        if name in run.skipped:
            same.skipped[name] = run.skipped[name]


def page_table(runs: list[Run]) -> str:
    """The table of the page: a line for each feature, a column for each run; then why tests were skipped."""
    heads = [f"Spark {r.spark}, Python {r.python}, Java {r.java}" for r in runs]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(runs)]
    for feature, names in FEATURES.items():
        lines.append(f"| {feature} | {' | '.join(r.of(names) for r in runs)} |")
    for run in runs:
        why = sorted({reason for reasons in run.skipped.values() for reason in reasons})
        if why:
            lines += ["", f"Skipped on Spark {run.spark}, Python {run.python}, Java {run.java}:", ""]
            lines += [f"* {reason}" for reason in why]
    return "\n".join(lines) + "\n"


def short_table(runs: list[Run]) -> str:
    """The table of the README: a line for each run."""
    lines = ["| Spark | Python | Java | the plugin's tests |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(r.where)} | {r.of(r.files)} |" for r in runs)]) + "\n"


PAGES: Final = {ROOT / "docs" / "compatibility.md": page_table, ROOT / "README.md": short_table}


def main(reports: list[str]) -> None:
    from gpuwin_spark.installed_spark import find_spark
    from gpuwin_spark.java import find_java

    runs = read()
    python = ".".join(platform.python_version_tuple()[:2])
    for report in reports:
        run = Run(find_spark().version, python, str(find_java().version), *counted(Path(report)))
        add(runs, run)
    lines = (f" {json.dumps(asdict(run))}" for run in runs)
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    for path, table in PAGES.items():
        path.write_text(made(path.read_text(), table(read()), BEGIN))


if __name__ == "__main__":
    main(sys.argv[1:])

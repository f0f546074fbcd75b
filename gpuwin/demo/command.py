"""The demo, from beginning to end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from gpuwin_spark.jar import find_spark, jar_path
from gpuwin_spark.java import find_java

from . import check, flights, report
from .progress import ProgressLine
from .queries import QUERIES, DemoQuery
from .runs import Outcome, run_side
from .side import SideSpec
from .warm import compile_kernels

RECOMPUTED: Final = "a recomputation without Spark"


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says.

    Attributes:
        device: "auto", "cuda" or "cpu".
        batches: micro-batches that the stream is cut into.
        limit_rows: only so many flights, or None for all.
        plain_limit: seconds after which a run on plain Spark is ended.
        master: Spark's master; None for this machine. Executors elsewhere must see the folder for temporary files
            (``TMPDIR``) under the same path, and have gpuwin in the Python of the same path.
    """

    device: str = "auto"
    batches: int = 26
    limit_rows: int | None = None
    plain_limit: float = 120.0
    master: str | None = None


def run_demo(options: DemoOptions) -> int:
    """Runs the demo and prints as it goes; returns 0 if every row of gpuwin was right, else 1.

    Raises:
        DemoError, SparkSetupError: something is missing here; the message names the command that brings it.
    """
    source = flights.find_flights()
    spark, java = find_spark(), find_java()
    jar_path()
    stream = flights.load_flights(source, options.limit_rows)
    batches = flights.cut(stream, options.batches)
    master = options.master or f"local[{cores()}]"
    found = flights.disorder(stream)
    hours, minutes = divmod(found.largest_minutes, 60)
    _say(
        f"{found.rows:,} flights that were to leave New York in 2013, in order of departure. Their event time is the "
        f"scheduled\ndeparture, so {found.out_of_order:,} rows come late, by up to {hours} h {minutes:02} min; "
        f"{found.cancelled:,} flights were cancelled and have a null delay.\n"
        f"{len(batches)} micro-batches. Spark {spark.version}, Java {java.version}, {master}, {cores()} shuffle "
        f"partitions. Device: {options.device}."
    )
    compiled = sum(compile_kernels(query) for query in QUERIES.values())
    if compiled > 2.0:
        _say(f"The kernels were compiled in {compiled:.0f} s, and are kept for the next time.")
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-demo-"))
    keep = False
    try:
        flights.write_batches(batches, folder / "flights")
        comparisons, first_result = [], None
        for number, query in enumerate(QUERIES.values(), 1):
            _say(f"\n{number} of {len(QUERIES)}: {query.title}")
            comparison, result = _compare(query, batches, folder, options, master)
            comparisons.append(comparison)
            first_result = first_result or result
        _say("\n" + report.table(comparisons) + "\n")
        for note in report.notes(comparisons):
            _say(note)
        _say("\nThe plan:\n" + report.plan(comparisons[0]))
        if first_result is not None:
            unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            query = comparisons[0].query
            _say("\n" + report.chart(first_result, unicode=unicode, size=query.size))
        right = all(c.right for c in comparisons)
        keep = not right
        if keep:
            _say(f"\nThe input, the results and the logs are kept in {folder}.")
        return 0 if right else 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _compare(
    query: DemoQuery, batches: list[pa.Table], folder: Path, options: DemoOptions, master: str
) -> tuple[report.Comparison, pa.Table | None]:
    plain = _run(query, batches, folder, master, "Spark", None, options.plain_limit)
    device = _run(query, batches, folder, master, "gpuwin", options.device, None)
    if device.status != "finished":
        return report.Comparison(query, len(batches), plain, device, None, RECOMPUTED), None
    result = check.read_result(folder / f"{query.name}-gpuwin", query)
    recomputed = check.recompute(batches, query)
    against, expected = RECOMPUTED, recomputed
    if plain.status == "finished":
        against, expected = "Spark's", check.read_result(folder / f"{query.name}-Spark", query)
    checked = check.compare(expected, result, query)
    if checked.equal and plain.status == "finished":
        # The other query may have to rely on the recomputation, so it has to agree wherever Spark can say.
        checked = check.compare(recomputed, result, query)
    return report.Comparison(query, len(batches), plain, device, checked, against), result


def _run(
    query: DemoQuery,
    batches: list[pa.Table],
    folder: Path,
    master: str,
    label: str,
    device: str | None,
    limit: float | None,
) -> Outcome:
    name = f"{query.name}-{label}"
    spec = SideSpec(
        query=f"{query.build.__module__}:{query.build.__name__}",
        schema=flights.SPARK_SCHEMA,
        source=str(folder / "flights"),
        sink=str(folder / name),
        checkpoint=str(folder / f"{name}-checkpoint"),
        device=device,
        conf=spark_conf(master, folder),
    )
    line = ProgressLine(label, len(batches), sum(b.num_rows for b in batches))
    line.starting()
    outcome = run_side(spec, folder / f"{name}.log", limit, line.batch, line.wait)
    line.end(outcome)
    return outcome


def spark_conf(master: str, folder: Path) -> dict[str, str]:
    """The configuration that both sides have."""
    return {
        "spark.master": master,
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def cores() -> int:
    """How many tasks run at once: the cores that this process may use, eight at most."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


def _say(text: str) -> None:
    print(text, flush=True)

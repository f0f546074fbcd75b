"""The demo, from beginning to end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.jar import jar_path
from gpuwin_spark.java import find_java

from . import check, flights, page, report
from .busiest import busiest_day
from .files import try_to_write
from .progress import InPlace, ProgressLine, speaks_unicode
from .queries import QUERIES, DemoQuery
from .runs import Batch, Outcome, Side
from .side import SideSpec
from .warm import Compilation

#: Seconds after which plain Spark is stopped. The week would take it minutes: its pace is said, and what it has emitted
#: is compared. The other query has to end, so that all of its rows can be compared with Spark's own.
PLAIN_LIMITS: Final = {"per_carrier_and_origin": 8.0, "per_origin": 120.0}

#: The file that gets the pictures if no other is named.
PAGE: Final = "demo.html"


@dataclass(frozen=True)
class DemoOptions:
    """Options of the command line.

    Attributes:
        device: "auto", "cuda" or "cpu".
        batches: micro-batches that the stream is cut into.
        limit_rows: only so many flights, or None for all.
        plain_limit: seconds after which a run on plain Spark is ended; None for those of `PLAIN_LIMITS`.
        master: Spark's master; None for this machine. Executors elsewhere must see the folder for temporary files
            (``TMPDIR``) under the same path, and have gpuwin in the Python of the same path.
        page: the file that gets the pictures; None for `PAGE`, where that can be written.
    """

    device: str = "auto"
    batches: int = 5
    limit_rows: int | None = None
    plain_limit: float | None = None
    master: str | None = None
    page: str | None = None


def run_demo(options: DemoOptions) -> int:
    """Runs the demo and prints as it goes; returns 0 if every row of gpuwin was right, else 1.

    A page that cannot be written in the end is said, and does not change what is returned: the figures were printed.

    Raises:
        DemoError, SparkSetupError: something is missing here; the message names the command that brings it. Or a page
            was asked for that cannot be written.
    """
    if options.page is not None:
        try_to_write(Path(options.page))
    source = flights.find_flights()
    spark, java = find_spark(), find_java()
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-demo-"))
    keep = False
    try:
        with ExitStack() as stack:
            queries = list(QUERIES.values())
            # The other query needs no other kernels.
            kernels = stack.enter_context(Compilation(queries[0], folder / "kernels.log"))
            jar = stack.enter_context(ThreadPoolExecutor(1)).submit(jar_path)
            demo = Demo(options, folder, stack, jar, kernels)
            stream = flights.load_flights(source, options.limit_rows)
            demo.batches = flights.cut(stream, options.batches)
            flights.write_batches(demo.batches, folder / "flights")
            here = f"Spark {spark.version}, Java {java.version}, {demo.master}, {cores()} shuffle partitions"
            intro = _intro(flights.disorder(stream))
            _say(f"{intro}\n{len(demo.batches)} micro-batches. {here}. Device: {options.device}.")
            comparisons, results = [], {}
            for number, query in enumerate(queries, 1):
                demo.prepare(query, offloaded=False)
                _say(f"\n{number} of {len(queries)}: {query.title}; each row is in {query.windows_per_row:,} windows")
                ran = demo.run_both(query)
                for following in queries[number : number + 1]:
                    demo.start(following)  # beside the comparison of rows
                comparison, results[query.name] = demo.judge(query, ran)
                comparisons.append(comparison)
        result = results["per_origin"]
        day = busiest_day(result, QUERIES["per_origin"].size) if result is not None else None
        _say("\n" + report.table(comparisons))
        _say("\nThe plan:\n" + report.plan(comparisons[0]))
        _say("\n" + report.chart(day, unicode=speaks_unicode(sys.stdout)))
        when = datetime.now().astimezone()
        shown = page.Page(intro, f"{here}, device {options.device}", when, tuple(comparisons), day)
        _say("\n" + page.write(shown, Path(PAGE if options.page is None else options.page)))
        keep = not all(c.right for c in comparisons)
        if keep:
            _say(f"\nThe input, the results and the logs are kept in {folder}.")
        return 1 if keep else 0
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Ran:
    """Both sides of a query, and the comparison of what plain Spark had emitted, where it was stopped."""

    plain: Outcome
    device: Outcome
    emitted: check.Check | None


class Demo:
    """A run of the demo: its options, its folder, and what is prepared: the jar, the kernels, the Sparks."""

    def __init__(
        self, options: DemoOptions, folder: Path, stack: ExitStack, jar: Future[str], kernels: Compilation
    ) -> None:
        self._options = options
        self._folder = folder
        self._stack = stack
        self._jar = jar
        self._kernels = kernels
        self.master = options.master or f"local[{cores()}]"
        self.batches: list[pa.Table] = []
        self._sides: dict[tuple[str, bool], Side] = {}

    def start(self, query: DemoQuery) -> None:
        """Starts what a query needs before it is timed: the Sparks of both sides."""
        for offloaded in (False, True):
            # A cluster gives its cores to the first that asks, so there each side starts when it runs.
            if self._options.master is None:
                self._side(query, offloaded)

    def prepare(self, query: DemoQuery, *, offloaded: bool) -> None:
        """Waits until a side, and the other one if it was started, has nothing left to do but to run the query."""
        # Spark with gpuwin starts with the jar: a plain Spark that started before would only delay the compiler.
        _wait({"the plugin's jar": lambda: self._jar.done() and bool(self._jar.result())})
        if self._options.master is None:
            self._side(query, offloaded)
        waiting: dict[str, Callable[[], bool]] = {"kernels": self._kernels.done} if offloaded else {}
        for name, started in self._started(query):
            waiting[name] = started.ready
        _wait(waiting)

    def _started(self, query: DemoQuery) -> list[tuple[str, Side]]:
        names = {False: "Spark", True: "Spark with gpuwin"}
        return [(names[o], self._sides[query.name, o]) for o in names if (query.name, o) in self._sides]

    def run_both(self, query: DemoQuery) -> Ran:
        """Runs both sides, plain Spark first.

        Where that is stopped, the rows that it had emitted are compared as soon as gpuwin has done its batches. While
        plain Spark plans the week, which takes one core, the other core prepares gpuwin's side, and that is said; the
        second query begins when both sides are there.
        """
        self.start(query)
        beside = not self._kernels.done() or not all(side.ready() for _, side in self._started(query))
        given = self._options.plain_limit
        limit = PLAIN_LIMITS[query.name] if given is None else given
        plain = self._run(query, offloaded=False, limit=limit)
        if plain.status == "stopped":
            _say(f"  {report.stopped(plain, len(self.batches))}")
        if beside:
            _say("  Beside it, gpuwin's kernels were compiled, and its Spark was started.")
        self.prepare(query, offloaded=True)
        committed = len(check.committed_files(self._sink(query, offloaded=False)))
        done: list[Batch] = []
        emitted: list[check.Check] = []

        def compare_first(batch: Batch, line: ProgressLine) -> None:
            done.append(batch)
            if plain.status == "stopped" and batch.number + 1 == committed:
                emitted.append(self._emitted(query, committed))
                line.note(f"  {report.first_batches(plain.batches, done, emitted[0])}")

        device = self._run(query, offloaded=True, limit=None, on_batch=compare_first)
        if plain.status == "stopped" and device.status == "finished" and not emitted:
            emitted.append(self._emitted(query, committed))
        return Ran(plain, device, emitted[0] if emitted else None)

    def judge(self, query: DemoQuery, ran: Ran) -> tuple[report.Comparison, pa.Table | None]:
        """Compares all rows of gpuwin with Spark's, where it has all, and with a recomputation; says how it went.

        Returns:
            The comparison, and gpuwin's rows, where it finished.
        """
        checked, result, against = None, None, report.RECOMPUTED
        if ran.device.status == "finished":
            result = check.read_result(self._sink(query, offloaded=True), query)
            checked = check.compare(check.recompute(self.batches, query), result, query)
            # The other query may have to rely on the recomputation, so it has to agree wherever Spark can say.
            if checked.equal and ran.plain.status == "finished":
                against = "Spark's"
                checked = check.compare(check.read_result(self._sink(query, offloaded=False), query), result, query)
        comparison = report.Comparison(query, len(self.batches), ran.plain, ran.device, checked, against, ran.emitted)
        for sentence in report.findings(comparison):
            _say(f"  {sentence}")
        return comparison, result

    def _emitted(self, query: DemoQuery, batches: int) -> check.Check:
        """Compares what both sides have emitted in so many batches from the first."""
        plain, device = (check.read_result(self._sink(query, offloaded=o), query, batches) for o in (False, True))
        return check.compare(plain, device, query)

    def _run(
        self,
        query: DemoQuery,
        *,
        offloaded: bool,
        limit: float | None,
        on_batch: Callable[[Batch, ProgressLine], None] = lambda batch, line: None,
    ) -> Outcome:
        line = ProgressLine(label(offloaded), len(self.batches))
        line.starting()

        def ended(batch: Batch) -> None:
            line.batch(batch)
            on_batch(batch, line)

        outcome = self._side(query, offloaded).run(limit, ended, line.wait)
        line.end(outcome)
        return outcome

    def _side(self, query: DemoQuery, offloaded: bool) -> Side:
        """The process of a side; started unless it is there."""
        key = (query.name, offloaded)
        if key not in self._sides:
            sink = self._sink(query, offloaded=offloaded)
            spec = SideSpec(
                query=f"{query.build.__module__}:{query.build.__name__}",
                schema=flights.SPARK_SCHEMA,
                source=str(self._folder / "flights"),
                sink=str(sink),
                checkpoint=f"{sink}-checkpoint",
                device=self._options.device if offloaded else None,
                conf=spark_conf(self.master, self._folder),
            )
            self._sides[key] = self._stack.enter_context(Side(spec, Path(f"{sink}.log")))
        return self._sides[key]

    def _sink(self, query: DemoQuery, *, offloaded: bool) -> Path:
        return self._folder / f"{query.name}-{'gpuwin' if offloaded else 'Spark'}"


def _wait(waiting: dict[str, Callable[[], bool]]) -> None:
    """Waits until all of this is done, and names what is not."""
    line, begin = InPlace(), time.monotonic()
    while waiting := {what: done for what, done in waiting.items() if not done()}:
        line.show(f"  Preparing {', '.join(waiting)}  {time.monotonic() - begin:.0f} s")
        time.sleep(0.1)
    line.show("")


def label(offloaded: bool) -> str:
    """The name of a side."""
    return "gpuwin" if offloaded else "plain Spark"


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
    """Number of tasks that run at once: the cores that this process may use, eight at most."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


def _intro(found: flights.Disorder) -> str:
    hours, minutes = divmod(found.largest_minutes, 60)
    return (
        f"{found.rows:,} flights that were to leave New York in 2013, in order of departure. Their event time is the "
        f"scheduled\ndeparture, so {found.out_of_order:,} rows come late, by up to {hours} h {minutes:02} min; "
        f"{found.cancelled:,} flights were cancelled and have a null delay."
    )


def _say(text: str) -> None:
    print(text, flush=True)

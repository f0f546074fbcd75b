"""Runs one query through its kills and looks at the sink after each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brief_java import brief_options
from spark_harness.processes import children, services

from . import stream
from .queries import QUERIES
from .sinks import SINKS
from .sources import SOURCES
from .strikes import BETWEEN_BATCHES, BETWEEN_SINK_AND_COMMIT, Plan, Strike

if TYPE_CHECKING:
    from pipelines_harness.broker import Broker

CLUSTER = "local-cluster[2,1,2048]"
EXECUTOR = "CoarseGrainedExecutorBackend"
#: What the Kafka connector 4.1.1 fails a start with that does a batch again, once it is done, with gpuwin and without:
#: its metrics look for offsets that it has not asked for. The start after that goes on. (docs/pipelines.md)
OF_THE_CONNECTOR = 'Cannot invoke "scala.collection.IterableOps.map'
#: Seconds for one step. A JVM with its executors takes minutes to start where thirty processes share two cores.
PATIENCE = 900.0


@dataclass
class Result:
    """What one query did. Rows are lost or wrong in what the sink held when all was done, and twice at any time.

    unread: rows of the source that no batch took. connector_failures: starts that failed as `OF_THE_CONNECTOR` says.
    """

    plan: Plan
    kills: list[dict[str, object]] = field(default_factory=list)
    missed: list[dict[str, object]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lost: int = 0
    twice_or_wrong: int = 0
    rows: int = 0
    seconds: float = 0.0
    operators: list[str] = field(default_factory=list)
    unread: int = 0
    connector_failures: int = 0

    @property
    def right(self) -> bool:
        """Nothing lost, nothing twice, nothing wrong, and by gpuwin."""
        return (
            self.rows > 0
            and not (self.unread or self.lost or self.twice_or_wrong or self.missed or self.failures)
            and (self.operators == ["gpuwin"])
        )

    def report(self) -> dict[str, object]:
        return {**asdict(self), "right": self.right}

    @classmethod
    def reported(cls, plan: Plan, report: dict[str, Any]) -> Result:
        """The result of the plan out of a report."""
        return cls(plan, **{f.name: report[f.name] for f in fields(cls) if f.name != "plan" and f.name in report})


def assert_right(result: Result) -> None:
    assert result.right, json.dumps(result.report(), indent=1)


class Campaign:
    """One query: its folder, its driver, its kills."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        spark_home: Path,
        master: str = CLUSTER,
        conf: Mapping[str, str] | None = None,
        launch: Sequence[str] = (),
        checkpoint: str = "",
        mirror: Callable[[str, Path], None] | None = None,
    ) -> None:
        """`launch`: the command that runs a script in place of Python; it gets the script's name and the folder.

        `checkpoint`: where it is, if not in the folder; `mirror` then copies a log of it, by its name, into a folder.
        """
        self.plan, self.folder, self.steps, self.home = plan, folder, folder / "steps", spark_home
        self.launch, self.mirror = launch, mirror
        self.rng = random.Random(plan.seed)
        self.result = Result(plan)
        self.drivers = 0
        self.driver: subprocess.Popen[bytes] | None = None
        self.source, self.sink = SOURCES[plan.source], SINKS[plan.sink]
        self.broker: Broker | None = None
        jars = ",".join(map(str, (*self.source.jars(), *self.sink.jars())))
        self.steps.mkdir(parents=True)
        self.data = stream.rows(plan.seed, plan.files)
        self.source.write(self.data, folder)
        settings = {
            "provider": plan.provider,
            "query": plan.query,
            "source": plan.source,
            "sink": plan.sink,
            "master": master,
            "checkpoint": checkpoint or str(folder / "checkpoint"),
            "conf": {**({"spark.jars": jars} if jars else {}), **self.sink.conf(), **(conf or {})},
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        for strike in plan.strikes:
            if strike.step not in (BETWEEN_BATCHES, BETWEEN_SINK_AND_COMMIT):
                (self.steps / f"{strike.step}.{strike.batch}.armed").touch()

    def run(self) -> Result:
        """Starts the driver, kills what the plan says, waits for the end and compares."""
        began = self.began = time.monotonic()
        brief_options()  # the archive of classes is made here: below spark-submit that would take the driver's own JVM
        with self.source.serving(self.data, self.folder) as self.broker:
            try:
                self._start()
                for strike in self.plan.strikes:
                    self._strike(strike)
                self._finish()
            finally:
                self._end()
        begun = self._begun()
        found, expected = self.sink.committed(self.folder / "out"), self._expected(begun)
        self.result.unread = sum(map(len, self.data.files)) - sum(map(len, begun))
        self.result.rows = found.total()
        self.result.lost = (expected - found).total()
        self.result.twice_or_wrong = max(self.result.twice_or_wrong, (found - expected).total())
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    def _start(self) -> None:
        (self.folder / "jvm.pid").unlink(missing_ok=True)
        self.drivers += 1
        with open(self.folder / f"driver-{self.drivers}.log", "wb") as log:
            self.driver = subprocess.Popen(
                [*self._command(), str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    "SPARK_HOME": str(self.home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )

    def _command(self) -> list[str]:
        if not self.launch:
            return [sys.executable, "-m", f"{__package__}.driver"]
        script = self.folder / "application.py"
        script.write_text(
            f"import sys\nfrom pathlib import Path\nfrom {__package__}.driver import main\n\nmain(Path(sys.argv[1]))\n"
        )
        return [*self.launch, str(script)]

    def _strike(self, strike: Strike) -> None:
        pid = self._victim(strike)
        if pid is None:
            self.result.missed.append(asdict(strike))
        else:
            os.kill(pid, signal.SIGKILL)
            at = {"second": round(time.monotonic() - self.began, 1), "committed": self._commit(strike.batch).exists()}
            self.result.kills.append({**asdict(strike), **at})
        if strike.target == "driver" and pid is not None:
            assert self.driver is not None
            self.driver.kill()
            self.driver.wait()
        self._release(strike, pid)
        self._look()
        if strike.target == "driver" and pid is not None:
            self._start()
        if strike.target == "broker" and pid is not None:
            assert self.broker is not None
            self.broker.kill()
            time.sleep(self.rng.uniform(0.0, 2.0))  # the query goes on without it, or waits
            self.broker.start()

    def _victim(self, strike: Strike) -> int | None:
        """Waits for the step, and finds the process."""
        if strike.step == BETWEEN_BATCHES:
            if not self._await(lambda: self._commit(strike.batch).exists()):
                return None
            time.sleep(self.rng.uniform(0.0, 0.05))
            executors = children(self._jvm(), EXECUTOR)
            executor = self.rng.choice(executors) if executors else None
        elif strike.step == BETWEEN_SINK_AND_COMMIT:
            assert strike.target == "driver"
            return self._jvm() if self._await(lambda: self.sink.has(self.folder / "out", strike.batch)) else None
        else:
            hit = self.steps / f"{strike.step}.{strike.batch}.hit"
            if not self._await(hit.exists):
                return None
            executor = int(hit.read_text())
        if strike.target == "driver":
            return self._jvm()
        if strike.target == "broker":
            assert self.broker is not None
            return self.broker.pid
        if strike.target == "executor" or executor is None:
            return executor
        found: list[int] = []
        self._await(lambda: bool(found.extend(services(executor)) or found))
        return found[0] if found else None

    def _commit(self, batch: int) -> Path:
        return self._log("commits") / str(batch)

    def _jvm(self) -> int:
        return int((self.folder / "jvm.pid").read_text())

    def _release(self, strike: Strike, victim: int | None) -> None:
        """Lets go on what is held up to the batch of the strike. A task may be held at a later one already: it stays so
        until its own strike, or is held again when it is repeated, if it went down with this one.
        """
        for hit in self.steps.glob("*.hit"):
            if int(hit.name.split(".")[1]) <= strike.batch:
                hit.unlink()
            elif strike.target == "driver" or hit.read_text() == str(victim):
                hit.rename(hit.with_suffix(".armed"))

    def _look(self) -> None:
        """Rows that should never be there, or are there too often, show at once.

        The newest batch that had begun may be in the sink or not, and others may follow while it is read.
        """
        before = len(self._begun())
        found, begun = self.sink.committed(self.folder / "out"), self._begun()
        ends = range(max(before - 1, 0), len(begun) + 1)
        wrong = min((found - self._expected(begun[:end])).total() for end in ends)
        self.result.twice_or_wrong = max(self.result.twice_or_wrong, wrong)

    def _begun(self) -> list[tuple[stream.InputRow, ...]]:
        return stream.batches(self.data, self._log("offsets").parent, self.source.rows_before)

    def _expected(self, batches: Sequence[tuple[stream.InputRow, ...]]) -> Counter[stream.OutputRow]:
        """What the sink should hold once these batches are done."""
        return self.sink.table(QUERIES[self.plan.query].emitted(batches))

    def _log(self, name: str) -> Path:
        """One of the logs of the checkpoint, as it is now."""
        log = self.folder / "checkpoint" / name
        if self.mirror is not None:
            self.mirror(name, log)
        return log

    def _await(self, condition: Callable[[], bool]) -> bool:
        """Waits for the condition, and starts the driver again where the query failed."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.driver is not None
            code = self.driver.poll()
            if code == 0 or time.monotonic() > end or len(self.result.failures) > 5:
                return condition()
            if code is not None:
                self._note_failure()
                self._start()
            time.sleep(0.005)
        return True

    def _note_failure(self) -> None:
        said = (self.folder / f"driver-{self.drivers}.log").read_text(errors="replace")
        if OF_THE_CONNECTOR in said and self.plan.source == "kafka":
            self.result.connector_failures += 1
        else:
            self.result.failures.append(said[-3000:])

    def _finish(self) -> None:
        assert self.driver is not None
        if not self._await(lambda: self.driver is not None and self.driver.poll() == 0):
            self.result.failures.append("the query did not end")
        operators = self.folder / "operators.json"
        if operators.exists():
            self.result.operators = json.loads(operators.read_text())

    def _end(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            jvm = self.folder / "jvm.pid"
            if jvm.exists():
                os.kill(int(jvm.read_text()), signal.SIGKILL)
            self.driver.kill()
            self.driver.wait()


def counted(results: list[Result]) -> dict[str, object]:
    """The counts of a report, over all queries."""
    pairs = Counter(f"{k['target']} {k['step']}" for r in results for k in r.kills)
    kinds = Counter(r.plan.query for r in results for _ in r.kills)
    providers = Counter(r.plan.provider for r in results for _ in r.kills)
    sinks = Counter(f"{r.plan.source} to {r.plan.sink}" for r in results for _ in r.kills)
    return {
        "kills": sum(len(r.kills) for r in results),
        "queries": len(results),
        "queries_right": sum(r.right for r in results),
        "kills_by_query": dict(sorted(kinds.items())),
        "kills_by_provider": dict(sorted(providers.items())),
        "kills_by_source_and_sink": dict(sorted(sinks.items())),
        "rows_expected_and_found": sum(r.rows for r in results),
        "rows_lost": sum(r.lost for r in results),
        "rows_twice_or_wrong": sum(r.twice_or_wrong for r in results),
        "steps_not_reached": sum(len(r.missed) for r in results),
        "query_failures": sum(len(r.failures) for r in results),
        "connector_failures": sum(r.connector_failures for r in results),
        "by_target_and_step": dict(sorted(pairs.items())),
    }

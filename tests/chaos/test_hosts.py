"""A cluster of several hosts that lose each other: `pytest -m sweep tests/chaos/test_hosts.py`.

A master, four workers and the driver, each in a network namespace of its own; checkpoint, source and sink in a folder
that all of them reach. In every test rows equal the oracle's, and none is there twice. Each prints for how long its
query stood still (`-rP` shows it).
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from spark_harness import await_until, spark_home, streaming_class

from .campaign import Campaign, Result, assert_right
from .hosts import Hosts, NotAllowed
from .relay import Weather
from .standalone import Standalone, submitted
from .strikes import Plan, Strike

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1200)]

WORKERS = 4
#: Hosts beyond those of the master and the workers; one more worker may join.
DRIVER, OTHER_DRIVER = WORKERS + 2, WORKERS + 3
PATIENCE = 240.0
#: How soon Spark takes a host for lost that says nothing. Its defaults are 120 s, and 60 s for the master.
SOON = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.shuffle.partitions": "4",
}
#: The way to put a file of a checkpoint in its place in which it takes that of another one, as on HDFS.
OVERWRITING = streaming_class("checkpointing", "FileContextBasedCheckpointFileManager")
DAEMONS = "-Dspark.worker.timeout=6 -Dspark.network.timeout=12s -Dspark.decommission.enabled=true"


class Trial:
    """One query on a cluster of hosts."""

    def __init__(self, plan: Plan, hosts: Hosts, folder: Path, conf: Mapping[str, str] | None = None) -> None:
        self.hosts, self.home = hosts, spark_home(folder)
        self.cluster = Standalone(folder, self.home, hosts, DAEMONS)
        self._plan, self._folder, self._conf = plan, folder / "query", {**SOON, **(conf or {})}
        self.moments: dict[str, float] = {}

    def run(self, meanwhile: Callable[[], None]) -> Result:
        """Runs the query to its end, and what happens to its hosts beside it."""
        with self.cluster:
            for _ in range(WORKERS):
                self.cluster.add_worker()
            master = self.cluster.url
            self.query = Campaign(self._plan, self._folder, spark_home=self.home, master=master, conf=self._conf)
            self.drive_from(DRIVER)
            with ThreadPoolExecutor(1) as beside:
                happened = beside.submit(meanwhile)
                result = self.query.run()
                happened.result()
        return result

    def drive_from(self, host: int) -> None:
        """The next driver is started on this host."""
        self.query.launch = [*self.hosts.command(host), *submitted(self.home, self.cluster.url)]

    def arm(self, step: str) -> None:
        (self.query.steps / f"{step}.armed").touch()

    def held_at(self, step: str) -> int:
        """Waits until a task is held at the step, and returns its executor."""
        hit = self.query.steps / f"{step}.hit"
        await_until(hit.exists, step, within=PATIENCE)
        return int(hit.read_text())

    def let_go(self, step: str) -> None:
        (self.query.steps / f"{step}.hit").unlink()

    def await_commit(self, batch: int) -> None:
        await_until((self._commits / str(batch)).exists, f"batch {batch}", within=PATIENCE)

    def moment(self, of: str) -> None:
        """Notes when something happened."""
        self.moments[of] = time.time()

    def report(self) -> None:
        """Prints the seconds from each moment to the next batch that was committed, and between batches as a rule."""
        times = sorted(p.stat().st_mtime for p in self._commits.iterdir() if p.name.isdigit())
        apart = [after - before for before, after in itertools.pairwise(times)]
        stood = {of: next(t for t in times if t > moment) - moment for of, moment in self.moments.items()}
        print(json.dumps({of: round(s, 1) for of, s in {**stood, "a batch": statistics.median(apart)}.items()}))

    @property
    def _commits(self) -> Path:
        return self._folder / "checkpoint" / "commits"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Hosts(OTHER_DRIVER + 1))
        except NotAllowed as e:
            pytest.skip(f"There are no hosts to be had here: {e}.")
        yield made


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_cut_off_and_let_back(provider: str, hosts: Hosts, tmp_path: Path) -> None:
    """A host is cut off while its task is about to commit state, and others do the task and go on. Then its copy of
    the task commits, over what the others have committed; the host is let back; the driver dies, and the next one
    reads all that was written, by either.
    """
    conf = {"spark.sql.streaming.checkpointFileManagerClass": OVERWRITING}
    trial = Trial(Plan(41, provider, "sliding", 10, (Strike(8, "driver", "mid_request"),)), hosts, tmp_path, conf)

    def written() -> dict[Path, int]:
        """The files that tell of the state after batch 3; one that is replaced has another number."""
        found = (tmp_path / "query" / "checkpoint" / "state").rglob("4.*")
        return {p: p.stat().st_ino for p in found if p.suffix in (".delta", ".changelog")}

    def meanwhile() -> None:
        for step in ("between_segment_and_commit.3", "before_request.7"):
            trial.arm(step)
        zombie = trial.held_at("between_segment_and_commit.3")
        worker = trial.cluster.worker_of(zombie)
        hosts.cut(trial.cluster.host(worker))
        trial.moment("a host is cut off")
        trial.await_commit(5)
        before = written()
        trial.arm("after_commit.3")
        trial.let_go("between_segment_and_commit.3")
        assert trial.held_at("after_commit.3") == zombie
        assert sum(written()[file] != number for file, number in before.items()) == 1
        hosts.let_back(trial.cluster.host(worker))
        trial.let_go("after_commit.3")
        trial.held_at("before_request.7")
        await_until(lambda: not alive(zombie), "the end of the executor that was cut off", within=100)
        trial.let_go("before_request.7")

    result = trial.run(meanwhile)
    assert_right(result)
    trial.report()


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_killed_joined_and_decommissioned(provider: str, hosts: Hosts, tmp_path: Path) -> None:
    """A worker dies and another one joins; a worker is decommissioned, which ends its task and repeats none; the driver
    dies and is started on another host.
    """
    plan = Plan(42, provider, "session", 12, (Strike(9, "driver", "after_commit"),))
    # Tasks go to the new worker though others have had their states.
    conf = {"spark.decommission.enabled": "true", "spark.locality.wait": "100ms"}
    trial = Trial(plan, hosts, tmp_path, conf)
    cluster = trial.cluster

    def meanwhile() -> None:
        for step in ("mid_request.2", "before_request.5", "before_request.8"):
            trial.arm(step)
        killed = cluster.worker_of(trial.held_at("mid_request.2"))
        cluster.kill_worker(killed)
        trial.moment("a worker is killed")
        trial.let_go("mid_request.2")
        joined = cluster.add_worker()
        leaving = cluster.worker_of(trial.held_at("before_request.5"))
        await_until(lambda: cluster.has_executor(joined), "an executor on the new worker", within=100)
        again = cluster.tasks_begun_again()
        cluster.decommission(leaving)
        trial.moment("a worker is decommissioned")
        await_until(lambda: cluster.said(leaving, "Decommission worker"), "the worker to know of it")
        trial.let_go("before_request.5")
        await_until(lambda: not cluster.executors(leaving), "the end of the executor", within=PATIENCE)
        trial.held_at("before_request.8")
        assert cluster.tasks_begun_again() == again
        assert cluster.tasks_ran_on(joined)
        trial.drive_from(OTHER_DRIVER)
        trial.moment("the driver goes to another host")
        trial.let_go("before_request.8")

    result = trial.run(meanwhile)
    assert_right(result)
    trial.report()


def test_executors_come_and_go(hosts: Hosts, tmp_path: Path) -> None:
    """Three times Spark takes executors for tasks that wait, and gives them back while one runs: states move along."""
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": str(WORKERS),
    }
    trial = Trial(Plan(43, "rocksdb_changelog", "sliding", 10, ()), hosts, tmp_path, dynamic)
    held = [f"{step}.{batch}" for step, batch in (("mid_request", 2), ("before_request", 5), ("after_reply", 8))]

    def executors() -> set[int]:
        return {pid for n in range(WORKERS) for pid in trial.cluster.executors(n)}

    def meanwhile() -> None:
        for step in held:
            trial.arm(step)
        for step in held:
            kept = trial.held_at(step)
            # The other tasks wait for it, or run on others, which go when they are done.
            await_until(lambda: len(executors()) > 1, "other executors", within=100)
            await_until(lambda: executors() == {kept}, "the end of idle executors", within=100)  # noqa: B023
            trial.moment(f"one executor is left at {step}")
            trial.let_go(step)

    result = trial.run(meanwhile)
    assert_right(result)
    trial.report()


#: A queueing discipline of `tc` by which the queue of a link overflows.
NARROW = ("tbf", "rate", "2mbit", "burst", "4kb", "limit", "16kb")
LATE = Weather(delay=0.040, jitter=0.020, loss=0.02)


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_late_and_lost(provider: str, hosts: Hosts, tmp_path: Path) -> None:
    """Packets come late, out of order or never, to and from every worker, and nothing but time is lost."""
    trial = Trial(Plan(44, provider, "session", 8, ()), hosts, tmp_path)
    try:
        links = [hosts.relay(trial.cluster.host(n)) for n in range(WORKERS)]
    except NotAllowed as e:
        pytest.skip(f"Links cannot be made bad here: {e}.")

    def meanwhile() -> None:
        trial.await_commit(0)
        for link in links:
            link.weather = LATE
        trial.moment("packets are late or lost")

    result = trial.run(meanwhile)
    assert_right(result)
    assert all(link.lost > 0 for link in links)
    print(f"{sum(link.lost for link in links)} packets lost")
    trial.report()


def test_narrow_links(hosts: Hosts, tmp_path: Path) -> None:
    """So little gets through that queues overflow, to and from every worker, and nothing but time is lost."""
    trial = Trial(Plan(44, "hdfs", "session", 8, ()), hosts, tmp_path)
    workers = [trial.cluster.host(n) for n in range(WORKERS)]
    try:
        hosts.disturb(OTHER_DRIVER, *NARROW)
    except NotAllowed as e:
        pytest.skip(f"This kernel cannot make links narrow: {e}.")

    def meanwhile() -> None:
        trial.await_commit(0)
        for host in workers:
            hosts.disturb(host, *NARROW)
        trial.moment("links are narrow")

    result = trial.run(meanwhile)
    assert_right(result)
    lost = sum(hosts.lost(host) for host in workers)
    assert lost > 0
    print(f"{lost} packets lost")
    trial.report()

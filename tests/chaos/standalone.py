"""A Spark standalone cluster on this machine: a master on host 0 and workers on hosts 1, 2, ..., each a process.

Spark starts no speculative copy of a task on the host where the task runs already.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from spark_harness import await_until, children

from gpuwin_spark.jar import jar_path

from .hosts import Loopback, Places

_DEPLOY = "org.apache.spark.deploy"
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """Use as a context manager; all its processes end with it."""

    def __init__(self, folder: Path, home: Path, places: Places | None = None, daemon_options: str = "") -> None:
        """`daemon_options`: more options for the JVMs of master and workers."""
        self._folder, self._home = folder, home
        self._places, self._options = places or Loopback(), f"{_BRIEF} {daemon_options}"
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Standalone:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = self._places.address(0)
        self.url = f"spark://{address}:{port}"
        self._master = self._start("master.Master", 0, "--port", str(port))
        log = self._log("master.Master", 0)
        try:
            await_until(lambda: "New state: ALIVE" in log.read_text(), "the master of the cluster")
        except BaseException:
            self._end()
            raise
        return self

    def add_worker(self) -> int:
        """Starts a worker of one core and returns its number."""
        number = len(self._workers)
        room = ("--cores", "1", "--memory", "1536m", "--work-dir", str(self._work(number)))
        self._workers.append(self._start("worker.Worker", self.host(number), *room, self.url))
        return number

    def host(self, number: int) -> int:
        """The number of the host that a worker is on."""
        return number + 1

    def worker_of(self, executor: int) -> int:
        """The number of the worker whose child the executor is."""
        return next(n for n, w in enumerate(self._workers) if executor in self.executors(n, w.pid))

    def executors(self, number: int, pid: int | None = None) -> list[int]:
        """Process ids of the executors of a worker."""
        return children(pid or self._workers[number].pid, "CoarseGrainedExecutorBackend")

    def kill_worker(self, number: int) -> None:
        """Kill -9: first the worker, so that it cannot start another executor, and then its executors."""
        worker = self._workers[number]
        executors = self.executors(number)
        worker.kill()
        worker.wait()
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def decommission(self, number: int) -> None:
        """What sbin/decommission-worker.sh does. The daemons need `spark.decommission.enabled`."""
        self._workers[number].send_signal(signal.SIGPWR)

    def tasks_ran_on(self, number: int) -> bool:
        """Whether an executor of this worker wrote to its log that it ran a task."""
        return self._executor_said(number, "Running task")

    def has_executor(self, number: int) -> bool:
        """Whether an executor of this worker has come so far that it may be given tasks."""
        return self._executor_said(number, "Successfully registered with driver")

    def _executor_said(self, number: int, words: str) -> bool:
        return any(words in log.read_text() for log in self._work(number).glob("app-*/*/stderr"))

    def tasks_begun_again(self) -> int:
        """How many tasks executors began, by their logs, that others had begun before them."""
        logs = self._folder.glob("work-*/app-*/*/stderr")
        return sum(len(re.findall(r"Running task [\d]+\.[1-9]", log.read_text())) for log in logs)

    def said(self, number: int, words: str) -> bool:
        """Whether a worker has these words in its log."""
        return words in self._log("worker.Worker", self.host(number)).read_text()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                self.kill_worker(number)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    def _work(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def _log(self, name: str, host: int) -> Path:
        return self._folder / f"{name}-{host}.log"

    def _start(self, name: str, host: int, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self._places.command(host), str(self._home / "bin" / "spark-class"), f"{_DEPLOY}.{name}"]
        at = ("--host", self._places.address(host), "--webui-port", "0")
        with open(self._log(name, host), "wb") as log:
            return subprocess.Popen(
                [*command, *at, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_HOME": str(self._home),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": self._options,
                },
            )


def submitted(home: Path, master: str) -> list[str]:
    """spark-submit as docs/production.md has it."""
    submit = [str(home / "bin" / "spark-submit"), "--master", master, "--jars", jar_path()]
    return [
        *submit,
        "--conf",
        "spark.plugins=io.gpuwin.GpuWindowPlugin",
        "--conf",
        f"spark.pyspark.python={sys.executable}",
    ]

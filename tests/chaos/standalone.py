"""A Spark standalone cluster on this machine: a master and workers, each a process with an address of its own.

Workers are on 127.0.0.2, 127.0.0.3, ..., which Spark takes for different hosts; it starts no speculative copy of a task
on the host where the task runs already.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from spark_harness import await_until, children

_DEPLOY = "org.apache.spark.deploy"
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """Use as a context manager; all its processes end with it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder, self._home = folder, home
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Standalone:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start("master.Master", "127.0.0.1", "--host", "127.0.0.1", "--port", str(port))
        await_until(lambda: _listens(port), "the master of the cluster")
        return self

    def add_worker(self) -> int:
        """Starts a worker of one core and returns its number."""
        number = len(self._workers)
        host = f"127.0.0.{number + 2}"
        where = ("--host", host, "--work-dir", str(self._work(number)))
        self._workers.append(self._start("worker.Worker", host, *where, "--cores", "1", "--memory", "1536m", self.url))
        return number

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

    def tasks_ran_on(self, number: int) -> bool:
        """Whether an executor of this worker wrote to its log that it ran a task."""
        return any("Running task" in log.read_text() for log in self._work(number).glob("app-*/*/stderr"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                self.kill_worker(number)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    def _work(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def _start(self, name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}-{host}.log", "wb") as log:
            return subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), f"{_DEPLOY}.{name}", "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_HOME": str(self._home),
                    "SPARK_LOCAL_IP": host,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": _BRIEF,
                },
            )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

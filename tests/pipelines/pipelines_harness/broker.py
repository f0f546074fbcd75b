"""A Kafka broker on the loopback interface: one process, its own controller, everything it writes in one folder.

python tests/pipelines/pipelines_harness/broker.py --port 9092     # one to try things with, until Ctrl-C
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from gpuwin_spark.java import find_java

HOST: Final = "127.0.0.1"
#: Sixteen bytes, as Kafka wants them.
_CLUSTER: Final = base64.urlsafe_b64encode(b"gpuwin pipelines").decode().rstrip("=")
_BRIEF: Final = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
#: Internal topics are as small as they can be, since all are on one broker. Nothing is removed for its age: records
#: have the timestamps that their producer gives them, and those of tests are long past. A broker that
#: was killed is not taken back before its session ends.
_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller}
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=2097152
num.network.threads=2
num.io.threads=2
"""


class BrokerFailed(Exception):
    """A broker that did not start, with the end of what it said."""


class Broker:
    """A broker of Kafka in KRaft mode, which may be stopped and started again on its data.

    Use as a context manager; the process ends with it.
    """

    def __init__(self, jars: tuple[Path, ...], folder: Path, port: int | None = None) -> None:
        """`folder` gets its data and its log. Without a port it takes one that is free."""
        self._classes, self._folder = ":".join(map(str, jars)), folder
        self._port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"

    @property
    def address(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process, which must be running."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Broker:
        self._folder.mkdir(parents=True, exist_ok=True)
        names = {"host": HOST, "port": self._port, "controller": free_port(), "logs": self._folder / "data"}
        self._properties.write_text(_PROPERTIES.format(**names))
        command = self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerFailed(f"the storage of a Kafka broker could not be formatted:\n{done.stdout}{done.stderr}")
        self.start()
        return self

    def start(self, within: float = 90.0) -> None:
        """Starts the process, and waits until it takes connections."""
        if self._process is not None:
            raise RuntimeError("the broker runs already")
        with open(self._log, "ab") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + within
        while not listens(self._port):
            if self._process.poll() is not None or time.monotonic() > end:
                code = self._process.poll()
                self.kill()
                how = f"did not listen within {within:.0f} s" if code is None else f"ended with {code}"
                raise BrokerFailed(f"the Kafka broker {how}:\n{self.said()}")
            time.sleep(0.05)

    def stop(self, within: float = 30.0) -> None:
        """Has the broker hand over what it holds and end, as an operator does."""
        assert self._process is not None
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        self.kill()

    def kill(self) -> None:
        """Ends the process as a crash does. What it had written is there."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait(self) -> None:
        """Waits for the process to end by itself."""
        assert self._process is not None
        self._process.wait()

    def said(self, letters: int = 4000) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-letters:]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [str(find_java().executable), *_BRIEF, _QUIET, "-cp", self._classes, main, *arguments]


def free_port() -> int:
    """A port of the loopback interface that nobody has."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a process takes connections at the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from pipelines_harness.maven import broker_jars

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--folder", type=Path, help="for its data; without it, one that goes with the broker")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuwin-kafka-")))
        broker = stack.enter_context(Broker(broker_jars(), folder, options.port))
        print(f"A Kafka broker listens on {broker.address}. Ctrl-C ends it.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            broker.wait()


if __name__ == "__main__":
    main()

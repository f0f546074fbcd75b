"""The processes of a Spark application: the JVM, and the device service that is its child."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from brief_java import brief_options
from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")


def jvm_pid(spark: SparkSession) -> int:
    """The process id of the driver, which in local mode is the executor as well."""
    assert spark._jvm is not None
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def services(jvm: int) -> list[int]:
    """Process ids of the device services that are children of the JVM."""
    return children(jvm, "gpuwin_spark.service")


def children(of: int, word: str) -> list[int]:
    """Process ids of the children of a process whose command line has the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == of and word.encode() in command:
            found.append(int(entry.name))
    return found


def service(spark: SparkSession, *, within: float = 60.0) -> int:
    """Waits for the device service of this session and returns its process id."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        running = services(jvm_pid(spark))
        if len(running) == 1:
            return running[0]
        time.sleep(0.05)
    raise AssertionError(f"there should be one device service, and there are {services(jvm_pid(spark))}")


def is_ready(pid: int) -> bool:
    """Whether the service has opened its socket, and so may have work."""
    try:
        return socket_of(pid).exists()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False


def socket_of(pid: int) -> Path:
    """The path of the service's socket, out of its command line; ValueError where it has none yet."""
    words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    return Path(words[words.index(b"--socket") + 1].decode())


def kill(pid: int) -> None:
    """Kill -9, and waits until the process is gone."""
    os.kill(pid, signal.SIGKILL)
    await_until(lambda: not _alive(pid), f"the end of process {pid}")


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in (Path("/proc") / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def service_with(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """While it lasts, device services of the application are started with other settings; none runs at its begin."""
    assert spark._jvm is not None
    own, none = spark.sparkContext._jsc.sc().conf(), spark._jvm.PythonUtils.toSeq([])
    changed = own.clone()
    for key, value in conf.items():
        changed.set(key, value)
    devices = spark._jvm.org.apache.spark.sql.gpuwin.DeviceService
    devices.configure(changed, none)
    try:
        _kill_services(spark)
        yield
    finally:
        devices.configure(own, none)
        _kill_services(spark)
        devices.warmUp()


def _kill_services(spark: SparkSession) -> None:
    for pid in services(jvm_pid(spark)):
        kill(pid)


def await_until(condition: Callable[[], bool], what: str, *, within: float = 60.0) -> None:
    """Waits until the condition holds, and fails when it does not within some seconds."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {within:.0f} s for {what}")
        time.sleep(0.02)


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of a module in a fresh Python process, with a Spark application and a JVM of its own."""
    brief_options()  # the archive of classes is made here, whatever environment the function makes for itself
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()

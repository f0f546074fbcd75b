"""The folder of the device service's socket: the first that can be written to and is short enough, or an error."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from brief_java import brief_options
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_harness import (
    Case,
    Recording,
    Stream,
    StreamSpec,
    assert_equal,
    isolated,
    run,
    service,
    service_with,
    socket_of,
    start_session,
    write,
)

pytestmark = pytest.mark.long

CASE = Case("sliding", "append", "string", "counts", trigger="available", partitions="2")
KEY = "spark.gpuwin.socket.folder"
CLONE_NEWNS = 0x00020000


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=3, empty=None), tmp_path_factory.mktemp("socket") / "stream")


def made_in(spark: SparkSession, places: list[Path]) -> Path:
    """The path of a socket, in a folder that is new and the plugin's choice."""
    assert spark._jvm is not None
    gpuwin = spark._jvm.org.apache.spark.sql.gpuwin
    place = getattr(gpuwin, "SocketFolder$Place")
    listed = [place(str(p), "a test") for p in places]
    return Path(str(gpuwin.SocketFolder.create(_seq(spark, listed))))


def _seq(spark: SparkSession, items: list[Any]) -> Any:
    return spark._jvm.PythonUtils.toSeq(items)


@pytest.fixture
def unusable(tmp_path: Path) -> list[Path]:
    """A path that is too long, one that is not there, a file, and a folder in which not even root can make one."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    return [long, Path("/nowhere"), Path("/dev/null"), Path("/proc")]


@pytest.fixture
def short() -> Any:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_first_place_that_takes_a_socket(spark: SparkSession, unusable: list[Path], short: Path) -> None:
    other = short / "other"
    other.mkdir()
    socket = made_in(spark, [*unusable, short, other])
    assert socket.parent.parent == short
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert not list(socket.parent.iterdir()), "the socket is the service's to make"
    assert made_in(spark, [short]).parent != socket.parent
    assert not list(other.iterdir())


def test_longest_place(spark: SparkSession, short: Path) -> None:
    """A path of the length that messages name is taken, and leaves a path that every system takes."""
    most = spark._jvm.org.apache.spark.sql.gpuwin.SocketFolder.LongestPlace()
    fits = short / ("x" * (most - len(str(short)) - 1))
    fits.mkdir()
    assert len(os.fsencode(made_in(spark, [fits]))) <= 100
    longer = short / ("x" * (most - len(str(short))))
    longer.mkdir()
    with pytest.raises(PySparkException, match=f"has {most + 1} bytes, and {most} is the most"):
        made_in(spark, [longer])
    assert not list(longer.iterdir())


def test_no_place_at_all(spark: SparkSession, unusable: list[Path]) -> None:
    with pytest.raises(PySparkException) as refused:
        made_in(spark, unusable)
    reasons = [
        "is the most that a Unix socket leaves",
        "it does not exist",
        "it is not a folder",
        "it cannot be written to",
    ]
    for place, reason in zip(unusable, reasons, strict=True):
        said = str(refused.value).split(f"{place} (a test): ")[1].split(";")[0]
        assert reason in said
    assert f"Set {KEY} to a folder" in str(refused.value)


def test_places_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    assert spark._jvm is not None
    jvm = spark._jvm
    conf = jvm.org.apache.spark.SparkConf(False)
    conf.set("spark.local.dir", f"{tmp_path}/a,{tmp_path}/b")

    def places() -> list[str]:
        found = jvm.org.apache.spark.sql.gpuwin.SocketFolder.places(conf)
        return [str(found.apply(i).folder()) for i in range(found.length())]

    everywhere = places()
    temporary = jvm.java.lang.System.getProperty("java.io.tmpdir")
    order = [temporary, f"{tmp_path}/a", f"{tmp_path}/b", f"/run/user/{os.getuid()}", "/dev/shm"]
    assert [p for p in everywhere if p in order] == order
    assert "/tmp" in everywhere
    conf.set(KEY, str(tmp_path))
    assert places() == [str(tmp_path)], "what is configured, and nothing else"


def test_configured_folder_that_cannot_be_written(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    with service_with(spark, {KEY: "/proc"}):
        failed = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert failed.error is not None
    assert f"/proc ({KEY}): it cannot be written to" in failed.error.message
    assert "/dev/shm" not in failed.error.message


def _query_where_little_can_be_written(folder: str, stream: Stream) -> tuple[Recording, str] | None:
    """With a long ``java.io.tmpdir``, and a ``/tmp`` that is read-only; None where no file system can be mounted."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return None
    mounts = f"""
        mount --make-rprivate / &&
        mount --bind /tmp /tmp && mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro /tmp
    """
    if subprocess.run(["sh", "-c", mounts], capture_output=True, check=False).returncode != 0:
        return None
    temporary = Path(folder) / "/".join(["of-a-container-of-yarn"] * 4)
    temporary.mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    options = f"-Djava.io.tmpdir={temporary} {brief_options()}"
    spark = start_session(Path(folder), conf={"spark.driver.extraJavaOptions": options})
    try:
        device = run(spark, CASE.query, stream, CASE.how, Path(folder) / "device", enabled=True)
        return device, "" if device.error else str(socket_of(service(spark)))
    finally:
        spark.stop()


def test_query_where_little_can_be_written(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    done = isolated(_query_where_little_can_be_written, str(tmp_path), stream)
    if done is None:
        pytest.skip("file systems cannot be mounted here")
    device, socket = done
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    assert_equal(plain, device)
    assert not socket.startswith(str(tmp_path))

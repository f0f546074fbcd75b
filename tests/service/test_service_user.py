"""A service whose user does not own the environment that gpuwin is installed in, as in images and on clusters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_protocol import TOKEN
from test_service_memory import batch

from gpuwin_spark.service import protocol

NOBODY = 65534
#: May read what it does not own, so that it finds a Python that is root's, and may write nothing of it.
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search",
]  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of that user, outside of pytest's, which is for root only."""
    made = Path(tempfile.mkdtemp(prefix="gpuwin-user-"))
    os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a service as another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv, of util-linux, is not on this machine")
@pytest.mark.parametrize("home", ["writable", "not there"])
def test_the_service_of_another_user_works(home: str, folder: Path) -> None:
    probe = subprocess.run([*AS_NOBODY, sys.executable, "-c", "pass"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"another user cannot run {sys.executable} here: {probe.stderr.strip()}")
    given = {"HOME": str(folder) if home == "writable" else "/nonexistent", "PATH": os.environ["PATH"]}
    passed_on = {k: v for k, v in os.environ.items() if k.startswith(("PYTHON", "LANG", "LC_"))}
    command = [*AS_NOBODY, sys.executable, "-m", "gpuwin_spark.service", "--socket", str(folder / "s")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env={**passed_on, **given}, cwd="/", **pipes)  # type: ignore[call-overload]
    process.stdin.write(TOKEN.encode() + b"\n")
    process.stdin.flush()
    ready = process.stdout.readline()
    try:
        assert ready == b"ready\n", process.communicate(timeout=30)[1].decode()
        assert os.stat(f"/proc/{process.pid}").st_uid == NOBODY
        kind, said = batch(folder / "s", 100)
        assert kind == protocol.DONE, said
    finally:
        process.communicate(timeout=30)

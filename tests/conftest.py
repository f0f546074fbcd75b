"""What all tests share: Numba's simulator, the markers, and an environment that no test leaves changed.

Without a GPU the CUDA kernels are tested in the simulator, which has to be chosen before Numba is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import chosen
from simulator import run_threads_in_turn

#: What pytest sets, and what PySpark and the first session of a process do, which all its tests share.
_OF_SESSIONS = ("PYTEST_CURRENT_TEST", "PYSPARK_PYTHON", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")

_STARTED = time.monotonic()

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--start-within", type=float, metavar="SECONDS", help="skip tests that would start later; it is said how many"
    )


def pytest_configure(config: pytest.Config) -> None:
    run_threads_in_turn()
    config.addinivalue_line("markers", "sweep: a larger randomised sweep, run by `pytest -m sweep` only")
    config.addinivalue_line(
        "markers", "long: whole processes, minutes of them in a file; run by `pytest -m long`, by its path, and by CI"
    )
    config.addinivalue_line(
        "markers", "pipelines: gpuwin between systems that are really there, such as a Kafka broker; as long ones"
    )
    everything = config.args_source is config.ArgsSource.TESTPATHS
    config.option.markexpr = chosen(config.option.markexpr, everything)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test for which no time is left: CI has so many minutes, also on a machine that others slow down."""
    seconds = item.config.getoption("start_within")
    if seconds is not None and time.monotonic() - _STARTED > seconds:
        pytest.skip("no time was left to start it")


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Fails a test that leaves variables of the environment changed: those after it would run on another Java, say."""
    before = _environment()
    yield
    after = _environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    assert not changed, f"the test left these variables of the environment changed: {', '.join(changed)}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_SESSIONS}

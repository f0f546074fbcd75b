"""What all tests share: Numba's simulator, and the markers.

Without a GPU the CUDA kernels are tested in the simulator, which has to be chosen before Numba is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from marks import chosen
from simulator import run_threads_in_turn

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


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

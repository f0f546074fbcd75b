"""What all tests share: Numba's simulator, and the markers.

Without a GPU the CUDA kernels are tested in the simulator, which has to be chosen before Numba is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from simulator import run_threads_in_turn

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


def pytest_configure(config: pytest.Config) -> None:
    run_threads_in_turn()
    config.addinivalue_line("markers", "sweep: a larger randomised sweep, run by `pytest -m sweep` only")
    config.addinivalue_line(
        "markers", "pipelines: gpuwin between systems that are really there, such as a Kafka broker"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "sweep" not in (config.option.markexpr or ""):
        left_out = [i for i in items if i.get_closest_marker("sweep") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [i for i in items if i not in left_out]

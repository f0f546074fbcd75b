"""Place where Numba keeps the machine code of the kernels, and what happens where it cannot.

It is beside their source, else in the user's cache folder. Where Numba can write to neither, as in a container whose
user owns no folder, it does not compile at all: then code is kept in the system's temporary folder. A file that cannot
be read is compiled anew, and one that cannot be written, as on a full disk, is done without.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import config
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

log = logging.getLogger("gpuwin")


def find_place() -> None:
    """Search for a place, so that functions with ``cache=True`` can be compiled."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        config.CACHE_DIR = str(temporary_folder())
        log.warning(
            "neither the folder of gpuwin nor one of the user's can be written to: kernels are compiled into %s",
            config.CACHE_DIR,
        )


def njit(**options: Any) -> Callable[[Any], Any]:
    """`numba.njit`, but that with ``cache=True`` a file of the cache that is broken, or cannot be written, stops
    nothing.
    """
    kept = options.pop("cache", False)

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        if kept and isinstance(dispatcher, Dispatcher):  # not where NUMBA_DISABLE_JIT says to compile nothing
            dispatcher._cache = _CodeCache(function)  # type: ignore[attr-defined]
        return dispatcher

    return compiled


class GoingOn:
    """Part of a cache of Numba's, for the CPU or CUDA, that stops nothing; to be named before the cache itself."""

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[misc]
        except Exception as error:  # whatever pickle makes of half a file
            log.warning(
                "the machine code of %s in %s cannot be read (%s: %s), and is compiled anew",
                self._name, self.cache_path, type(error).__name__, error,
            )  # fmt: skip
            self._changed(self.flush)
            return None

    def save_overload(self: Any, sig: Any, data: Any) -> None:
        self._changed(lambda: super(GoingOn, self).save_overload(sig, data))  # type: ignore[misc]

    def _changed(self: Any, change: Callable[[], None]) -> None:
        try:
            change()
        except OSError as error:
            _say_once(self.cache_path, error.strerror or str(error))


class _CodeCache(GoingOn, FunctionCache):  # type: ignore[misc]
    """Machine code of a kernel, for each signature, on disk."""


@cache
def _say_once(folder: str, reason: str) -> None:
    log.warning(
        "no machine code can be kept in %s (%s): kernels are compiled again in each process; "
        "make room there, or set NUMBA_CACHE_DIR to a folder that has some",
        folder, reason,
    )  # fmt: skip


def _nothing() -> None:
    pass


def temporary_folder() -> Path:
    """Folder within the system's temporary one that is nobody else's, since what lies in it is run: the user's own, or
    one for this process alone. It is looked at each time: a cleaner may take it away, and another user put his there.
    """
    own = Path(tempfile.gettempdir()) / f"gpuwin-kernels-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return own
    except OSError:
        pass
    return _alone()


@cache
def _alone() -> Path:
    alone = Path(tempfile.mkdtemp(prefix="gpuwin-kernels-"))
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return alone

"""Where Numba keeps the machine code of the kernels.

Beside their source, else in the user's cache folder. Where it can write to neither, as in a container whose user owns
no folder, it does not compile at all: then code is kept in the system's temporary folder.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from numba import config, njit

log = logging.getLogger("gpuwin")


def find_place() -> None:
    """Sees to it that functions with ``cache=True`` can be compiled."""
    try:
        njit(cache=True)(_nothing)
    except RuntimeError:
        config.CACHE_DIR = str(_temporary())
        log.warning(
            "neither the folder of gpuwin nor one of the user's can be written to: kernels are compiled into %s",
            config.CACHE_DIR,
        )


def _nothing() -> None:
    pass


def _temporary() -> Path:
    """A folder that is nobody else's, since what lies in it is run: the user's own, or one for this process alone."""
    own = Path(tempfile.gettempdir()) / f"gpuwin-kernels-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return own
    except OSError:
        pass
    alone = Path(tempfile.mkdtemp(prefix="gpuwin-kernels-"))
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return alone

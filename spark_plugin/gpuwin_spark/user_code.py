"""A user's accumulations on their way from Spark's driver to the device services.

They are code, and go the way of all code of a user: as a file that Spark distributes, like a Python file of a job.
Over the socket travels only which file, by its digest. A service reads such files in the one folder that its executor
named when it started it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpuwin.vocabulary.accumulations import Accumulation

#: Environment variable with the folder to which Spark brings the files of a job; `DeviceService.scala` sets it.
FOLDER: Final = "GPUWIN_SPARK_FILES"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class UserCodeError(Exception):
    """The file with a user's accumulations is missing, or is not the one that the driver wrote."""


def code_of(accumulations: Sequence[Accumulation]) -> tuple[str, bytes, str]:
    """The accumulations as a file: its name, what is in it, and the digest of that."""
    from numba import cloudpickle

    with _by_value(cloudpickle, accumulations):
        data = cloudpickle.dumps(tuple(accumulations))
    digest = hashlib.sha256(data).hexdigest()
    return _name(digest), data, digest


@functools.lru_cache(maxsize=64)
def read_code(digest: str) -> tuple[Accumulation, ...]:
    """The accumulations in the file with this digest, of the folder that the executor named.

    Raises:
        UserCodeError: it is not there, or is another file, or the digest is none.
    """
    folder = os.environ.get(FOLDER)
    if folder is None or _DIGEST.fullmatch(digest) is None:
        raise UserCodeError("this service was told no folder with code of the user, or no digest of a file in it")
    try:
        data = (Path(folder) / _name(digest)).read_bytes()
    except OSError as e:
        raise UserCodeError("the file with the user's accumulations is not on this executor") from e
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserCodeError("the file with the user's accumulations is not the one that the driver wrote")
    found = pickle.loads(data)
    if not isinstance(found, tuple) or not all(isinstance(a, Accumulation) for a in found):
        raise UserCodeError("the file with the user's accumulations holds something else")
    return found


def _name(digest: str) -> str:
    return f"gpuwin-accumulations-{digest}.pickle"


@contextmanager
def _by_value(cloudpickle: Any, accumulations: Sequence[Accumulation]) -> Iterator[None]:
    """The modules that the user's functions were written in travel with them: an executor need not have them."""
    names = {getattr(f, "__module__", None) for a in accumulations for f in (a.add, a.merge, a.result)}
    modules = [sys.modules[n] for n in names if n in sys.modules and n != "__main__"]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)

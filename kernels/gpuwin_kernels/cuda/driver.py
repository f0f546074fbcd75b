"""The library of NVIDIA's driver: whether it is on this machine, found out without `numba.cuda`, whose import takes
0.2 s and 70 MiB of each process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from numba import config

MISSING = "no NVIDIA driver was found on this machine (libcuda)"

#: Where Numba looks for it on Linux, and what makes it look elsewhere.
_PLACES = ("libcuda.so", "libcuda.so.1", "/usr/lib/libcuda.so", "/usr/lib/libcuda.so.1", "/usr/lib64/libcuda.so",
           "/usr/lib64/libcuda.so.1")  # fmt: skip
_ELSEWHERE = "NUMBA_CUDA_DRIVER"


@cache
def surely_missing() -> bool:
    """Whether nothing can run on a GPU here, since the driver's library cannot be loaded. False for Numba's simulator,
    and where only Numba can tell.
    """
    if config.ENABLE_CUDASIM or sys.platform != "linux" or _ELSEWHERE in os.environ:
        return False
    return not any(_loads(place) for place in _PLACES)


def _loads(place: str) -> bool:
    try:
        ctypes.CDLL(place)
    except OSError as error:
        # A library that is there and does not load is Numba's to speak of.
        return os.path.isfile(place) or "cannot open shared object file" not in str(error)
    return True

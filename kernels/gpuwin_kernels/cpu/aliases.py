"""Alias of an array that may not be written, which kernels take for one that may.

Numba compiles a kernel once more for arrays that are read-only, as those over Arrow's buffers are. A generated kernel
takes seconds for that, and one that only reads its rows has nothing to gain.
"""

from __future__ import annotations

import numpy as np


class _Memory:
    """Memory of an array, as NumPy asks for it. An array over it keeps the one that it was made of."""

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


def alias_of(array: np.ndarray) -> np.ndarray:
    """The array, in the same memory, as one that may be written, though nobody must; of any shape and dtype."""
    if array.flags.writeable or not array.size:
        return array
    return np.asarray(_Memory(array))

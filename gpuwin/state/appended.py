"""Array that values are appended to, without a copy of all of it each time."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.kept_memory import empty


class Appended:
    """Values of one dtype, in memory that at least doubles when it is full."""

    def __init__(self, values: np.ndarray) -> None:
        self._room = values
        self._count = len(values)

    def append(self, values: np.ndarray) -> None:
        """Puts values (of the same dtype) behind the others."""
        count = self._count + len(values)
        if count > len(self._room):
            larger = empty(max(count, 2 * len(self._room)), self._room.dtype)
            larger[: self._count] = self.values
            self._room = larger
        self._room[self._count : count] = values
        self._count = count

    @property
    def values(self) -> np.ndarray:
        """All values, in order."""
        return self._room[: self._count]

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._room.nbytes


__all__ = ["Appended"]

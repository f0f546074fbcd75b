"""Tables of zeros that are handed back as zeros: a small batch should not pay for fresh memory."""

from __future__ import annotations

from threading import Lock

import numpy as np

from gpuwin_kernels import tuning

_free: list[np.ndarray] = []
_lock = Lock()


def borrow(words: int) -> np.ndarray:
    """int64 zeros, at least this many."""
    with _lock:
        fits = [i for i, table in enumerate(_free) if len(table) >= words]
        if fits:
            return _free.pop(min(fits, key=lambda i: len(_free[i])))
    return np.zeros(max(words, 1 << 12), np.int64)


def give_back(table: np.ndarray) -> None:
    """`table` must be all zeros again."""
    if table.nbytes > tuning.SCRATCH_BYTES:
        return
    with _lock:
        _free.append(table)
        _free.sort(key=len)
        while sum(t.nbytes for t in _free) > tuning.SCRATCH_BYTES or len(_free) > 2 * tuning.threads():
            _free.pop(0)

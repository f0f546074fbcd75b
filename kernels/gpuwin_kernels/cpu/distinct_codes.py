"""Distinct codes of keys, ascending: by a table of all codes, or by a sort where rows are few.

Codes count from zero, so `np.unique`, which hashes integers of any size, takes ten to a hundred times as long.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

_TABLE = 16  # codes a row, up to which a table of all of them costs less than a sort


def distinct_codes(*codes: np.ndarray) -> np.ndarray:
    """Codes of all the arrays (int32[n] each, none negative), each once, ascending, int32."""
    code = codes[0] if len(codes) == 1 else np.concatenate(codes or (np.empty(0, np.int32),))
    if not len(code):
        return code
    most = int(code.max())
    if most > _TABLE * len(code):
        return _without_repeats(np.sort(code))  # type: ignore[no-any-return]
    return _marked(code, most)  # type: ignore[no-any-return]


def numbered_codes(code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`distinct_codes`, and the place of each code among them, int32[n]."""
    distinct = distinct_codes(code)
    if not len(code) or int(distinct[-1]) > _TABLE * len(code):
        return distinct, np.searchsorted(distinct, code).astype(np.int32)
    place = np.empty(int(distinct[-1]) + 1, np.int32)
    place[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, place.take(code)


@njit(nogil=True, cache=True)
def _marked(code, most):  # type: ignore[no-untyped-def]
    seen = np.zeros(most + 1, np.uint8)
    for c in code:
        seen[c] = 1
    found = 0
    for c in range(most + 1):
        found += seen[c]
    out = np.empty(found + 1, np.int32)
    k = 0
    for c in range(most + 1):
        out[k] = c
        k += seen[c]
    return out[:k]


@njit(nogil=True, cache=True)
def _without_repeats(code):  # type: ignore[no-untyped-def]
    out = np.empty(code.shape[0], np.int32)
    out[0] = code[0]
    k = 1
    for i in range(1, code.shape[0]):
        if code[i] != code[i - 1]:
            out[k] = code[i]
            k += 1
    return out[:k]

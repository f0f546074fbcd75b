"""Number of (key, window) pairs that some cells lie in, where windows share panes."""

from __future__ import annotations

from gpuwin_kernels.cpu.code_cache import njit


@njit(nogil=True, cache=True)
def count_windows(code, start, end, first, last, upto):  # type: ignore[no-untyped-def]
    """Number of windows that have a cell, counted once a key.

    Cells lie in stretches of one pane each, which come in order of the panes: stretch s is code[start[s]:end[s]]
    (int32; int64 each) in the windows first[s] to last[s] (int64). `upto` int64[codes]: the last window of each key
    that is counted, or is not to be; it moves on. So a window is counted with the first of its panes.
    """
    n = 0
    for s in range(first.shape[0]):
        behind = first[s] - 1
        for i in range(start[s], end[s]):
            c = code[i]
            if last[s] > upto[c]:
                n += last[s] - max(behind, upto[c])
                upto[c] = last[s]
    return n

"""Every number that decides which path a kernel takes. Measured with benchmarks/kernels_cpu.py; they change speed,
never results.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

SPLIT_ROWS: Final = 1 << 16
"""Rows from which a second thread pays: handing over a part costs about 40 microseconds."""

COPY_BYTES: Final = 1 << 21
"""Bytes of memory that is filled for the device from which a second thread pays. Not measured on a GPU machine yet."""

FIRST_KEYS: Final = 1 << 14
"""Rows of a batch whose keys are entered by one thread before the rest is looked up by all."""

CLAIMED_KEYS: Final = 1 << 13
"""Strings without a code from which they are entered by all threads."""

FOUND_ROWS: Final = 1 << 16
"""Rows from which their codes are looked up as they are aggregated, and not written down before."""

DIRECT_SPREAD: Final = 8
"""Integer keys are found by direct address while their range is at most this many times their number and that of the
rows that may bring some ..."""

DIRECT_KEYS: Final = 24
"""... or this many times the number of those that are there or all but sure to come: a hash table takes 32 to 128 bytes
a key, and is slower ..."""

DIRECT_ANYWAY: Final = 1 << 17
"""... or at most this ..."""

DIRECT_MOST: Final = 1 << 26
"""... and never more than this (256 MB of int32)."""

TIER_FACTOR: Final = 2
"""A run is merged into the next larger one unless that is this many times as large."""

TIER_RUNS: Final = 16
"""Runs of about one size without a pane in common stay apart until there are so many, if only their ends are read."""

APART_CELLS: Final = 1 << 14
"""Cells of runs without a pane in common from which they stay apart, rather than be copied to stand in one array."""

MERGE_AT_ONCE: Final = 1 << 12
"""Cells of two runs from which a merge of all columns at once pays for the kernel that has to be compiled."""

BATCH_ROWS: Final = 1 << 20
"""A batch of at least twice as many rows is cut into parts of this many, where windows close between them."""

LOG_ROWS: Final = 1 << 17
"""Rows of small batches wait until there are so many, and are then aggregated by all threads ..."""

LOG_PER_KEY: Final = 4
"""... and so many for each key that is known: of fewer, few share a cell, which would be merged later ..."""

LOG_BYTES: Final = 1 << 26
"""... while they take no more memory than this, ..."""

LOG_BATCHES: Final = 1 << 8
"""... or until they are from so many batches ..."""

LOG_BATCH: Final = 1 << 15
"""... none of which has more rows than this, or than there are keys: a larger batch is aggregated by itself."""

TABLE_SESSIONS: Final = 1 << 15
"""Open sessions up to which a batch copies them all, and no more than twice as many after it ..."""

TABLE_CODES: Final = 8
"""... where the dictionary has at most this many keys for each of them, and for each row."""

UNTABLED: Final = 1 << 8
"""Batches that follow one whose rows had too little order for that, and are not looked at."""

SCAN_COST: Final = 1
"""Cost of reading one cell of a stretch, in units of ..."""

LOOKUP_COST: Final = 12
"""... which looking a key up in a stretch costs this many."""

SCRATCH_BYTES: Final = 1 << 26
"""Tables of zeros kept between batches, all together."""

KEPT_FROM: Final = 1 << 18
"""Bytes of an array from which its memory is kept for the next: below, fresh memory costs no more than a call ..."""

KEPT_BYTES: Final = 1 << 31
"""... of which no more is kept that nothing uses ..."""

KEPT_SHARE: Final = 16
"""... nor than this part of the machine's memory ..."""

KEPT_SECONDS: Final = 10.0
"""... nor longer than this, or twice."""

DENSE_SPARSITY: Final = 8
"""A dense [pane, key] table is used up to this many records per row (clearing and reading an unused record is cheap,
not free) ...
"""

DENSE_ANYWAY: Final = 1 << 12
"""... or up to this many records ..."""

DENSE_NEAR: Final = 1 << 22
"""... and, where it takes more bytes than this and so lies beyond the caches, ..."""

DENSE_SPARSITY_FAR: Final = 2
"""... only up to this many records per row, ..."""

DENSE_BYTES: Final = 1 << 25
"""... while it takes no more memory than this for each thread, ..."""

DENSE_FULL: Final = 2
"""... or than so many times that where there are two rows for each record: to part the rows takes more memory then, and
more time."""

CROWDED_CELL: Final = 64
"""Rows of a cell, on average, from which those that no aggregate looks at are looked for: with few there is little to
gain, and it costs a sort."""

PASS_COLUMNS: Final = 8
"""Partial columns that one pass over the rows takes. At most 62: a record has a flag for each in one word."""

PART_BYTES: Final = 1 << 18
"""Partitions of sparse rows are cut so that the table of one takes a quarter of a core's second-level cache."""

PART_SPARSITY: Final = 256
"""Partitioning is given up for a sort from this many records per row: a bit of each is read."""

SORT_ROWS: Final = 1 << 14
"""Fewer sparse rows than this are sorted."""

MOST_PARTS: Final = 1 << 13
"""Partitions of one pass."""

JOIN_MEMBERS: Final = 1 << 20
"""Rows of both sides of a join, each counted once for each closing window that it is in, that are listed at a time."""


CUDA_SHARED_BYTES: Final = 48 << 10
"""A table of cells of no more bytes is kept by each block in shared memory: what a block gets without asking."""

CUDA_DENSE_SPARSITY: Final = 8
"""A dense [pane, key] table on the device is used up to this many records per row ..."""

CUDA_DENSE_BYTES: Final = 4 << 30
"""... while it takes no more memory than this. Neither number has been measured on a GPU yet."""


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def threads() -> int:
    """Threads for one call: `$GPUWIN_THREADS`, or the CPUs that this process may run on, 8 at most. Raises ValueError
    for a variable that is no number of threads.
    """
    wanted = os.environ.get("GPUWIN_THREADS")
    if wanted:
        if not wanted.isdecimal() or not int(wanted):
            raise ValueError(f"GPUWIN_THREADS is {wanted!r}: set it to a whole number from 1 on, or unset it")
        return int(wanted)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, 8)

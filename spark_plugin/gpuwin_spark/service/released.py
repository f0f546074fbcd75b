"""Memory of states that are gone, back to the system.

Allocators keep what was freed for the next one who asks. In a service that has let go of a large state that may be
nobody for hours, while other processes of the machine are short of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

import pyarrow as pa


def return_to_system() -> None:
    """Returns free memory, as far as the allocators of Arrow and of the C library can."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc's; other libraries have none, or need none
        ctypes.CDLL(None).malloc_trim(0)

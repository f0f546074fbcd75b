"""Memory of states that are gone, back to the system.

Allocators keep what was freed for the next one who asks. In a service that has let go of a large state that may be
nobody for hours, while other processes of the machine are short of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import pyarrow as pa

from gpuwin_kernels.cpu import kept_memory


def return_to_system() -> None:
    """Returns free memory, as far as the allocators of arrays, of Arrow, of the C library and of the device can."""
    gc.collect()
    kept_memory.release()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc's; other libraries have none, or need none
        ctypes.CDLL(None).malloc_trim(0)
    device = sys.modules.get("gpuwin_kernels.cuda.runtime")  # where none was used, none is looked for
    if device is not None and device.why_not() is None:
        device.release_unused()

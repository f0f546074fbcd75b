"""How much one call may visit or hand out: what this machine's memory can hold at all."""

from __future__ import annotations

import os

from gpuwin.errors import LimitExceeded


def physical_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(windows: int, bytes_each: int) -> None:
    """Raises gw.LimitExceeded where so many windows at once, of so many bytes each, exceed the memory of the machine.

    The alternative is that the system ends the process.
    """
    memory = physical_memory()
    if windows * bytes_each > memory:
        raise LimitExceeded(
            f"{windows:,} windows or more at once take more memory than this machine has ({memory:,} bytes); "
            "nothing was applied. Is a time far off, or the slide short for the size? Otherwise hand in fewer rows at "
            "a time, use gw.OnChange(), or partition the stream by key"
        )

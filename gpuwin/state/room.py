"""Limit of the windows that one call may visit or emit: the memory of this machine."""

from __future__ import annotations

from gpuwin.errors import LimitExceeded
from gpuwin_kernels.tuning import physical_memory


def check_room(windows: int, bytes_each: int) -> None:
    """Check of the memory for so many windows at once, of so many bytes each. Raises gw.LimitExceeded where they exceed
    the memory of the machine.

    The alternative is that the system ends the process.
    """
    memory = physical_memory()
    if windows * bytes_each > memory:
        raise LimitExceeded(
            f"{windows:,} windows or more at once take more memory than this machine has ({memory:,} bytes); "
            "nothing was applied. Is a time far off, or the slide short for the size? Otherwise hand in fewer rows at "
            "a time, emit by gw.OnChange() if you do not yet, or partition the stream by key"
        )

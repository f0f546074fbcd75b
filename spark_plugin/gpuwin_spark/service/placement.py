"""Where the state of a partition is: in device memory while there is room, else in the host's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

log = logging.getLogger("gpuwin")


class Placed(Protocol):
    """A partition whose state can be on a device."""

    @property
    def state(self) -> Any: ...

    def on_host(self: P) -> P: ...


P = TypeVar("P", bound=Placed)
R = TypeVar("R")


def moved_to_device(partition: P, move: Callable[[], P], stays: Callable[[], str]) -> P:
    """Partition that ``move`` makes of one; or the one that came, where the device has no room. ``stays``: says so, for
    the log.
    """
    from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory

    try:
        return move()
    except OutOfDeviceMemory as error:
        log.warning("%s on the CPU: %s", stays(), error)
        return partition


def again_on_host(partition: P, step: Callable[[P], R], moves: Callable[[], str]) -> R:
    """The step, done again in host memory where the device has no room for it. ``moves``: says so, for the log."""
    try:
        return step(partition)
    except MemoryError as error:
        host = partition.on_host()
        if host is partition:
            raise
        log.warning("%s to the CPU: %s", moves(), error)
        return step(host)

"""Steps of a state that the device may have no room for: then the state moves to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from gpuwin.errors import LimitExceeded
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory

log = logging.getLogger("gpuwin")

S = TypeVar("S")
T = TypeVar("T")


def or_on_host(state: S, step: Callable[[S], T], on_host: Callable[[S], S], held: Callable[[S], str]) -> T:
    """Outcome of a step; where the device has no room for it, that of the same step with the state moved to the host,
    where it stays. `held`: a state in words, without an article. Raises gpuwin.LimitExceeded where the host has no room
    for it either.
    """
    try:
        return step(state)
    except OutOfDeviceMemory as error:
        try:
            done = step(on_host(state))
        except MemoryError:
            raise LimitExceeded(
                f"{error}, and the host has no room for the {held(state)}; nothing of the batch was applied. Set "
                "Limits.max_state_bytes, use smaller batches, or partition the stream by key"
            ) from error
        log.warning("gpuwin moved the %s from the device to the host: %s", held(state), error)
        return done


__all__ = ["or_on_host"]

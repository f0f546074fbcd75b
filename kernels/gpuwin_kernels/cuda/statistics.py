"""The merges of `gpuwin_kernels.cpu.statistics`, compiled for the device from the same source."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from gpuwin_kernels.cpu import statistics
from gpuwin_kernels.cuda.runtime import cuda
from gpuwin_kernels.cuda.scalar import moments_add

_ported: dict[str, Any] = {"moments_add": moments_add}


def _port(name: str) -> Any:
    """A function of the CPU for the device; those that it calls, which were ported before it, are the device's too."""
    function = getattr(statistics, name).py_func
    scope = {**function.__globals__, **_ported}
    _ported[name] = cuda.jit(device=True)(FunctionType(function.__code__, scope, name))
    return _ported[name]


moments3_add = _port("moments3_add")
moments4_add = _port("moments4_add")
comoments_add = _port("comoments_add")
correlation_add = _port("correlation_add")
registers_max = _port("registers_max")

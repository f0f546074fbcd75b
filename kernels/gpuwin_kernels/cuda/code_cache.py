"""Where numba-cuda keeps the machine code of the kernels; not for the simulator, which compiles nothing."""

from __future__ import annotations

from numba.cuda.dispatcher import CUDACache

from gpuwin_kernels.cpu.code_cache import GoingOn


class KernelCache(GoingOn, CUDACache):  # type: ignore[misc]
    """Machine code of a kernel, for each signature, on disk, beside that of the kernels for the CPU."""


__all__ = ["KernelCache"]

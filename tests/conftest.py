"""Without a GPU the CUDA kernels are tested in Numba's simulator, which has to be chosen before Numba is imported."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

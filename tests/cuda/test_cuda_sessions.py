"""Proto-sessions on the device are those of the CPU: gaps of all rows and of each, strict or not, in any order."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin.state.sessions.assignment import assign
from gpuwin_kernels.cuda.cells import TooFarApart
from gpuwin_kernels.cuda.runtime import to_device, to_host
from gpuwin_kernels.cuda.sessions import cut


@pytest.mark.parametrize("touch", ["merge", "split"])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("rows", [1, 45])
def test_cut(rows: int, per_row: bool, touch: str) -> None:
    rng = np.random.default_rng(rows + per_row)
    code, time = rng.integers(0, 4, rows).astype(np.int32), rng.integers(-60, 60, rows)
    gap = rng.integers(0, 9, rows) if per_row else 5
    expected = assign(code, time, gap, touch)  # type: ignore[arg-type]
    d_gap = to_device(gap) if isinstance(gap, np.ndarray) else gap
    found = cut(to_device(code), to_device(time), d_gap, touch == "split", 4)
    for name in ("slot", "code", "start", "last", "end"):
        np.testing.assert_array_equal(to_host(getattr(found, name)), getattr(expected, name), name)


def test_times_that_no_word_holds_are_refused() -> None:
    far = to_device(np.array([0, 1 << 62]))
    with pytest.raises(TooFarApart):
        cut(to_device(np.zeros(2, np.int32)), far, 5, False, 2)

"""Watermarks row by row, and the split into rows on time and late rows, against the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_kernels.cpu.watermark import running_watermarks as on_cpu
from gpuwin_kernels.cuda import late
from gpuwin_kernels.cuda.runtime import to_device, to_host

LEAST, MOST = -(1 << 63), (1 << 63) - 1
INT64 = st.one_of(st.integers(-5, 5), st.sampled_from([LEAST, MOST]), st.integers(LEAST, MOST))
few = settings(max_examples=15, deadline=None)


@few
@given(st.lists(INT64, max_size=30), INT64)
def test_one_watermark(candidates: list[int], known: int) -> None:
    host = np.array(candidates, np.int64)
    after = late.running_watermark(to_device(host), known)
    expected = np.maximum.accumulate(np.maximum(host, known)) if candidates else host
    np.testing.assert_array_equal(to_host(after), expected)
    np.testing.assert_array_equal(to_host(late.later_than(to_device(host), known)), host > known)
    np.testing.assert_array_equal(to_host(late.later_than(to_device(host), after)), host > expected)


@few
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 50)), max_size=30),
    st.sampled_from([0, LEAST + 50, MOST - 50]),
    st.lists(st.integers(-50, 50), min_size=5, max_size=5),
)
def test_a_watermark_for_each_key(rows: list[tuple[int, int]], around: int, known: list[int]) -> None:
    code = np.array([c for c, _ in rows], np.int32)
    candidate = np.array([around + t for _, t in rows], np.int64)
    before = np.array([around + t for t in known], np.int64)
    device = to_device(before)
    when, moved = late.running_watermarks(to_device(code), to_device(candidate), device)
    expected = before.copy()
    np.testing.assert_array_equal(to_host(when), on_cpu(code, candidate, expected))
    np.testing.assert_array_equal(to_host(moved), expected)
    np.testing.assert_array_equal(to_host(device), before)


def test_candidates_that_do_not_fit_a_word_are_refused() -> None:
    ends = to_device(np.array([LEAST, MOST]))
    with pytest.raises(late.TooFarApart, match="for 2 keys"):
        late.running_watermarks(to_device(np.zeros(2, np.int32)), ends, ends)


@few
@given(st.lists(st.integers(0, 2), max_size=40))
def test_rows_on_time_and_late_rows(flags: list[int]) -> None:
    host = np.array(flags, np.uint8)
    kept, rest = late.parted(to_device(host))
    np.testing.assert_array_equal(to_host(kept), np.flatnonzero(host))
    np.testing.assert_array_equal(to_host(rest), np.flatnonzero(host == 0))

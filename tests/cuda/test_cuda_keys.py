"""Codes of keys on the device: those of a plain dictionary, whatever the batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_kernels.cuda import key_table as module
from gpuwin_kernels.cuda.keys import DeviceKeys
from gpuwin_kernels.cuda.runtime import to_device, to_host

LEAST, MOST = -(1 << 63), (1 << 63) - 1
KEYS = st.one_of(st.integers(-4, 4), st.sampled_from([LEAST, LEAST + 1, MOST, None]), st.integers(LEAST, MOST))


def encoded(keys: DeviceKeys, batch: list[int | None], offset: int = 0) -> list[int]:
    values = np.array([77 if v is None else v for v in batch], np.int64)
    if None not in batch:
        return to_host(keys.encode(to_device(values))).tolist()
    bits = np.packbits([0] * offset + [v is not None for v in batch], bitorder="little")
    return to_host(keys.encode(to_device(values), to_device(bits), offset)).tolist()


def assert_codes(keys: DeviceKeys, batches: list[list[int | None]], offset: int = 0) -> None:
    known: dict[int | None, int] = {}
    for batch in batches:
        for key in batch:
            known.setdefault(key, len(known))
        assert encoded(keys, batch, offset) == [known[key] for key in batch]
        assert len(keys) == len(known)
    assert keys.null_code == known.get(None, -1)
    assert keys.host_keys().tolist() == [0 if key is None else key for key in known]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(KEYS, max_size=20), max_size=4), st.integers(0, 9))
def test_codes_are_those_of_a_dictionary(batches: list[list[int | None]], offset: int) -> None:
    assert_codes(DeviceKeys(), batches, offset)


def test_the_table_grows_in_the_middle_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALLEST", 4)
    rng = np.random.default_rng(1)
    keys = DeviceKeys()
    assert_codes(keys, [rng.integers(0, 90, 60).tolist() for _ in range(3)] + [[None, LEAST, 3]])
    assert keys.nbytes >= 16 * 2 * len(keys)


def test_a_call_that_fails_leaves_the_codes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = DeviceKeys()
    assert encoded(keys, [5, 6]) == [0, 1]

    def fails(flags: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(module.primitives, "exclusive_sum", fails)
        with pytest.raises(MemoryError):
            encoded(keys, [9, 7, None, 5])
    assert (len(keys), keys.null_code) == (2, -1)
    assert encoded(keys, [7, 5, 9, None]) == [2, 0, 3, 4]


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 3)
    keys = DeviceKeys()
    assert encoded(keys, [1, 2, 3]) == [0, 1, 2]
    with pytest.raises(ValueError, match="more than 3 keys"):
        encoded(keys, [4])
    assert encoded(keys, [3, 1]) == [2, 0]

"""Tables of keys after something was raised while they were entered, as a signal does at any moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.state.keys import tables
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels import tuning

KERNELS = {
    "direct": ("hashing", "direct_insert", lambda n: pa.array(np.arange(n))),
    "hash": ("hashing", "hash_insert", lambda n: pa.array(np.arange(n) * 1_000_003_007)),
    "strings": ("byte_keys", "bytes_insert", lambda n: pa.array([f"key {i}" for i in range(n)])),
    "strings by all": ("byte_claims", "enter", lambda n: pa.array([f"key {i}" for i in range(n)])),
    "claims": ("byte_claims", "claim", lambda n: pa.array([f"key {i}" for i in range(n)])),
    "numbers": ("byte_claims", "number", lambda n: pa.array([f"key {i}" for i in range(n)])),
    "rehash": ("hashing", "fill_hash", lambda n: pa.array(np.arange(n) * 1_000_003_007)),
    "slots": ("byte_keys", "fill_bytes", lambda n: pa.array([f"key {i}" for i in range(n)])),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("with_null", [False, True], ids=["no null", "null"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_an_interrupted_call(kernel: str, with_null: bool, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was numbered before keeps its codes, and all keys get one code each, whoever calls next."""
    module, name, keys_of = KERNELS[kernel]
    monkeypatch.setattr(tuning, "CLAIMED_KEYS", 1 << 30 if kernel == "strings" else 1 << 9)
    monkeypatch.setattr(tuning, "threads", lambda: 2)
    keys = keys_of(20_000)
    if with_null:
        keys = pa.concat_arrays([keys[:15_000], pa.nulls(1, keys.type), keys[15_000:]])
    dictionary = KeyDictionary([keys.type])
    before = dictionary.encode([keys[:2_000]], 2_000)
    real, calls = getattr(getattr(tables, module), name), 0

    def interrupted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return real(*given)
        if after:
            real(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(getattr(tables, module), name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            dictionary.encode([keys], len(keys))
    codes = dictionary.encode([keys], len(keys))
    assert sorted(codes.tolist()) == list(range(len(keys)))
    assert codes[:2_000].tolist() == before.tolist()
    assert dictionary.take(codes)[0].equals(keys)
    assert dictionary.lookup([keys], len(keys)).tolist() == codes.tolist()

"""Dictionaries of keys on the device against the host's: the same values, under codes by first appearance."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.state.device_keys import DeviceKeyDictionary
from gpuwin.state.keys import KeyDictionary


def rows_of(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def assert_codes(device: DeviceKeyDictionary, batches: Sequence[Sequence[pa.Array]]) -> None:
    """Codes are in the order of first rows; where two rows have one key is what the host's dictionary says; and keys
    come back as the host has them.
    """
    host = KeyDictionary(device.types)
    by_host: dict[int, int] = {}
    for columns in batches:
        n = len(columns[0])
        theirs = host.encode(columns, n)
        expected = [by_host.setdefault(code, len(by_host)) for code in theirs.tolist()]
        assert device.encode(columns, n).tolist() == expected
        assert len(device) == len(by_host)
    order = np.array(list(by_host), np.int32)
    for found, kept in zip(device.take(np.arange(len(order), dtype=np.int32)), host.take(order), strict=True):
        assert found.type == kept.type
        assert found.to_pylist() == kept.to_pylist() or pa.types.is_floating(found.type)
        if pa.types.is_floating(found.type):
            np.testing.assert_array_equal(np.asarray(found.is_valid()), np.asarray(kept.is_valid()))
            np.testing.assert_array_equal(np.asarray(found.fill_null(0)), np.asarray(kept.fill_null(0)))


NARROW = [
    pa.array([3, -128, None, 3, 127, 0, None, -1], pa.int8()),
    pa.array([3, 65_535, None, 3, 0], pa.uint16()),
    pa.array([3, (1 << 32) - 1, 3, 0], pa.uint32()),
    pa.array([3, (1 << 64) - 1, 1 << 63, 0, 1 << 63], pa.uint64()),
    pa.array([None] * 3 + [True, None, False, True, False, False, True] * 2, pa.bool_()),
    pa.array([1.5, float("nan"), -0.0, None, 0.0, float("-inf"), 5e-324, -float("nan"), 1.5], pa.float64()),
    pa.array([0.1, float("nan"), 0.0, 1e-45, -0.0, None, 0.1], pa.float32()),
    pa.array(np.array([0.1, np.nan, -0.0, 6e-8, 0.0, 0.1], np.float16)),
    pa.array([Decimal("1.50"), None, Decimal("-1.50"), Decimal("1.50")], pa.decimal64(9, 2)),
]


@pytest.mark.parametrize("column", NARROW, ids=lambda c: str(c.type))
def test_values_of_at_most_8_bytes(column: pa.Array) -> None:
    assert_codes(DeviceKeyDictionary([column.type]), [[column.slice(1)], [column[:3]]])

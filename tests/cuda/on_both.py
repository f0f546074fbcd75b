"""The same batches through the operator of the CPU and that of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import gpuwin as gw


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=str)


def on_both(specification: gw.WindowedAggregation, batches: list[pa.Table], metrics: Sequence[str]) -> Any:
    """(host, device): the operators, after the batches have given the same rows on both, and these metrics."""
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    for rows in batches:
        assert in_order(host.process(rows)) == in_order(device.process(rows))
        assert host.late_rows() == device.late_rows()
    for name in metrics:
        assert getattr(host.metrics, name) == getattr(device.metrics, name), name
    return host, device

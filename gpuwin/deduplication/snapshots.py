"""Snapshots of a deduplication: its keys with their times, late rows, and counters, as `snapshot_parts` packs them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.deduplication.plan import DeduplicatePlan
from gpuwin.deduplication.remembered_keys import RememberedKeys
from gpuwin.deduplication.state import DeduplicateMetrics, DeduplicateState, fresh_keys
from gpuwin.progress import Progress
from gpuwin.running import bytes_of
from gpuwin.snapshot_parts import Unpacked, packed_of, reading, stream_of, table_of, unpacked_of
from gpuwin.vocabulary.durations import INT64_MIN

_KIND, _VERSION = "deduplication", 1


def snapshot_of(plan: DeduplicatePlan, state: DeduplicateState, remembered: RememberedKeys) -> bytes:
    """Snapshot of a state, as bytes."""
    parts: dict[str, bytes] = {}
    if state.schema is not None and state.batch is not None:
        parts["schema"] = bytes(state.schema.serialize())
        parts["batch"] = bytes(state.batch.serialize())
        parts["keys"] = stream_of(remembered.table(state.progress.watermark if plan.forgets else INT64_MIN))
    parts |= {f"late.{k}": stream_of(table) for k, table in enumerate(state.late)}
    scalars: dict[str, Any] = {
        "watermark": state.progress.watermark,
        "finished": state.finished,
        "metrics": asdict(state.counted),
    }
    return packed_of(parts, _KIND, _VERSION, plan.fingerprint, json.dumps(scalars))


def state_of(
    plan: DeduplicatePlan, data: bytes, allow_changes: bool = False
) -> tuple[DeduplicateState, RememberedKeys]:
    """State and keys that a snapshot was taken of; with `allow_changes` the delay of the watermark may differ. Raises
    SnapshotError, saying why, if it cannot be read.
    """
    with reading():
        return _read(plan, unpacked_of(data, _KIND, _VERSION, plan.fingerprint, allow_changes))


def _read(plan: DeduplicatePlan, table: Unpacked) -> tuple[DeduplicateState, RememberedKeys]:
    parts = table.parts()
    scalars = json.loads(table.metadata["state"])
    late = tuple(table_of(part) for name, part in parts.items() if name.startswith("late.") and plan.collect_late)
    state = DeduplicateState(
        progress=Progress(scalars["watermark"]),
        finished=scalars["finished"],
        late=late,
        late_bytes=bytes_of(late),
        counted=DeduplicateMetrics(**scalars["metrics"]),
    )
    if "keys" not in parts:
        return state, RememberedKeys([])
    schema, batch = (pa.ipc.read_schema(pa.py_buffer(parts[name])) for name in ("schema", "batch"))
    remembered, keys = fresh_keys(plan, schema), table_of(parts["keys"])
    remembered.put(keys.columns[:-1], np.asarray(keys["until"]).astype(np.int64))
    return replace(state, schema=schema, batch=batch), remembered

"""Snapshots of a join: an Arrow IPC stream, and its SHA-256 behind it, which a reader of Arrow ignores.

The stream is a table of named parts, each an Arrow IPC stream itself: the rows of both sides, the keys, the open
sessions. Its metadata says which version of the format it is, of which specification, and holds the counters.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.joins.plan import JoinPlan
from gpuwin.joins.schemas import SIDE_NAMES, fresh_state, with_schema, with_side
from gpuwin.joins.side import Side
from gpuwin.joins.state import JoinMetrics, JoinState
from gpuwin.joins.windows import NO_COLUMNS, WindowSides
from gpuwin.progress import Progress
from gpuwin.running import bytes_of
from gpuwin.snapshot_parts import Unpacked, batch_of, packed_of, reading, stream_of, table_of, unpacked_of
from gpuwin.state.sessions.session_state import SessionState

_KIND, _VERSION = "join", 3


def snapshot_of(plan: JoinPlan, state: JoinState) -> bytes:
    """Snapshot of a state, as bytes."""
    parts: dict[str, bytes] = {}
    for name, schema, batch in zip(SIDE_NAMES, state.schemas, state.batches, strict=True):
        if schema is not None and batch is not None:
            parts[f"{name}_schema"] = bytes(schema.serialize())
            parts[f"{name}_batch"] = bytes(batch.serialize())
            parts[name] = stream_of(getattr(state.sides, name).to_arrow())
    known = state.schemas[0] if state.schemas[0] is not None else state.schemas[1]
    if known is not None:
        parts["keys"] = stream_of(_keys_of(state))
    scalars: dict[str, Any] = {
        "sources": state.progress.sources,
        "watermark": state.progress.watermark,
        "seq": state.seq,
        "finished": state.finished,
        "keys_known": state.keys_known,
        "keys_checked": state.keys_checked,
        "metrics": asdict(state.metrics),
    }
    for name, late in zip(SIDE_NAMES, state.late, strict=True):
        parts |= {f"{name}_late.{k}": stream_of(table) for k, table in enumerate(late)}
    if isinstance(state.sides, WindowSides):
        parts["sessions"] = stream_of(state.sides.sessions.to_arrow())
        scalars["closed"] = state.sides.closed
    return packed_of(parts, _KIND, _VERSION, plan.fingerprint, json.dumps(scalars))


def _keys_of(state: JoinState) -> pa.Table:
    """Columns of the keys in the order of their codes, in batches that their texts fit into."""
    schema = pa.schema([(str(i), type_) for i, type_ in enumerate(state.keys.types)])
    known = state.keys.parts(np.arange(state.keys_known, dtype=np.int32))
    return pa.Table.from_batches([pa.record_batch(columns, schema=schema) for _, columns in known], schema)


def state_of(plan: JoinPlan, data: bytes, allow_changes: bool = False) -> JoinState:
    """State that a snapshot was taken of; with `allow_changes` the delays of the watermark may differ. Raises
    SnapshotError, saying why, if it cannot be read.
    """
    with reading():
        return _read(plan, unpacked_of(data, _KIND, _VERSION, plan.fingerprint, allow_changes))


def _read(plan: JoinPlan, table: Unpacked) -> JoinState:
    parts = table.parts()
    scalars = json.loads(table.metadata["state"])
    state = fresh_state(plan)
    for number, name in enumerate(SIDE_NAMES):
        if name in parts:
            schema, batch = (
                pa.ipc.read_schema(pa.py_buffer(parts.get(f"{name}_{which}", parts[f"{name}_schema"])))
                for which in ("schema", "batch")
            )
            state = with_schema(plan, state, number, schema).with_batch(number, batch)
            types, rows = getattr(state.sides, name).types, batch_of(parts[name])
            if not types:  # builds before this one kept values here, too
                rows = rows.select([f.name for f in rows.schema if not f.name.startswith("value_")])
            side = Side.from_arrow(types, rows)
            state = replace(state, sides=with_side(state.sides, number, side))
    if "keys" in parts:
        keys = table_of(parts["keys"])
        state.keys.encode(keys.columns, keys.num_rows)
    if isinstance(state.sides, WindowSides):
        sessions = SessionState.from_arrow(NO_COLUMNS, batch_of(parts["sessions"]))
        state = replace(state, sides=replace(state.sides, sessions=sessions, closed=scalars["closed"]))
    left, right = (
        tuple(table_of(part) for name, part in parts.items() if name.startswith(f"{side}_late.") and plan.collect_late)
        for side in SIDE_NAMES
    )
    return replace(
        state,
        late=(left, right),
        late_bytes=bytes_of([*left, *right]),
        progress=plan.rule.restored(Progress(scalars["watermark"], sources=tuple(scalars["sources"]))),
        seq=scalars["seq"],
        finished=scalars["finished"],
        keys_known=scalars["keys_known"],
        keys_checked=scalars["keys_checked"],
        metrics=JoinMetrics(**scalars["metrics"]),
    )

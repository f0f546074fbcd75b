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

from gpuwin.errors import SnapshotError
from gpuwin.joins.plan import JoinPlan
from gpuwin.joins.schemas import SIDE_NAMES, fresh_state, with_schema, with_side
from gpuwin.joins.side import Side
from gpuwin.joins.state import JoinMetrics, JoinState
from gpuwin.joins.windows import NO_COLUMNS, WindowSides
from gpuwin.progress import Progress
from gpuwin.running import bytes_of
from gpuwin.snapshot_parts import Unpacked, as_bytes, batch_of, intact, packed, stream_of, table_of, unpacked
from gpuwin.snapshots import is_of_aggregation, without_delays
from gpuwin.state.sessions.session_state import SessionState

_VERSION = 3


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
        columns = state.keys.take(np.arange(state.keys_known, dtype=np.int32))
        parts["keys"] = stream_of(pa.record_batch(columns, names=[str(i) for i in range(len(columns))]))
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
    metadata = {"gpuwin": "join", "version": str(_VERSION), "of": plan.fingerprint, "state": json.dumps(scalars)}
    return packed(parts, metadata)


def state_of(plan: JoinPlan, data: bytes, allow_changes: bool = False) -> JoinState:
    """State that a snapshot was taken of; with `allow_changes` the delays of the watermark may differ. Raises
    SnapshotError, saying why, if it cannot be read.
    """
    snapshot = as_bytes(data)
    if is_of_aggregation(snapshot):
        raise SnapshotError("this is a snapshot of a WindowedAggregation, and not of a join")
    if not intact(snapshot):
        raise SnapshotError("the snapshot is damaged: its checksum does not fit (changed, or cut short)")
    try:
        return _read(plan, unpacked(snapshot), allow_changes)
    except SnapshotError:
        raise
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error


def _read(plan: JoinPlan, table: Unpacked, allow_changes: bool) -> JoinState:
    metadata = table.metadata
    if metadata.get("gpuwin") != "join":
        raise SnapshotError("this is not a snapshot of a join")
    if int(metadata["version"]) != _VERSION:
        raise SnapshotError(f"the snapshot has version {metadata['version']}, and this gpuwin reads version {_VERSION}")
    may_change = without_delays(metadata["of"]) == without_delays(plan.fingerprint)
    if metadata["of"] != plan.fingerprint and not (may_change and allow_changes):
        hint = "\nTo go on with the other delay nevertheless: restore(..., allow_changes=True)" if may_change else ""
        raise SnapshotError(
            f"the snapshot is of another join:\n  {metadata['of']}\nand not of\n  {plan.fingerprint}{hint}"
        )
    parts = table.parts()
    scalars = json.loads(metadata["state"])
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
        keys = batch_of(parts["keys"])
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

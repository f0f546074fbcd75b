"""Snapshots of an aggregation: an Arrow IPC stream with one row per part of the state, and a trailer with its checksum.

The schema's metadata holds the format, its version, and the specification field by field. A reader of Arrow sees an
ordinary stream. The trailer lies behind its end: 8 bytes of magic and the SHA-256 of all before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.engines.step import EngineStart
from gpuwin.errors import DeviceError, GpuwinError, SnapshotError
from gpuwin.metrics import Metrics
from gpuwin.planning.plan import Plan, plan_of
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.running import Running, bytes_of
from gpuwin.snapshot_parts import (
    MARK_OF_AGGREGATION,
    as_bytes,
    batch_of,
    has_mark,
    intact,
    kind_of,
    packed,
    stream_of,
    table_of,
    unpacked,
    without_delays,
)
from gpuwin.vocabulary.specification import Specification

FORMAT = "gpuwin snapshot"
VERSION = 2
_FREE = ("limits", "collect_late", "collect_merges")  # may change freely between a snapshot and its restore
_COUNTS = ("rows_in", "rows_late", "rows_unassigned", "rows_null_time", "window_rows_late")


def described(spec: Specification) -> dict[str, str]:
    """Specification field by field, as text that is equal for equal meanings."""
    texts = {f.name: repr(getattr(spec, f.name)) for f in fields(spec) if f.name not in _FREE}
    # What is known of inputs after a restart is for the restart to say; texts stay those of checkpoints that are there.
    texts["semantics"] = repr(replace(spec.semantics, restored_inputs="kept"))
    texts["aggregates"] = ", ".join(f"{name}: {aggregate!r}" for name, aggregate in spec.aggregates.items())
    return texts


def write_snapshot(spec: Specification, plan: Plan | None, running: Running, batches: pa.Schema | None) -> bytes:
    """Snapshot of a running aggregation, as bytes. `batches`: schema of the last batch, if there is one."""
    progress = running.progress
    parts: dict[str, bytes] = {}
    if batches is not None:
        parts["batches"] = bytes(batches.serialize())
    if plan is not None:
        parts["input"] = bytes(pa.schema(list(plan.types.items())).serialize())
    if running.windows is not None:
        for name, batch in running.windows.save().items():
            parts[f"state.{name}"] = stream_of(batch)
    if progress.by_key is not None:
        parts["watermarks"] = progress.by_key.tobytes()
    for k, table in enumerate(running.late):
        parts[f"late.{k}"] = stream_of(table)
    for k, batch in enumerate(running.merges):
        parts[f"merges.{k}"] = stream_of(batch)
    head = {
        "progress": [progress.watermark, progress.before, progress.now, progress.running, list(progress.sources)],
        "seq": running.seq,
        "finished": running.finished,
        "counted": {name: getattr(running.counted, name) for name in _COUNTS},
    }
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "specification": json.dumps(described(spec)),
        "operator": json.dumps(head),
    }
    return packed(parts, metadata, MARK_OF_AGGREGATION)


def _checked(data: object) -> bytes:
    """Snapshot as bytes, once the checksum is right."""
    snapshot = as_bytes(data)
    if not has_mark(snapshot, MARK_OF_AGGREGATION):
        if intact(snapshot):
            raise SnapshotError(f"this is {kind_of(snapshot)}, and not of a WindowedAggregation")
        raise SnapshotError("this is not a snapshot of gpuwin, or its end is missing")
    if not intact(snapshot, MARK_OF_AGGREGATION):
        raise SnapshotError("the snapshot is damaged: its checksum does not match its contents")
    return snapshot


def _check_version(metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise SnapshotError("this is Arrow data, but not a snapshot of gpuwin")
    if int(metadata["version"]) > VERSION:
        raise SnapshotError(
            f"the snapshot is of version {metadata['version']}, and this gpuwin reads up to {VERSION}: upgrade gpuwin"
        )
    if int(metadata["version"]) < VERSION:
        raise SnapshotError(
            f"the snapshot is of version {metadata['version']}, which this gpuwin no longer reads (it reads "
            f"{VERSION}): restore it with the gpuwin that took it, or begin with an empty state"
        )


def _check_specification(spec: Specification, stored: dict[str, str], allow_changes: bool) -> None:
    now = described(spec)
    other = sorted(name for name in now.keys() | stored.keys() if now.get(name) != stored.get(name))
    fixed = [name for name in other if without_delays(now.get(name, "")) != without_delays(stored.get(name, ""))]
    differ = fixed or ([] if allow_changes else other)
    if differ:
        first, verb = differ[0], "differs" if len(differ) == 1 else "differ"
        hint = "" if fixed else ". To go on, with what has closed as it was: restore(..., allow_changes=True)"
        raise SnapshotError(
            f"the snapshot is of another specification: {', '.join(differ)} {verb}; "
            f"{first} was {stored.get(first, 'not there')}, and is {now.get(first, 'not there')}{hint}"
        )


def read_snapshot(
    spec: Specification, data: bytes, engine_of: Callable[[Plan], EngineStart[Any]], allow_changes: bool = False
) -> tuple[Plan | None, EngineStart[Any] | None, Running, pa.Schema | None]:
    """Plan, engine and state of a snapshot, and the schema of the last batch before it. Raises SnapshotError, saying
    why, for anything but an intact snapshot of this specification, or with `allow_changes` of one with another delay;
    DeviceError where CUDA was asked for by name and cannot run the specification.
    """
    snapshot = _checked(data)
    try:
        table = unpacked(snapshot, MARK_OF_AGGREGATION)
        metadata = table.metadata
        _check_version(metadata)
        _check_specification(spec, json.loads(metadata["specification"]), allow_changes)
        parts = table.parts()
        head = json.loads(metadata["operator"])
        watermark, before, now, running, sources = head["progress"]
        by_key = np.frombuffer(parts["watermarks"], np.int64).copy() if "watermarks" in parts else None
        saved_progress = Progress(watermark, before, now, running, by_key, tuple(sources))
        progress = WatermarkRule(spec.watermark, spec.semantics).restored(saved_progress)
        plan = engine = windows = None
        if "input" in parts:
            plan = plan_of(spec, pa.ipc.read_schema(pa.py_buffer(parts["input"])))
            engine = engine_of(plan)
            saved = {
                name.removeprefix("state."): batch_of(part) for name, part in parts.items() if name.startswith("state.")
            }
            windows = engine.load(saved) if saved else None
        late = tuple(table_of(part) for name, part in parts.items() if name.startswith("late."))
        merges = tuple(batch_of(part) for name, part in parts.items() if name.startswith("merges."))
        if "batches" in parts:
            batches = pa.ipc.read_schema(pa.py_buffer(parts["batches"]))
        else:  # of before that part: where no row was late, a table without rows had the schema
            batches = late[-1].schema if late else None
        # Nobody can ask for what is not collected.
        late = tuple(table for table in late if table.num_rows) if spec.collect_late else ()
        merges = merges if spec.collect_merges else ()
        counted = Metrics(**head["counted"])
        waiting = bytes_of([*late, *merges])
        after = Running(progress, windows, head["seq"], counted, late, merges, head["finished"], waiting)
        return plan, engine, after, batches
    except (SnapshotError, DeviceError):  # the snapshot is whole, though this device does not take it
        raise
    except (pa.ArrowException, GpuwinError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error

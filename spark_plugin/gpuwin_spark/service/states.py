"""The kinds of state that a partition can have, and how each is rebuilt from its log."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gpuwin.device.choice import Device

from .aggregation_partition import AggregationPartition
from .aggregation_spec import AggregationSpec
from .deduplication_partition import DeduplicationPartition, merge_keys
from .deduplication_spec import DeduplicationSpec
from .log_segments import Segments
from .narrow import narrowed
from .operator_spec import GridSpec, SessionSpec, parse_spec
from .partition import Partition, merge_segments
from .protocol import ProtocolError
from .seeded_partition import SeededPartition
from .session_partition import SessionPartition, merge_session_segments
from .sessions_with_pieces import SessionsWithPieces, merge_session_segments_with_pieces
from .with_pieces import PartitionWithPieces, merge_segments_with_pieces

State = (
    Partition
    | SeededPartition
    | PartitionWithPieces
    | SessionPartition
    | SessionsWithPieces
    | AggregationPartition
    | DeduplicationPartition
)
Spec = GridSpec | SessionSpec | AggregationSpec | DeduplicationSpec


def parse_state_spec(fields: dict[str, Any]) -> Spec:
    """The specification in a request. Raises ProtocolError where it is none."""
    match fields.get("window"):
        case "specified":
            return AggregationSpec.parse(fields)
        case "duplicates":
            return DeduplicationSpec.parse(fields)
    return parse_spec(fields)


def rebuilt(spec: Spec, segments: Segments, through: int | None, device: Device = "cpu", asked: str = "cpu") -> State:
    """The state that a log holds, once the windows that end by ``through`` (microseconds) were evicted.

    On ``"cuda"`` its cells, or its open sessions, live in device memory.
    ``asked``: the device in the configuration, of which a whole operator makes its own choice.
    """
    if isinstance(spec, AggregationSpec):
        return AggregationPartition.rebuilt(spec, [s.chunks for s in segments], asked)
    if isinstance(spec, DeduplicationSpec):
        return DeduplicationPartition.rebuilt(spec, segments, through)
    if isinstance(spec, SessionSpec):
        of_sessions = SessionsWithPieces if spec.pieces else SessionPartition
        sessions = of_sessions.rebuilt(spec, [s.chunks for s in segments], through)
        return sessions.on_device() if device == "cuda" else sessions
    of_panes = PartitionWithPieces if spec.pieces else SeededPartition
    state = of_panes.rebuilt(spec, segments, through)
    return state.on_device() if device == "cuda" else state


def merged(spec: Spec, segments: Segments, first: int, rows: int) -> tuple[list[pa.RecordBatch], int, int]:
    """Some segments as one, narrowed for the log: (record batches, how many cells, the newest pane or the last end in
    microseconds).

    Panes that start, or sessions that end, before ``first`` are left out.
    """
    if isinstance(spec, AggregationSpec):
        raise ProtocolError("the log of a whole operator is not merged")
    if isinstance(spec, DeduplicationSpec):
        keys, count, last = merge_keys(segments, first)
        return [narrowed(batch, {}) for batch in keys], count, last
    if isinstance(spec, SessionSpec):
        merge = merge_session_segments_with_pieces if spec.pieces else merge_session_segments
        cells, count, last = merge(spec, [s.chunks for s in segments], first, rows)
    else:
        merge_panes = merge_segments_with_pieces if spec.pieces else merge_segments
        cells, count, last = merge_panes(spec, segments, first, rows)
    return [narrowed(batch, spec.steps) for batch in cells], count, last

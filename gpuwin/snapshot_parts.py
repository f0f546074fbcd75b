"""Bytes of a snapshot: named parts and metadata in one Arrow IPC stream, and its SHA-256 behind the end.

A reader of Arrow sees an ordinary stream of one table, `part` and `data`, and ignores what lies behind it. A mark of
the kind of snapshot may stand between the stream and the checksum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from gpuwin.errors import SnapshotError

_DIGEST = hashlib.sha256().digest_size
_DELAY = re.compile(r"(?<=BoundedOutOfOrderness\(delay=)datetime\.timedelta\([^)]*\)")
MARK_OF_AGGREGATION = b"gpuwin\x00\x01"
"""Mark of the snapshots of windowed aggregations. Those of other operators have none, and name their kind instead."""


def stream_of(batch: pa.RecordBatch | pa.Table) -> bytes:
    """Arrow IPC stream of some rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return bytes(sink.getvalue())


def batch_of(stream: bytes) -> pa.RecordBatch:
    """Rows of an Arrow IPC stream, as one batch."""
    with pa.ipc.open_stream(stream) as reader:
        batches, schema = list(reader), reader.schema
    if len(batches) != 1:  # rows of a table, which was written chunk by chunk
        batches = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def table_of(stream: bytes) -> pa.Table:
    """Rows of an Arrow IPC stream, as a table."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def packed(parts: Mapping[str, bytes], metadata: Mapping[str, str], mark: bytes = b"") -> bytes:
    """Snapshot of these parts."""
    schema = pa.schema([("part", pa.string()), ("data", pa.large_binary())], metadata=dict(metadata))
    columns = [pa.array(list(parts), pa.string()), pa.array(list(parts.values()), pa.large_binary())]
    stream = stream_of(pa.record_batch(columns, schema=schema))
    return stream + mark + hashlib.sha256(stream).digest()


def has_mark(snapshot: bytes, mark: bytes) -> bool:
    """Whether bytes end as a snapshot with this mark does."""
    return snapshot[-_DIGEST - len(mark) : -_DIGEST] == mark


def as_bytes(snapshot: object) -> bytes:
    """Snapshot that a user handed in, as bytes. Raises SnapshotError for what is none."""
    if not isinstance(snapshot, bytes | bytearray | memoryview):
        raise SnapshotError(f"a snapshot is bytes, not {type(snapshot).__name__}")
    return bytes(snapshot)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Table of a snapshot, whose parts are read once its metadata were found to be right."""

    metadata: dict[str, str]
    table: pa.RecordBatch

    def parts(self) -> dict[str, bytes]:
        """The parts by their names. Raises KeyError if the table has none."""
        return dict(zip(self.table.column("part").to_pylist(), self.table.column("data").to_pylist(), strict=True))


def intact(snapshot: bytes, mark: bytes = b"") -> bool:
    """Whether the checksum of a snapshot is that of its contents."""
    return hashlib.sha256(_stream(snapshot, mark)).digest() == snapshot[-_DIGEST:]


def unpacked(snapshot: bytes, mark: bytes = b"") -> Unpacked:
    """Table of an intact snapshot. Raises ArrowException where it is none of Arrow."""
    table = batch_of(_stream(snapshot, mark))
    return Unpacked({k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}, table)


def without_delays(text: str) -> str:
    """Text of a specification without the delays of its watermarks, which may change between a snapshot and its
    restore where the caller says so: no state but the watermark depends on them, and that never goes back.
    """
    return _DELAY.sub("any", text)


@contextmanager
def reading() -> Iterator[None]:
    """Raises SnapshotError for what the parts of a snapshot turn out not to hold."""
    try:
        yield
    except SnapshotError:
        raise
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error


def unpacked_of(data: object, kind: str, version: int, fingerprint: str, allow_changes: bool) -> Unpacked:
    """Table of a snapshot of one kind of operator, of the specification with this fingerprint; with `allow_changes`
    the delays of its watermark may differ. Raises SnapshotError, saying why, for any other, or a damaged one.
    """
    snapshot = as_bytes(data)
    if has_mark(snapshot, MARK_OF_AGGREGATION):
        raise SnapshotError(f"this is a snapshot of a WindowedAggregation, and not of a {kind}")
    if not intact(snapshot):
        raise SnapshotError("the snapshot is damaged: its checksum does not fit (changed, or cut short)")
    table = unpacked(snapshot)
    metadata = table.metadata
    if metadata.get("gpuwin") != kind:
        raise SnapshotError(f"this is {_kind_of(metadata)}, and not a snapshot of a {kind}")
    if int(metadata["version"]) != version:
        raise SnapshotError(f"the snapshot has version {metadata['version']}, and this gpuwin reads version {version}")
    may_change = without_delays(metadata["of"]) == without_delays(fingerprint)
    if metadata["of"] != fingerprint and not (may_change and allow_changes):
        hint = "\nTo go on with the other delay nevertheless: restore(..., allow_changes=True)" if may_change else ""
        raise SnapshotError(
            f"the snapshot is of another {kind}:\n  {metadata['of']}\nand not of\n  {fingerprint}{hint}"
        )
    return table


def packed_of(parts: Mapping[str, bytes], kind: str, version: int, fingerprint: str, state: str) -> bytes:
    """Snapshot that `unpacked_of` reads. `state`: JSON of what is no rows."""
    return packed(parts, {"gpuwin": kind, "version": str(version), "of": fingerprint, "state": state})


def kind_of(snapshot: bytes) -> str:
    """Name of what an intact snapshot without a mark is of, with its article."""
    return _kind_of(unpacked(snapshot).metadata)


def _kind_of(metadata: Mapping[str, str]) -> str:
    return f"a snapshot of a {metadata['gpuwin']}" if "gpuwin" in metadata else "Arrow data"


def _stream(snapshot: bytes, mark: bytes) -> bytes:
    return snapshot[: -_DIGEST - len(mark)]

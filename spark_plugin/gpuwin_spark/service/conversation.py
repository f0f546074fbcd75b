"""One connection from an executor: for one task after another it finds a state, applies a batch, sends the windows, and
commits.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import itertools
import logging
import time
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from gpuwin import errors
from gpuwin.device.choice import resolve_device

from . import protocol
from .cell_tables import parts_of
from .log_segments import LogSegment, Segments
from .map_side import Held, RowsSpec, cells_of_rows
from .memory_return import return_to_system
from .narrow import narrowed
from .operator_spec import GridSpec, SessionSpec
from .partition import BatchTimes
from .protocol import Frame, ProtocolError, read_frame, write_frame, write_json
from .residents import PartitionId, Residents
from .states import Spec, State, merged, parse_state_spec, rebuilt

log = logging.getLogger("gpuwin.service")


class Conversation:
    """Connection of one executor's tasks, until the peer closes it. Whatever was not committed by then is dropped."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, token: str, residents: Residents) -> None:
        self._in, self._out = source, sink
        self._token = token
        self._residents = residents
        self._id: PartitionId | None = None
        self._query = ""
        self._version = 0
        self._spec: tuple[dict[str, Any], Spec] | None = None
        self._state: State | None = None
        self._borrowed = False
        self._after: State | None = None
        self._released = False

    def serve(self) -> None:
        """Answers frames in order; an error is answered with an error frame and ends the conversation."""
        try:
            self._greet()
            while (frame := read_frame(self._in)) is not None:
                self._answer(frame)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the task ended; its state was not committed
        except Exception as e:
            self._report(e)
        finally:
            self._return_borrowed()
            if self._released:
                return_to_system()

    def _greet(self) -> None:
        frame = read_frame(self._in)
        if frame is None:
            return
        if frame.kind != protocol.HELLO or not hmac.compare_digest(frame.text("token"), self._token):
            raise ProtocolError("the connection does not begin with this application's token")
        if frame.integer("protocol") != protocol.VERSION:
            raise ProtocolError(
                f"the plugin speaks protocol {frame.integer('protocol')} and this service {protocol.VERSION}: "
                "install the same version of gpuwin for Spark's driver and executors"
            )
        write_json(self._out, protocol.READY)

    def _answer(self, frame: Frame) -> None:
        match frame.kind:
            case protocol.BATCH:
                self._batch(frame)
            case protocol.COMMIT:
                self._commit(frame)
            case protocol.MERGE:
                self._merge(frame)
            case protocol.RELEASE:
                self._release(frame)
            case protocol.AGGREGATE:
                self._aggregate(frame)
            case kind:
                raise ProtocolError(f"frame {kind!r} came out of turn")

    def _release(self, frame: Frame) -> None:
        self._residents.release(_partition(frame), frame.text("query"))
        self._released = True
        write_json(self._out, protocol.READY)

    def _batch(self, frame: Frame) -> None:
        # The request is read to its end first: a task that still writes it would read no error.
        chunks = list(self._coming())
        times = BatchTimes(
            frame.optional_integer("late"),
            frame.optional_integer("evict"),
            frame.optional_integer("through"),
            frame.integer("now"),
            frame.flag("data"),
        )
        rows, most_bytes = frame.integer("rows", 1, 1 << 24), frame.integer("bytes", 1)
        resident = self._open(frame)
        assert self._state is not None
        began = time.perf_counter()
        outcome = self._state.batch(chunks, times, rows)
        updated = time.perf_counter()
        for logged in outcome.logged:
            if isinstance(logged, bytes):
                write_frame(self._out, protocol.LOGGED, logged)
            else:
                self._send_pieces(protocol.LOGGED, narrowed(logged, {}), most_bytes)
        steps = self._spec_of(frame).window_steps
        for windows in outcome.windows:
            self._send_pieces(protocol.WINDOWS, narrowed(windows, steps), most_bytes)
        self._after = outcome.after
        done = time.perf_counter()
        write_json(
            self._out,
            protocol.DONE,
            resident=resident,
            cells=self._after.state.cells,
            state_bytes=self._after.state.nbytes,
            updated=outcome.updated,
            removed=outcome.removed,
            dropped=outcome.dropped,
            first=outcome.first,
            logged_cells=outcome.logged_cells,
            logged_last=outcome.logged_last,
            replaces=outcome.replaces,
            emit_ms=round((done - updated) * 1e3),
            device_ms=round((done - began) * 1e3),
            on_cuda=int(self._after.is_on_device),
            on_cpu=int(not self._after.is_on_device),
        )

    def _open(self, frame: Frame) -> bool:
        """Finds the state of a request, or builds it, for which it asks for the log where there is one. Returns whether
        it was found.
        """
        self._return_borrowed()
        self._after = None
        asked = frame.text("device")
        device = resolve_device(asked)
        spec = self._spec_of(frame)
        self._id = _partition(frame)
        self._query, self._version = frame.text("query"), frame.integer("version", 0)
        has_log, through = frame.flag("log"), frame.optional_integer("through")
        self._state = self._residents.borrow(self._id, self._query, self._version)
        self._borrowed = self._state is not None
        if self._state is None:
            segments: Segments = []
            if has_log:
                write_json(self._out, protocol.NO_STATE)
                segments = self._segments()
            self._state = rebuilt(spec, segments, through, device, asked)
        return self._borrowed

    def _spec_of(self, frame: Frame) -> Spec:
        """The specification of a request, which is read once where the last one had the same."""
        fields = frame.mapping("spec")
        if self._spec is None or self._spec[0] != fields:
            self._spec = fields, parse_state_spec(fields)
        return self._spec[1]

    def _commit(self, frame: Frame) -> None:
        if self._after is None or self._id is None:
            raise ProtocolError("a commit came before a batch")
        version = frame.integer("version", 1)
        self._residents.commit(self._id, self._query, version, self._after, borrowed=self._borrowed)
        self._borrowed, self._state, self._after = False, None, None
        # Read by the next task that has the connection: this one need not wait for it.
        write_json(self._out, protocol.READY)

    def _merge(self, frame: Frame) -> None:
        spec, first, rows = self._spec_of(frame), frame.integer("first"), frame.integer("rows", 1, 1 << 24)
        most_bytes = frame.integer("bytes", 1)
        cells, count, last = merged(spec, self._segments(), first, rows)
        for batch in cells:
            self._send_pieces(protocol.WINDOWS, batch, most_bytes)
        write_json(self._out, protocol.DONE, cells=count, last=last)

    def _aggregate(self, frame: Frame) -> None:
        """Makes cells of rows, for which no state is needed. What can be done with rows as they come is done then."""
        chunks = self._coming()
        try:
            parts, on_cuda, took = self._aggregated(frame, chunks)
        except Exception:
            for _ in chunks:  # as in _batch
                pass
            raise
        write_json(self._out, protocol.DONE, parts=parts, device_ms=took, on_cuda=int(on_cuda))

    def _aggregated(self, frame: Frame, chunks: Iterator[bytes]) -> tuple[list[list[int]], bool, int]:
        """Sends cells of rows: what is said of each part, whether a GPU made them, and the milliseconds from the last
        row to the last cell.
        """
        operator = self._spec_of(frame)
        if not isinstance(operator, GridSpec | SessionSpec):
            raise ProtocolError("rows are made cells of windows on a grid, and of sessions, only")
        spec = RowsSpec.parse(operator, frame.fields)
        most = frame.integer("rows", 1, 1 << 24), frame.integer("bytes", 1)
        device = resolve_device(frame.text("device"))
        constants, held = _before_the_rows(frame, chunks, spec)
        came = time.perf_counter()

        def rows() -> Iterator[bytes]:
            nonlocal came
            yield from chunks
            came = time.perf_counter()

        parts, on_cuda = [], False
        for part in cells_of_rows(spec, constants, held, rows(), most, device):
            self._send_table(protocol.WINDOWS, part.cells)
            parts.append([part.partition, part.cells.num_rows, part.last])
            on_cuda = part.on_cuda
        return parts, on_cuda, round((time.perf_counter() - came) * 1e3)

    def _segments(self) -> Segments:
        """Segments up to the END frame: each a header and its chunks."""
        segments: Segments = []
        while (frame := self._expect(protocol.SEGMENT, protocol.CELLS, protocol.END)).kind != protocol.END:
            if frame.kind == protocol.SEGMENT:
                segments.append(LogSegment([], frame.optional_integer("late"), frame.flag("seeds")))
            elif not segments:
                raise ProtocolError("cells came before the head of their segment")
            else:
                segments[-1].chunks.append(frame.body)
        return segments

    def _coming(self) -> Iterator[bytes]:
        """Chunks up to the END frame, as they come."""
        while (frame := self._expect(protocol.CELLS, protocol.END)).kind != protocol.END:
            yield frame.body

    def _expect(self, *kinds: bytes) -> Frame:
        frame = read_frame(self._in)
        if frame is None or frame.kind not in kinds:
            raise ProtocolError(f"{None if frame is None else frame.kind!r} came where one of {kinds!r} was expected")
        return frame

    def _send_pieces(self, kind: bytes, batch: pa.RecordBatch, most_bytes: int) -> None:
        for part in parts_of(batch, most_bytes):
            self._send_table(kind, part)

    def _send_table(self, kind: bytes, batch: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        write_frame(self._out, kind, memoryview(sink.getvalue()))

    def _report(self, e: Exception) -> None:
        """Tells the task. What is logged names no value of the user's data: types and places only."""
        places = "".join(traceback.format_tb(e.__traceback__))
        log.error("%s while serving %s\n%s", type(e).__name__, self._id, places)
        fields: dict[str, object] = {"kind": "internal", "message": _sentence(e)}
        if isinstance(e, errors.OverflowError):
            fields |= {"kind": "overflow", "column": _leading_number(e.column)}
        elif _for_want_of_memory(e):
            fields["kind"] = "memory"
            # Spark tries the task again, and room matters more then than the time to read a state from its log.
            self._residents.release_all()
            self._released = True
        elif isinstance(e, ProtocolError):
            fields["kind"] = "protocol"
        with contextlib.suppress(OSError):  # then nobody is there to be told
            write_json(self._out, protocol.ERROR, **fields)

    def _return_borrowed(self) -> None:
        if self._borrowed and self._id is not None:
            self._residents.give_back(self._id, self._query, self._version)
            self._borrowed = False


def _before_the_rows(frame: Frame, chunks: Iterator[bytes], spec: RowsSpec) -> tuple[list[bytes], list[Held]]:
    """The constants, and the cells from before, which come first."""
    held = frame.fields.get("held")
    if not isinstance(held, list) or not all(
        isinstance(h, list) and len(h) == 2 and all(type(n) is int and n >= 0 for n in h) for h in held
    ):
        raise ProtocolError("field held must be a list of pairs of numbers")

    def taken(count: int) -> list[bytes]:
        came = list(itertools.islice(chunks, count))
        if len(came) < count:
            raise ProtocolError("fewer chunks came than were announced")
        return came

    return taken(int(bool(spec.constant_schema.names))), [Held(partition, taken(count)) for partition, count in held]


def _partition(frame: Frame) -> PartitionId:
    return PartitionId(frame.text("checkpoint"), frame.integer("operator", 0), frame.integer("partition", 0))


def _sentence(e: Exception) -> str:
    if isinstance(e, errors.GpuwinError | ProtocolError):
        return f"The gpuwin device service: {e}"
    if _for_want_of_memory(e):
        return (
            "The gpuwin device service is out of memory. Give the executors more memory outside the JVM "
            "(spark.executor.memoryOverhead), or use more shuffle partitions."
        )
    # The words of an OSError name a file; those of other errors may quote a user's data.
    what = f"{type(e).__name__} ({e})" if isinstance(e, OSError) else type(e).__name__
    return f"The gpuwin device service failed with {what}; the executor's log says where."


def _for_want_of_memory(e: Exception) -> bool:
    """Also where it shows as a library that cannot be mapped when it is first used, or a thread that cannot start."""
    if isinstance(e, ImportError):
        return any(said in str(e).lower() for said in ("cannot allocate memory", "failed to map segment"))
    if isinstance(e, RuntimeError):
        return "can't start new thread" in str(e)
    return isinstance(e, MemoryError) or (isinstance(e, OSError) and e.errno == errno.ENOMEM)


def _leading_number(name: str) -> int:
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return int(digits) if digits else -1

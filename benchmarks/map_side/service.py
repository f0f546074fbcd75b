"""The service's end of the spike: rows in shared memory become cells or sessions, and one Arrow stream a partition.

    python service.py SOCKET PARTITIONS GAP     # gap of sessions in microseconds, 0 for windows of a minute

It prints the processor and wall seconds of each answer.
"""

from __future__ import annotations

import socketserver
import struct
import sys
import time

import numpy as np
import pyarrow as pa

from gpuwin.state import KeyDictionary
from gpuwin_kernels.cpu.rows import RowInput, aggregate_rows
from gpuwin_kernels.cpu.sessions import cut
from gpuwin_kernels.layout import CellColumn, CellLayout

MINUTE = 60_000_000
LAYOUT = CellLayout((CellColumn("n", "sum", "int64"), CellColumn("s", "sum", "float64")))


def payloads(key: np.ndarray, at: np.ndarray, value: np.ndarray, partitions: int, gap: int) -> list[bytes]:
    """Arrow streams, one for each partition: (key, pane, count, sum), or (key, start, end, count, sum) of sessions."""
    keys = KeyDictionary([pa.int64()])
    inputs = [RowInput(None), RowInput(value)]
    if gap:
        slot, code, start, _, end = cut(keys.encode([pa.array(key)], len(key)), at, np.array([gap]), False)
        cells = aggregate_rows(LAYOUT, inputs, slot, np.zeros(len(at), np.int64), MINUTE, codes=len(code))
        place = [start, end]
    else:
        cells = aggregate_rows(LAYOUT, inputs, keys.coded([pa.array(key)], len(key)), at, MINUTE, codes=len(keys))
        code, place = cells.code, [cells.pane]
    all_keys = keys.take(np.arange(len(keys), dtype=np.int32))[0].to_numpy()
    # Stands for Spark's hash of the key, which is as cheap.
    part = ((all_keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)) % np.uint64(partitions)
    part_of = part.astype(np.uint8)[code]
    columns = [all_keys[code], *place, *(c.values[0] for c in cells.columns)]
    return [stream([c[part_of == p] for c in columns]) for p in range(partitions)]


def stream(columns: list[np.ndarray]) -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=[str(c) for c in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


class Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        began, wall = time.process_time(), time.perf_counter()
        rows, room, length = struct.unpack(">iih", self.rfile.read(10))
        path = self.rfile.read(length).decode()
        words = np.memmap(path, np.int64, "r", shape=(3, room))
        found = payloads(words[0, :rows], words[1, :rows], words[2, :rows].view(np.float64), *map(int, sys.argv[2:]))
        for data in found:
            self.wfile.write(struct.pack(">i", len(data)))
            self.wfile.write(data)
        self.wfile.flush()
        print(f"{time.process_time() - began:.4f} {time.perf_counter() - wall:.4f} {rows}", flush=True)


if __name__ == "__main__":
    socketserver.UnixStreamServer(sys.argv[1], Answer).serve_forever()

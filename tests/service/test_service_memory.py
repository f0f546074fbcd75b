"""A service process that runs out of memory: it says so, goes on listening, and works when there is memory again."""

import contextlib
import errno
import io
import json
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from service_harness import stream_of
from test_protocol import TOKEN, VALID, as_sent, conversation

from gpuwin_spark.service import protocol
from gpuwin_spark.service.protocol import write_frame, write_json
from gpuwin_spark.service.residents import PartitionId, Residents

FRAMES = {
    protocol.HELLO: VALID[protocol.HELLO],
    protocol.BATCH: {**VALID[protocol.BATCH], "late": None, "evict": None, "rows": 65536},
}
#: A batch without rows.
REQUEST = [*(as_sent(kind, fields) for kind, fields in FRAMES.items()), as_sent(protocol.END, {})]


@pytest.fixture
def service(tmp_path):
    command = [sys.executable, "-m", "gpuwin_spark.service", "--socket", str(tmp_path / "s")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(TOKEN.encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    yield process, tmp_path / "s"
    process.communicate(timeout=30)


def batch(path, rows, commit=False):
    """Sends a batch of cells, and commits it; the kind and the fields of the last frame that came back, None where none
    came."""
    schema = pa.schema([("k", pa.int64()), ("pane", pa.int64()), ("sum", pa.int64())])
    columns = [pa.array(np.arange(rows)), pa.array(np.zeros(rows, np.int64)), pa.array(np.ones(rows, np.int64))]
    sent = io.BytesIO()
    for kind, fields in FRAMES.items():
        write_json(sent, kind, **fields)
    write_frame(sent, protocol.CELLS, stream_of(pa.record_batch(columns, schema=schema)))
    write_json(sent, protocol.END)
    if commit:
        write_json(sent, protocol.COMMIT, version=1)
    return told(path, sent.getvalue(), (protocol.READY,) if commit else (protocol.DONE,))


def told(path, sent, last):
    """Sends frames; the kind and the fields of the last that came back: one of these kinds after the greeting, or an
    error."""
    with socket.socket(socket.AF_UNIX) as s, s.makefile("rb") as source:
        s.settimeout(60)
        s.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendall(sent)
        return last_frame(source, (*last, protocol.ERROR))


def last_frame(source, last):
    kind, fields, greeted = None, {}, False
    try:
        while head := source.read(5):
            kind, length = head[:1], int.from_bytes(head[1:], "big")
            body = source.read(length)
            fields = {} if kind in (protocol.WINDOWS, protocol.LOGGED) else json.loads(body)
            if kind in last and (greeted or kind == protocol.ERROR):
                break
            greeted = True
    except ConnectionResetError:
        pass
    return kind, fields


def limit(process, headroom):
    pages = int((Path("/proc") / str(process.pid) / "statm").read_text().split()[0])
    most = resource.RLIM_INFINITY if headroom is None else pages * resource.getpagesize() + headroom
    resource.prlimit(process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def test_batch_that_does_not_fit(service):
    process, path = service
    assert batch(path, 10)[0] == protocol.DONE
    limit(process, 48 << 20)  # room for a thread, and not for the 72 MB that come
    kind, fields = batch(path, 3_000_000)
    assert kind == protocol.ERROR
    assert fields["kind"] == "memory"
    assert "spark.executor.memoryOverhead" in fields["message"]
    assert_goes_on(process, path)


def test_a_state_that_is_released_is_no_longer_in_memory(service):
    """Its keys and cells, and what the allocators keep of them."""
    process, path = service
    before = resident(process)
    assert batch(path, 600_000, commit=True)[0] == protocol.READY
    held = resident(process)
    assert held - before > 20 << 20
    sent = io.BytesIO()
    write_json(sent, protocol.HELLO, **FRAMES[protocol.HELLO])
    write_json(sent, protocol.RELEASE, **VALID[protocol.RELEASE])
    assert told(path, sent.getvalue(), (protocol.READY,))[0] == protocol.READY
    deadline = time.monotonic() + 20
    while resident(process) - before > (held - before) // 2:
        assert time.monotonic() < deadline, (before, held, resident(process))
        time.sleep(0.02)


def resident(process):
    """Bytes of the process in memory that are not a file's."""
    pages = (Path("/proc") / str(process.pid) / "statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()


def test_room_is_made_of_the_states_that_nobody_works_on(monkeypatch):
    def fail(*_):
        raise MemoryError

    residents = Residents()
    residents.commit(PartitionId("another", 0, 0), "q", 5, None)
    monkeypatch.setattr("gpuwin_spark.service.conversation.rebuilt", fail)
    answers, _ = conversation(REQUEST, residents)
    assert json.loads(answers[-1][1])["kind"] == "memory"
    assert len(residents) == 0


def test_what_is_printed_does_not_fill_a_pipe(tmp_path):
    """Of standard output the executor reads one line: the rest goes to the log."""
    program = "import os, sys; from gpuwin_spark.service import server\n"
    program += "def serve(self): os.write(1, b'printed by a function\\n' * 9000)\n"
    program += "server.Server.serve = serve; from gpuwin_spark.service.__main__ import main; main()"
    command = [sys.executable, "-c", program, "--socket", str(tmp_path / "s")]
    done = subprocess.run(command, input=TOKEN.encode() + b"\n", capture_output=True, timeout=60)
    assert done.stdout == b"ready\n"
    assert b"printed by a function" in done.stderr


def test_no_pandas_is_in_memory_but_where_somebody_imports_it():
    program = "import sys; from gpuwin_spark.service.__main__ import _keep_pandas_out; _keep_pandas_out()\n"
    program += "import pyarrow as pa; from gpuwin_spark.service import server\n"
    program += "loaded = 'pandas' in sys.modules or pa.array([1]).to_numpy() is None\n"
    program += "import pandas; print(loaded, pandas.DataFrame({'x': [7]}).x[0], len(pa.array([1, 2]).to_pandas()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.stdout == b"False 7 2\n", done.stderr


def assert_goes_on(process, path):
    limit(process, None)
    kind, fields = batch(path, 300_000)
    assert kind == protocol.DONE
    assert fields["updated"] == 300_000
    assert process.poll() is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (pa.ArrowMemoryError("realloc of size 64 failed"), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (ImportError("_lib.so: failed to map segment from shared object"), "memory"),
        (RuntimeError("can't start new thread"), "memory"),
        (ImportError("No module named scipy"), "internal"),
        (RuntimeError("else"), "internal"),
    ],
    ids=repr,
)
def test_what_is_a_want_of_memory(error, kind, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("gpuwin_spark.service.conversation.rebuilt", fail)
    answers, _ = conversation(REQUEST)
    assert answers[-1][0] == protocol.ERROR
    assert json.loads(answers[-1][1])["kind"] == kind


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/kernels"),
            "PermissionError ([Errno 13] Permission denied: '/kernels')",
        ),
        (KeyError("a user's key"), "KeyError"),
    ],
    ids=repr,
)
def test_a_failure_names_the_file_and_no_data(error, said, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("gpuwin_spark.service.conversation.rebuilt", fail)
    answers, _ = conversation(REQUEST)
    assert json.loads(answers[-1][1])["message"] == (
        f"The gpuwin device service failed with {said}; the executor's log says where."
    )

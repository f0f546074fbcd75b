"""The protocol of the device service: what it refuses, and that refusing costs nothing."""

import ast
import io
import json
import socket
import struct
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_harness import stream_of

from gpuwin_spark.service import protocol
from gpuwin_spark.service.conversation import Conversation
from gpuwin_spark.service.operator_spec import GridSpec
from gpuwin_spark.service.protocol import ProtocolError, read_frame, write_json
from gpuwin_spark.service.residents import PartitionId, Residents
from gpuwin_spark.service.server import Server

TOKEN = "t" * 64
SPEC = {
    "window": "grid",
    "size": 60_000_000,
    "slide": 60_000_000,
    "origin": 0,
    "mode": "append",
    "types": ["bigint", "bigint", "bigint"],
    "keys": 1,
    "hidden": 0,
    "merges": [
        {"merge": "sum", "columns": [0], "wrap": True, "precision": 0, "scale": 0, "nullable": False, "arrival": -1}
    ],
}


def frame(kind: bytes, body: bytes, length: int | None = None) -> io.BytesIO:
    return io.BytesIO(struct.pack(">cI", kind, len(body) if length is None else length) + body)


def test_end_of_stream_is_no_frame():
    assert read_frame(io.BytesIO(b"")) is None


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (io.BytesIO(b"H\0\0"), "within a frame's head"),
        (frame(b"H", b"{}", 9), "within a frame's body"),
        (frame(b"?", b"{}"), "unknown frame kind"),
        (frame(b"H", b"[1]"), "not a JSON object"),
        (frame(b"H", b"{"), "not JSON"),
        (frame(b"H", b"", protocol.MAX_JSON + 1), "the limit is"),
        (frame(b"C", b"", protocol.MAX_ARROW + 1), "the limit is"),
    ],
)
def test_malformed_frames_are_refused(stream, says):
    with pytest.raises(ProtocolError, match=says):
        read_frame(stream)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data):
    stream = io.BytesIO(data)
    try:
        while read_frame(stream) is not None:
            pass
    except ProtocolError:
        pass
    assert stream.tell() <= len(data)


@pytest.mark.parametrize(
    "change",
    [
        {"slide": 0},
        {"size": -1},
        {"origin": 60_000_000},
        {"mode": "sometimes"},
        {"keys": 3},
        {"types": ["bigint", "string", "bigint"]},
        {"types": ["bigint", "bigint", "decimal(39,0)"]},
        {"types": ["bigint", "bigint", "__import__('os')"]},
        {"merges": [{**SPEC["merges"][0], "merge": "product"}]},
        {"merges": [{**SPEC["merges"][0], "columns": [1]}]},
        {"merges": None},
    ],
)
def test_specifications_are_checked(change):
    assert GridSpec.parse(SPEC).grid.width == 60_000_000
    with pytest.raises(ProtocolError):
        GridSpec.parse({**SPEC, **change})


@pytest.fixture
def connect(tmp_path):
    server = Server(tmp_path / "s", TOKEN)
    threading.Thread(target=server.serve, daemon=True).start()
    opened = []

    def open_connection():
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(tmp_path / "s"))
        s.settimeout(30)
        files = s.makefile("rb"), s.makefile("wb")
        opened.append((s, *files))
        return files

    yield open_connection
    for s, source, sink in opened:
        source.close()
        sink.close()
        s.close()
    server.close()


def answer(source):
    kind, length = struct.unpack(">cI", source.read(5))
    return kind, json.loads(source.read(length))


def test_socket_is_for_its_owner_only(tmp_path):
    server = Server(tmp_path / "s", TOKEN)
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    server.close()


def test_a_wrong_token_is_refused(connect):
    source, sink = connect()
    write_json(sink, protocol.HELLO, token="x" * 64, protocol=protocol.VERSION)
    kind, said = answer(source)
    assert kind == protocol.ERROR
    assert said["kind"] == "protocol"
    assert "token" in said["message"]
    assert source.read(1) == b""


def test_another_protocol_version_is_refused_with_what_to_do(connect):
    source, sink = connect()
    write_json(sink, protocol.HELLO, token=TOKEN, protocol=protocol.VERSION + 1)
    kind, said = answer(source)
    assert kind == protocol.ERROR
    assert "same version of gpuwin" in said["message"]


def test_frames_out_of_turn_are_refused(connect):
    source, sink = connect()
    write_json(sink, protocol.HELLO, token=TOKEN, protocol=protocol.VERSION)
    assert answer(source)[0] == protocol.READY
    write_json(sink, protocol.COMMIT, version=1)
    kind, said = answer(source)
    assert kind == protocol.ERROR
    assert "before a batch" in said["message"]


def test_cuda_without_a_gpu_says_what_is_missing(connect):
    source, sink = connect()
    write_json(sink, protocol.HELLO, token=TOKEN, protocol=protocol.VERSION)
    answer(source)
    write_json(sink, protocol.BATCH, **{**VALID[protocol.BATCH], "device": "tpu"})
    write_json(sink, protocol.END)
    kind, said = answer(source)
    assert kind == protocol.ERROR
    assert "'auto', 'cuda' or 'cpu'" in said["message"]


KINDS = sorted({*protocol._JSON_KINDS, protocol.CELLS})
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.just(SPEC)
FIELDS = (
    "token",
    "protocol",
    "checkpoint",
    "query",
    "operator",
    "partition",
    "version",
    "device",
    "spec",
    "late",
    "log",
    "places",
    "partitions",
    "held",
    "bytes",
)
OF = {"checkpoint": "c", "query": "q", "operator": 0, "partition": 0}
MARKS = {"late": 0, "evict": 0, "through": None, "rows": 10, "bytes": 1 << 20, "now": 0, "data": True}
VALID = {
    protocol.HELLO: {"token": TOKEN, "protocol": protocol.VERSION},
    protocol.SEGMENT: {"late": None, "seeds": False},
    protocol.BATCH: {**OF, "version": 0, "device": "cpu", "log": False, "spec": SPEC, **MARKS},
    protocol.END: {},
    protocol.COMMIT: {"version": 1},
    protocol.MERGE: {"spec": SPEC, "first": 0, "rows": 10, "bytes": 1 << 20},
    protocol.RELEASE: OF,
    protocol.AGGREGATE: {
        "spec": SPEC,
        "places": [0, 1, 2],
        "hashed": [],
        "partitions": 2,
        "held": [],
        "rows": 10,
        "bytes": 1000,
        "device": "cpu",
    },
}


def conversation(frames, residents=None):
    """What a service answers to these frames, as (kind, body), and the states it keeps."""
    sink, residents = io.BytesIO(), Residents() if residents is None else residents
    sent = b"".join(struct.pack(">cI", kind, len(body)) + body for kind, body in frames)
    Conversation(io.BytesIO(sent), sink, TOKEN, residents).serve()
    answers, said = [], io.BytesIO(sink.getvalue())
    while head := said.read(5):
        kind, length = struct.unpack(">cI", head)
        answers.append((kind, said.read(length)))
    return answers, residents


def as_sent(kind, fields):
    return kind, fields if isinstance(fields, bytes) else json.dumps(fields).encode()


@st.composite
def frames_of_any_kind(draw):
    """A greeting that is right, then frames of every kind: right, with a field that is not, or of any bytes."""
    frames = [as_sent(protocol.HELLO, VALID[protocol.HELLO])]
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9)):
        if kind == protocol.CELLS or draw(st.integers(0, 9)) == 0:
            frames.append((kind, draw(st.binary(max_size=60))))
        else:
            changed = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=1))
            frames.append(as_sent(kind, {**VALID[kind], **changed}))
    return frames


def test_every_kind_of_frame_is_fuzzed():
    kinds = {v for k, v in vars(protocol).items() if k.isupper() and isinstance(v, bytes)}
    answers = {protocol.READY, protocol.NO_STATE, protocol.WINDOWS, protocol.LOGGED, protocol.DONE, protocol.ERROR}
    assert set(KINDS) == kinds - answers
    assert set(VALID) | {protocol.CELLS} == set(KINDS)


@settings(max_examples=120, deadline=None)
@given(frames_of_any_kind())
def test_any_conversation_is_answered_or_refused(frames):
    answers, _ = conversation(frames)
    kinds = [kind for kind, _ in answers]
    assert kinds[0] == protocol.READY
    assert protocol.ERROR not in kinds[:-1]
    for kind, body in answers:
        if kind not in (protocol.WINDOWS, protocol.LOGGED):
            assert isinstance(json.loads(body), dict)


def cells(name, keys):
    schema = pa.schema([(name, pa.int64()), ("pane", pa.int64()), ("sum", pa.int64())])
    batch = pa.record_batch([keys, [0] * len(keys), [1] * len(keys)], schema=schema)
    return protocol.CELLS, stream_of(batch)


def test_neither_log_nor_error_has_data_of_the_user(caplog):
    """A batch that cannot be read: the bytes, the column's name and the values stay out of what is said."""
    whole = cells("marker", [4711_0815] * 3)
    valid = [as_sent(k, VALID[k]) for k in (protocol.HELLO, protocol.BATCH)]
    for body in (b"marker" * 20, whole[1][:200], whole[1][:-40]):
        caplog.clear()
        answers, _ = conversation([*valid, (protocol.CELLS, body), as_sent(protocol.END, {})])
        assert answers[-1][0] == protocol.ERROR
        said = caplog.text + answers[-1][1].decode()
        assert caplog.records
        assert "marker" not in said
        assert "47110815" not in said


def test_the_service_has_no_way_to_run_what_it_reads():
    folder = Path(protocol.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {n.name for i in ast.walk(tree) if isinstance(i, ast.Import) for n in i.names}
        names |= {i.module for i in ast.walk(tree) if isinstance(i, ast.ImportFrom)}
        called = {c.func.id for c in ast.walk(tree) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
        assert not names & {"pickle", "cloudpickle", "marshal", "shelve", "dill"}, path
        assert not called & {"eval", "exec", "compile", "__import__"}, path


def test_the_service_reads_no_clock_that_jumps():
    """Idle states and timings go by clocks that only advance; the time of a batch comes with its request."""
    for path in Path(protocol.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "time"}
        names = {i.module for i in ast.walk(tree) if isinstance(i, ast.ImportFrom)}
        names |= {n.name for i in ast.walk(tree) if isinstance(i, ast.Import) for n in i.names}
        assert read <= {"monotonic", "perf_counter", "sleep"}, path
        assert not names & {"datetime", "time.time"}, path


def test_a_connection_serves_one_task_after_another():
    """A commit, and the batches of other partitions and of the next version, whose state is found where it was."""
    row, end = cells("key", [1, 2]), as_sent(protocol.END, {})

    def task(partition, version):
        fields = {**VALID[protocol.BATCH], "late": None, "evict": None, "partition": partition, "version": version}
        commit = as_sent(protocol.COMMIT, {"version": version + 1})
        return [as_sent(protocol.BATCH, fields), row, end, commit]

    answers, residents = conversation(
        [as_sent(protocol.HELLO, VALID[protocol.HELLO]), *task(0, 0), *task(1, 0), *task(0, 1)]
    )
    assert [kind for kind, _ in answers] == [protocol.READY, *[protocol.DONE, protocol.READY] * 3]
    done = [json.loads(body) for kind, body in answers if kind == protocol.DONE]
    assert [d["resident"] for d in done] == [False, False, True]
    assert [d["cells"] for d in done] == [2, 2, 2]
    assert len(residents) == 2


def test_a_batch_that_is_not_committed_is_dropped_by_the_next_one_of_its_connection():
    fields = {**VALID[protocol.BATCH], "late": None, "evict": None}
    batch = [as_sent(protocol.BATCH, fields), cells("key", [1, 2]), as_sent(protocol.END, {})]
    again = [as_sent(protocol.BATCH, fields), cells("key", [3]), as_sent(protocol.END, {})]
    commit = as_sent(protocol.COMMIT, {"version": 1})
    answers, residents = conversation([as_sent(protocol.HELLO, VALID[protocol.HELLO]), *batch, *again, commit])
    assert [kind for kind, _ in answers] == [protocol.READY, protocol.DONE, protocol.DONE, protocol.READY]
    state = residents.borrow(PartitionId("c", 0, 0), "q", 1)
    assert state.state.cells == 1


def test_the_log_is_asked_for_where_there_is_one_and_no_state():
    fields = {**VALID[protocol.BATCH], "late": None, "evict": None, "version": 3, "log": True}
    end = as_sent(protocol.END, {})
    batch = [as_sent(protocol.BATCH, fields), cells("key", [1, 2]), end]
    log = [as_sent(protocol.SEGMENT, {"late": None, "seeds": False}), cells("key", [2, 3, 4]), end]
    answers, _ = conversation([as_sent(protocol.HELLO, VALID[protocol.HELLO]), *batch, *log])
    assert [kind for kind, _ in answers] == [protocol.READY, protocol.NO_STATE, protocol.DONE]
    done = json.loads(answers[-1][1])
    assert (done["resident"], done["cells"], done["updated"]) == (False, 4, 2)


def test_windows_come_in_frames_of_about_as_many_bytes_as_were_asked_for():
    """Not of as many rows alone: what is one array on Spark's heap has to stay small there."""
    rows = 4000
    keys = [f"key-{i:012d}" for i in range(rows)]
    table = pa.table({"c0": keys, "c1": pa.array([0] * rows, pa.int64()), "c2": pa.array(range(rows), pa.int64())})
    cells = pa.BufferOutputStream()
    with pa.ipc.new_stream(cells, table.schema) as writer:
        writer.write_table(table)
    spec = {**SPEC, "mode": "update", "types": ["string", "bigint", "bigint"]}
    answers = {}
    for most in (1 << 30, 9000):
        fields = {**VALID[protocol.BATCH], "late": None, "evict": None, "rows": 1 << 20, "bytes": most, "spec": spec}
        frames = [
            as_sent(protocol.HELLO, VALID[protocol.HELLO]),
            as_sent(protocol.BATCH, fields),
            (protocol.CELLS, cells.getvalue().to_pybytes()),
            as_sent(protocol.END, {}),
        ]
        said, _ = conversation(frames)
        assert said[-1][0] == protocol.DONE, said[-1]
        answers[most] = [body for kind, body in said if kind == protocol.WINDOWS]
    assert len(answers[1 << 30]) == 1
    assert len(answers[9000]) >= 10
    assert max(map(len, answers[9000])) < 2 * 9000
    tables = {m: pa.concat_tables([pa.ipc.open_stream(b).read_all() for b in found]) for m, found in answers.items()}
    assert tables[9000].num_rows == rows
    assert tables[9000].to_pydict() == tables[1 << 30].to_pydict()

"""The protocol of the device service: what it refuses, and that refusing costs nothing."""

import io
import json
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwin_spark.service import protocol
from gpuwin_spark.service.operator_spec import OperatorSpec
from gpuwin_spark.service.protocol import ProtocolError, read_frame, write_json
from gpuwin_spark.service.server import Server

TOKEN = "t" * 64
SPEC = {
    "size": 60_000_000,
    "slide": 60_000_000,
    "origin": 0,
    "mode": "append",
    "types": ["bigint", "bigint", "bigint"],
    "keys": 1,
    "merges": [{"merge": "sum", "columns": [0], "wrap": True, "precision": 0, "scale": 0, "nullable": False}],
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
    assert OperatorSpec.parse(SPEC).pane == 60_000_000
    with pytest.raises(ProtocolError):
        OperatorSpec.parse({**SPEC, **change})


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
    write_json(
        sink, protocol.OPEN, checkpoint="c", query="q", operator=0, partition=0, version=0, device="tpu", spec=SPEC
    )
    kind, said = answer(source)
    assert kind == protocol.ERROR
    assert "'auto', 'cuda' or 'cpu'" in said["message"]

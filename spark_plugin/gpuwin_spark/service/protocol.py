"""Frames between Spark's executors and the device service.

A frame is one byte of kind, four bytes of length (big endian, unsigned) and the body: a JSON object, or an Arrow IPC
stream. Nothing is unpickled, every length has a limit that is checked before memory is taken, and every field of a
request is checked by name and type. ``ServiceConnection.scala`` is the other end.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

VERSION: Final = 12
MAX_JSON: Final = 4 << 20
MAX_ARROW: Final = 1 << 30
#: Streams of cells of fewer bytes keep their integers as they are, all with one head, so that many can be put together.
LEAST_NARROWED: Final = 1 << 17

# From Spark
HELLO: Final = b"H"
SEGMENT: Final = b"S"
CELLS: Final = b"C"
BATCH: Final = b"B"
END: Final = b"E"
COMMIT: Final = b"M"
MERGE: Final = b"G"
RELEASE: Final = b"R"
AGGREGATE: Final = b"A"
# To Spark
READY: Final = b"r"
NO_STATE: Final = b"s"
WINDOWS: Final = b"w"
LOGGED: Final = b"l"
DONE: Final = b"d"
ERROR: Final = b"x"

_JSON_KINDS: Final = frozenset([HELLO, SEGMENT, BATCH, END, COMMIT, MERGE, RELEASE, AGGREGATE])
_HEAD: Final = struct.Struct(">cI")


class ProtocolError(Exception):
    """The peer sent something that the protocol does not allow; the connection is closed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that was read: its kind, and its body as JSON object or as Arrow bytes."""

    kind: bytes
    fields: dict[str, Any]
    body: bytes

    def text(self, name: str, limit: int = 4096) -> str:
        """A string field of at most ``limit`` characters."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > limit:
            raise ProtocolError(f"field {name} must be a string of at most {limit} characters")
        return value

    def integer(self, name: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
        """An integer field within bounds."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ProtocolError(f"field {name} must be an integer from {least} to {most}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """An integer field, or None where it is null or absent."""
        return None if self.fields.get(name) is None else self.integer(name)

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        value = self.fields.get(name)
        if not isinstance(value, bool):
            raise ProtocolError(f"field {name} must be true or false")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """A field that is an object."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise ProtocolError(f"field {name} must be an object")
        return value


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame, or None at the end of the stream.

    Raises:
        ProtocolError: an unknown kind, a length over the limit, a body cut short, or JSON that is not an object.
    """
    head = stream.read(_HEAD.size)
    if not head:
        return None
    if len(head) < _HEAD.size:
        raise ProtocolError("the stream ends within a frame's head")
    kind, length = _HEAD.unpack(head)
    if kind == CELLS:
        return Frame(kind, {}, _exactly(stream, length, MAX_ARROW))
    if kind not in _JSON_KINDS:
        raise ProtocolError(f"unknown frame kind {kind!r}")
    body = _exactly(stream, length, MAX_JSON)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise ProtocolError("a frame's body is not JSON") from e
    if not isinstance(fields, dict):
        raise ProtocolError("a frame's body is not a JSON object")
    return Frame(kind, fields, b"")


def _exactly(stream: BinaryIO, length: int, limit: int) -> bytes:
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes was announced, and the limit is {limit}")
    body = stream.read(length)
    if len(body) < length:
        raise ProtocolError("the stream ends within a frame's body")
    return body


def write_frame(stream: BinaryIO, kind: bytes, body: bytes | memoryview) -> None:
    """Writes one frame; does not flush."""
    stream.write(_HEAD.pack(kind, len(body)))
    stream.write(body)


def write_json(stream: BinaryIO, kind: bytes, /, **fields: Any) -> None:
    """Writes one frame whose body is a JSON object, and flushes."""
    write_frame(stream, kind, json.dumps(fields).encode())
    stream.flush()

"""A proxy before an S3 server: it counts the requests by kind, delays them, and fails those that it is told to."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from .broker import HOST

#: What can become of a request: an answer 503 that asks for fewer requests; a connection that ends in the middle of the
#: request, of which the server hears nothing; one that ends in the middle of the answer, when the server has done it.
UNAVAILABLE: Final = "unavailable"
CUT_REQUEST: Final = "cut request"
CUT_ANSWER: Final = "cut answer"

_SLOW_DOWN: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
#: Kinds of requests that change what is in the store.
WRITES: Final = frozenset({"PUT", "COPY", "DELETE", "POST"})
Headers = list[tuple[str, str]]
_OF_ONE_CONNECTION: Final = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request as S3 sees it: its kind, and the object's name, or what the names of a list begin with.

    Kinds: PUT, COPY, GET, HEAD, LIST, DELETE (of one or of many), POST, and BUCKET for a question about the bucket.
    """

    kind: str
    key: str


@dataclass(frozen=True)
class Fault:
    """What fails, and how.

    Attributes:
        how: `UNAVAILABLE`, `CUT_REQUEST` or `CUT_ANSWER`.
        kinds: kinds of requests; all where there is none.
        key: a part of the names of objects.
        every: of the requests that fit, each so-manieth fails.
        times: how many fail at most.
    """

    how: str
    kinds: frozenset[str] = frozenset()
    key: str = ""
    every: int = 1
    times: int | None = None

    def fits(self, request: Request) -> bool:
        """Whether it is about the request."""
        return (not self.kinds or request.kind in self.kinds) and self.key in request.key


class S3Proxy:
    """A proxy on a port of its own. Use as a context manager.

    Attributes:
        delay: seconds before each request is handed on.
        requests: all that came since the beginning, or since `forget`.
        failed: how many of them failed.
    """

    def __init__(self, server: str) -> None:
        """`server`: host and port of the server."""
        self.delay = 0.0
        self.requests: list[Request] = []
        self.failed = 0
        self._fault: Fault | None = None
        self._writes_left: int | None = None
        self._fitted = self._failed = 0
        self._lock = threading.Lock()

        class Handler(_Handler):
            proxy, upstream = self, server

        self._listener = _Listener((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        """What a client calls its endpoint."""
        return f"http://{HOST}:{self._listener.server_address[1]}"

    @property
    def counts(self) -> Counter[str]:
        """How many requests of each kind there were."""
        with self._lock:
            return Counter(request.kind for request in self.requests)

    def fail(self, fault: Fault) -> None:
        """From now on requests fail."""
        with self._lock:
            self._fault, self._fitted, self._failed = fault, 0, 0

    def cut_off(self, writes: int) -> None:
        """After so many requests more that write, no request of any kind is handed on.

        So the store has at the end what it would have if its client were killed then.
        """
        with self._lock:
            self._writes_left = writes

    def heal(self) -> None:
        """From now on none fails."""
        with self._lock:
            self._fault = self._writes_left = None

    def forget(self) -> None:
        """Begins the count anew."""
        with self._lock:
            self.requests, self.failed = [], 0

    def verdict(self, request: Request) -> str | None:
        """Notes the request; how it is to fail, if it is."""
        with self._lock:
            self.requests.append(request)
            if self._writes_left is not None:
                if request.kind in WRITES:
                    self._writes_left -= self._writes_left >= 0
                if self._writes_left < 0:
                    self.failed += 1
                    return UNAVAILABLE
            fault = self._fault
            if fault is None or not fault.fits(request) or (fault.times is not None and self._failed >= fault.times):
                return None
            self._fitted += 1
            if self._fitted % fault.every:
                return None
            self._failed += 1
            self.failed += 1
            return fault.how

    def __enter__(self) -> S3Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


class _Listener(ThreadingHTTPServer):
    """The listener; a connection that its client has cut is no error."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    proxy: S3Proxy
    upstream: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 120

    def do_GET(self) -> None:
        request = _request(self.command, self.path, "x-amz-copy-source" in self.headers)
        how = self.proxy.verdict(request)
        if self.proxy.delay:
            time.sleep(self.proxy.delay)
        length = int(self.headers.get("Content-Length") or 0)
        if how == CUT_REQUEST:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
        if how == UNAVAILABLE:
            self._answer(503, "Slow Down", [("Content-Type", "application/xml")], _SLOW_DOWN, len(_SLOW_DOWN))
            return
        server = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in {*_OF_ONE_CONNECTION, "expect"}}
            server.request(self.command, self.path, body=body, headers=kept | {"Content-Length": str(len(body))})
            answer = server.getresponse()
            content = answer.read()
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _OF_ONE_CONNECTION]
            announced = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(content)
        finally:
            server.close()
        self._answer(answer.status, answer.reason, headers, content, announced, cut=how == CUT_ANSWER)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def _answer(
        self,
        status: int,
        reason: str,
        headers: list[tuple[str, str]],
        content: bytes,
        length: int,
        *,
        cut: bool = False,
    ) -> None:
        """Sends an answer in one write, or half of it: nothing, where it has no content."""
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{k}: {v}" for k, v in headers)]
        if status != 204:
            lines.append(f"Content-Length: {length}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if cut:
            self.close_connection = True
            self.wfile.write(head + content[: len(content) // 2] if content else b"")
        else:
            self.wfile.write(head + (b"" if self.command == "HEAD" else content))

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _request(method: str, path: str, copies: bool) -> Request:
    parts = urlsplit(path)
    key = unquote(parts.path).lstrip("/").partition("/")[2]
    asked = parse_qs(parts.query, keep_blank_values=True)
    if method in ("GET", "HEAD") and not key:
        return Request("LIST" if "list-type" in asked else "BUCKET", asked.get("prefix", [""])[0])
    if method == "POST" and "delete" in asked:
        return Request("DELETE", key)
    return Request("COPY" if copies else method, key)

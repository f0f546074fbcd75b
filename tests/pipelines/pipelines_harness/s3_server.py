"""An S3 server on the loopback interface: moto, in a process of its own, which keeps everything in memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import quote

from .broker import HOST, free_port, listens

#: What moto takes for a signature; it looks into none.
_SIGNED: Final = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_NAMES: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class ServerFailed(Exception):
    """A server that did not start, with the end of what it said."""


def moto_is_there() -> bool:
    """Whether moto and what its server needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("moto", "flask", "flask_cors"))


class S3Server:
    """A server that may be asked for anything by anyone. Use as a context manager; the process ends with it."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets its log."""
        self._log, self.port = folder / "s3.log", free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens: host and port."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while not listens(self.port):
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise ServerFailed(f"the S3 server did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Bucket:
    """A bucket, and a look at what is in it that no query notices."""

    def __init__(self, server: S3Server, name: str) -> None:
        """Makes the bucket."""
        self.name, self._at = name, f"http://{server.address}/{name}"
        _asked(self._at, "PUT")

    def url(self, key: str) -> str:
        """What Hadoop calls an object of the bucket."""
        return f"s3a://{self.name}/{key}"

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin with a prefix, in their order."""
        found: list[str] = []
        more = ""
        while True:
            page = ET.fromstring(_asked(f"{self._at}?list-type=2&prefix={quote(prefix)}{more}"))
            found += [key.text or "" for key in page.iter(f"{_NAMES}Key")]
            token = page.findtext(f"{_NAMES}NextContinuationToken")
            if not token:
                return found
            more = f"&continuation-token={quote(token)}"

    def read(self, key: str) -> bytes:
        """The bytes of an object."""
        return _asked(f"{self._at}/{quote(key)}")

    def copy_objects(self, prefix: str, to: str) -> None:
        """Copies the objects of a prefix to another prefix."""
        for key in self.keys(prefix):
            source = quote(f"/{self.name}/{key}")
            _asked(f"{self._at}/{quote(to + key.removeprefix(prefix))}", "PUT", {"x-amz-copy-source": source})

    def copy(self, prefix: str, folder: Path) -> None:
        """Copies the objects of a prefix that are new into a folder, under the rest of their names.

        Those whose names begin with a dot are on their way to another name, and not copied.
        """
        for key in self.keys(prefix):
            file = folder / key.removeprefix(prefix).lstrip("/")
            if key.endswith("/") or file.name.startswith(".") or file.exists():
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.read(key))


def _asked(url: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, method=method, headers={"Authorization": _SIGNED, **(headers or {})})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())

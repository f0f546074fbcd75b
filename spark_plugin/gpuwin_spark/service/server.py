"""Server of a Unix socket, a thread for each connection: kernels release the interpreter lock, so tasks run at once."""

from __future__ import annotations

import _thread
import logging
import os
import socket
import time
from pathlib import Path
from typing import BinaryIO, cast

from .conversation import Conversation
from .residents import Residents

log = logging.getLogger("gpuwin.service")

BACKLOG = 256
BUFFER = 1 << 18
#: Seconds before the next attempt to accept a connection where one failed.
PAUSE = 0.1


class Server:
    """Listener on a socket, from construction on; ``serve`` accepts until ``close``."""

    def __init__(self, path: Path, token: str) -> None:
        self._token = token
        self._residents = Residents()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(BACKLOG)

    def serve(self) -> None:
        """Accepts connections until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except (OSError, MemoryError) as e:
                if self._listener.fileno() < 0:  # closed: the service ends
                    return
                # Too many open files, or no memory: both may pass.
                log.error("no connection could be accepted: %s", type(e).__name__)
                time.sleep(PAUSE)
                continue
            # Not threading.Thread: its start() waits for the thread to say that it runs, and waits for ever where there
            # was no memory for that.
            try:
                _thread.start_new_thread(self._converse, (connection,))
            except (RuntimeError, MemoryError) as e:
                log.error("a connection was refused: %s", type(e).__name__)
                connection.close()

    def close(self) -> None:
        """Stops accepting."""
        self._listener.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb", BUFFER) as source, connection.makefile("wb", BUFFER) as sink:
                Conversation(cast(BinaryIO, source), cast(BinaryIO, sink), self._token, self._residents).serve()
        except OSError:
            log.debug("a task closed its connection early")
        except MemoryError:
            log.error("a connection was refused: MemoryError")

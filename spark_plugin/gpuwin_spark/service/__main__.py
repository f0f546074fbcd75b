"""The device service: ``python -m gpuwin_spark.service --socket PATH``, started by Spark's executor.

The first line of standard input is the token that connections must begin with. Standard output gets one line,
``ready``; after that, the end of standard input means that the executor is gone, and the service ends.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .server import Server


def main() -> int:
    """Runs the service until its executor goes away; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpuwin_spark.service", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket to listen on")
    options = parser.parse_args()
    # The executor reads one line. What a library or a user's function prints goes to the log, and fills no pipe.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    # Ctrl-C in a notebook goes to the whole process group; the executor decides when the service ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    token = sys.stdin.readline().strip()
    if len(token) < 32:
        print("no token came on standard input; this program is started by Spark's executor", file=sys.stderr)
        _remove(options.socket)
        return 2
    try:
        _keep_pandas_out()
        from .server import Server
    except ImportError as e:
        print(f"{sys.executable} cannot import what gpuwin needs: {e}", file=sys.stderr)
        return 3
    server = Server(options.socket, token)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    with os.fdopen(answers, "w") as executor:
        executor.write("ready\n")
    while sys.stdin.readline():
        pass
    server.close()
    _remove(options.socket)
    # Tasks that are still being served have nobody to answer to.
    os._exit(0)


def _keep_pandas_out() -> None:
    """Lets pyarrow see that there is no pandas, which it imports with its first array: that takes longer than all of
    gpuwin, and memory in each executor, for nothing. A user's aggregate may import it, and use it, all the same.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow

        pyarrow.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(importlib.abc.MetaPathFinder):
    """Finder of modules that finds no pandas, and leaves all others to those after it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


def _serve(server: Server) -> None:
    """Thread that serves connections, and ends the process where it cannot: Spark starts another service then, where it
    would wait for one that listens no more.
    """
    try:
        server.serve()
    except BaseException:
        os._exit(70)


def _remove(socket: Path) -> None:
    """Removes the socket and its folder, for an executor that was killed cannot. A folder with other files stays."""
    with contextlib.suppress(OSError):
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main())

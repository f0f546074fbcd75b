"""A device service with a fault: a state that is rebuilt lacks the newest segment of its log.

It is what a test starts in the place of the real one, to see that the harness finds such a thing.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from gpuwin_spark.service import __main__ as service
from gpuwin_spark.service import conversation
from gpuwin_spark.service.states import Segments, Spec, State

_rebuilt = conversation.rebuilt


def _forgetful(spec: Spec, segments: Segments, *rest: object) -> State:
    return _rebuilt(spec, segments[:-1], *rest)  # type: ignore[arg-type]


def interpreter(folder: Path) -> Path:
    """A program for `spark.gpuwin.python`: this Python, but that it runs this module where it is given
    `-P -m gpuwin_spark.service ...`.

    The harness finds the process by the words that it was given.
    """
    program = folder / "python-with-a-fault"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *gpuwin_spark.service*) instead="-m ' + __name__ + '";; *) instead=;; esac\n'
        f'exec {sys.executable} $instead "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


if __name__ == "__main__":
    conversation.rebuilt = _forgetful
    del sys.argv[1 : sys.argv.index("--socket")]
    sys.exit(service.main())

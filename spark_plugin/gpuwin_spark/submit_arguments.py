"""Adds to the lists that ``PYSPARK_SUBMIT_ARGS`` sets.

pyspark starts its JVM by ``spark-submit --conf ...(the builder's) $PYSPARK_SUBMIT_ARGS``. There a later ``--conf`` wins
over an earlier one of the same key, and ``--jars`` over ``--conf spark.jars`` wherever it stands, so that a list of the
builder's would be lost without a word.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from .java import SparkSetupError

_FLAG_OF: Final = {"spark.jars": "--jars"}


def appended(arguments: str, lists: Mapping[str, str]) -> str:
    """The arguments with each value added to the list of its key, where they set that key; the rest is as it was.

    Args:
        arguments: as in ``PYSPARK_SUBMIT_ARGS``.
        lists: configuration key to the value that its comma-separated list must contain.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    try:
        words = shlex.split(arguments)
    except ValueError as e:
        raise SparkSetupError(f"PYSPARK_SUBMIT_ARGS={arguments!r} cannot be read ({e}): see to its quotes.") from e
    changed = words
    for key, value in lists.items():
        changed = _with(changed, key, value)
    return arguments if changed == words else shlex.join(changed)


def _with(words: list[str], key: str, value: str) -> list[str]:
    """Of several settings of one list Spark takes the flag, or the last; each is added to, which costs nothing."""
    out = list(words)
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        flag = _FLAG_OF.get(key, "")
        if flag and before == flag:
            out[at] = _listed(word, value)
        elif flag and word.startswith(flag + "="):
            out[at] = f"{flag}={_listed(word[len(flag) + 1 :], value)}"
        elif before in ("--conf", "-c") and word.startswith(key + "="):
            out[at] = f"{key}={_listed(word[len(key) + 1 :], value)}"
        elif word.startswith(f"--conf={key}="):
            head = f"--conf={key}="
            out[at] = head + _listed(word[len(head) :], value)
    return out


def _listed(present: str, value: str) -> str:
    values = [v.strip() for v in present.split(",") if v.strip()]
    return ",".join(values if value in values else [*values, value])

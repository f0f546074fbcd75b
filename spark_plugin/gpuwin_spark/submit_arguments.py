"""Settings in ``PYSPARK_SUBMIT_ARGS``: what they are, and additions to the lists.

pyspark starts its JVM by ``spark-submit --conf ...(the builder's) $PYSPARK_SUBMIT_ARGS``. There a later ``--conf`` wins
over an earlier one of the same key, and ``--jars`` over ``--conf spark.jars`` wherever it stands, so that a list of the
builder's would be lost without a word.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from .errors import SparkSetupError

_FLAG_OF: Final = {"spark.jars": "--jars"}


def appended(arguments: str, lists: Mapping[str, str]) -> str:
    """The arguments with each value added to the list of its key, where they set that key; the rest is as it was.

    Args:
        arguments: as in ``PYSPARK_SUBMIT_ARGS``.
        lists: configuration key to what its comma-separated list must contain, separated by commas.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    words = changed = _split(arguments)
    for key, value in lists.items():
        changed = _with(changed, key, value)
    return arguments if changed == words else shlex.join(changed)


def listed(arguments: str, key: str) -> list[str]:
    """Value that the arguments set the list `key` to; empty where they do not.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    words = _split(arguments)
    mark = "\0"  # in no argument
    return [v for w in _with(words, key, mark) if w.endswith(mark) for v in _values(_after_name(w, key)) if v != mark]


def setting(arguments: str, key: str, flag: str = "") -> str:
    """Value that the arguments set `key` to, by ``--conf`` or by its `flag`; empty where they do not. The last one
    counts.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    words = _split(arguments)
    found = ""
    for before, word in zip(["", *words], words, strict=False):
        if before in ("--conf", "-c") and word.startswith(f"{key}="):
            found = word[len(key) + 1 :]
        elif word.startswith(f"--conf={key}="):
            found = word[len(f"--conf={key}=") :]
        elif flag and before == flag:
            found = word
        elif flag and word.startswith(f"{flag}="):
            found = word[len(flag) + 1 :]
    return found.strip()


def _after_name(word: str, key: str) -> str:
    for name in (f"--conf={key}=", f"{key}=", f"{_FLAG_OF.get(key, key)}="):
        word = word.removeprefix(name)
    return word


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as e:
        raise SparkSetupError(f"PYSPARK_SUBMIT_ARGS={arguments!r} cannot be read ({e}): see to its quotes.") from e


def _with(words: list[str], key: str, value: str) -> list[str]:
    """Arguments with an item added to a list. Of several settings of one list Spark takes the flag, or the last; each
    is added to, which costs nothing.
    """
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
    return ",".join(dict.fromkeys([*_values(present), *_values(value)]))


def _values(text: str) -> list[str]:
    return [v.strip() for v in text.split(",") if v.strip()]

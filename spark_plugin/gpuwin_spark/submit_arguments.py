"""Settings in ``PYSPARK_SUBMIT_ARGS``: what they are, and additions to the lists.

pyspark starts its JVM by ``spark-submit --conf ...(the builder's) $PYSPARK_SUBMIT_ARGS``. There a later ``--conf`` wins
over an earlier one of the same key, and ``--jars`` over ``--conf spark.jars`` wherever it stands, so that a list of the
builder's would be lost without a word.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
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
    words = _split(arguments)
    changed = list(words)
    for key, value in lists.items():
        # Of several settings of one list Spark takes the flag, or the last; each is added to, which costs nothing.
        for at, head, present in list(_settings(changed, key, _FLAG_OF.get(key, ""))):
            changed[at] = head + ",".join(dict.fromkeys([*_values(present), *_values(value)]))
    return arguments if changed == words else shlex.join(changed)


def listed(arguments: str, key: str) -> list[str]:
    """Value that the arguments set the list `key` to; empty where they do not.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    found = _settings(_split(arguments), key, _FLAG_OF.get(key, ""))
    return [item for _, _, value in found for item in _values(value)]


def setting(arguments: str, key: str, flag: str = "") -> str:
    """Value that the arguments set `key` to, by ``--conf`` or by its `flag`; empty where they do not. The last one
    counts.

    Raises:
        SparkSetupError: the arguments cannot be split as a shell does.
    """
    values = [value for _, _, value in _settings(_split(arguments), key, flag)]
    return values[-1].strip() if values else ""


def _settings(words: Sequence[str], key: str, flag: str) -> Iterator[tuple[int, str, str]]:
    """Settings of a key, in order: the place of the word, its beginning before the value, and the value."""
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if flag and before == flag:
            yield at, "", word
            continue
        heads = [
            f"--conf={key}=",
            *([f"{flag}="] if flag else []),
            *([f"{key}="] if before in ("--conf", "-c") else []),
        ]
        for head in heads:
            if word.startswith(head):
                yield at, head, word.removeprefix(head)


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as e:
        raise SparkSetupError(f"PYSPARK_SUBMIT_ARGS={arguments!r} cannot be read ({e}): see to its quotes.") from e


def _values(text: str) -> list[str]:
    return [v.strip() for v in text.split(",") if v.strip()]

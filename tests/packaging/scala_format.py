"""The format of the Scala sources: 120 columns, no tabs, no blanks at ends of lines, a newline at the end; and no JSON
that is put together as text, where a value can break it: json4s writes it.

    python tests/packaging/scala_format.py

Prints each fault as `file:line: what`, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "spark_plugin" / "scala"
COLUMNS = 120
#: An interpolated string that begins as a JSON object: `s"""{"key":$value}"""`, `s"{\\"key...`.
JSON_AS_TEXT = re.compile(r's"(?:"")?\{\s*\\?"')


def faults(name: str, text: str) -> Iterator[str]:
    """The faults of one source."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, and {COLUMNS} are allowed"
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if line != line.rstrip():
            yield f"{name}:{number}: a blank at the end"
        if JSON_AS_TEXT.search(line):
            yield f"{name}:{number}: JSON as text; build it with json4s"
    if not text.endswith("\n") or text.endswith("\n\n"):
        yield f"{name}: it does not end with one newline"


def main() -> int:
    found = [f for path in sorted(SOURCES.rglob("*.scala")) for f in faults(path.name, path.read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

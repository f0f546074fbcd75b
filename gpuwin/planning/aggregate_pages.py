"""Tables of the pages about aggregates, made from the records: ``python -m gpuwin.planning.aggregate_pages docs``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Final

from gpuwin.planning.aggregate_record import CellRecord, Record, RowRecord
from gpuwin.planning.aggregates import AGGREGATES, ON_SPARK

BEGIN: Final = "<!-- made by `python -m gpuwin.planning.aggregate_pages docs` -->\n"
END: Final = "<!-- end of what is made -->\n"


def aggregates_table() -> str:
    """The table of docs/aggregates.md: a line for each run of records that differ in their calls only."""

    def columns(record: Record) -> tuple[str, ...]:
        takes = tuple(dict.fromkeys(accepted.text for accepted in record.takes))
        by = f"; `by`: {takes[1]}" if len(takes) > 1 else ""
        return f"{takes[0]}{by}", record.text, record.empty, _kept(record)

    lines = ["| | takes | gives | of no values | keeps |", "|---|---|---|---|---|"]
    for words, records in groupby(AGGREGATES.values(), columns):
        calls = ", ".join(f"`{call}`" for record in records for call in record.calls)
        lines.append(f"| {' | '.join((calls, *words))} |")
    return "\n".join(lines) + "\n"


def _kept(record: Record) -> str:
    if isinstance(record, CellRecord):
        return "a cell"
    assert isinstance(record, RowRecord)
    if record.sketch is not None:
        return "a sketch"
    if record.name == "top_k":
        return "its largest rows"
    return "its different rows" if record.different else "its rows"


def spark_table() -> str:
    """The table of docs/spark_aggregates.md: Spark's functions by how their buffers are merged."""
    merges: dict[str, list[str]] = {}
    for one in ON_SPARK:
        merges.setdefault(one.merge.text, []).extend(one.functions)
    lines = ["| function | how two buffers become one |", "|---|---|"]
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {text} |" for text, names in merges.items()]
    return "\n".join(lines) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "aggregates.md": aggregates_table,
    "spark_aggregates.md": spark_table,
}


def made(page: str, table: str, begin: str = BEGIN) -> str:
    """The text of a page with the table between its marks. Raises ValueError for a page without them."""
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page lacks the line {(END if mark else begin).strip()!r}")
    return f"{before}{begin}\n{table}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Writes the tables into the pages in the folder named."""
    if len(arguments) != 1:
        print("usage: python -m gpuwin.planning.aggregate_pages FOLDER", file=sys.stderr)
        return 2
    for name, table in PAGES.items():
        path = Path(arguments[0]) / name
        path.write_text(made(path.read_text(), table()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

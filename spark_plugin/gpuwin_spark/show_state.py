"""The command ``gpuwin state show``: the state in a checkpoint, as a table or a file."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import CheckpointError
from .read_state import StateAbout, table_of_state
from .state_session import state_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

#: Rows of a table for people, where no limit is given.
_SHOWN: Final = 100
#: Characters of a value in such a table.
_WIDEST: Final = 60
_RAISED: Final = re.compile(r"GpuWindowException: (.*)")
_TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


@dataclass(frozen=True)
class ShowOptions:
    """Choice of what to show, and how.

    Attributes:
        checkpoint: the ``checkpointLocation`` of a query.
        operator, version: None for the only operator, and for the newest version.
        where: conditions on keys, ``key=value``; the value ``null`` stands for null.
        format: "table", "csv", "parquet" or "json".
        output: the file to write; None or "-" for standard output.
        limit: the most rows; None for all, but of a table for people.
        segments, windows: as of `read_state`.
    """

    checkpoint: str
    operator: int | None = None
    version: int | None = None
    where: Sequence[str] = ()
    format: str = "table"
    output: str | None = None
    limit: int | None = None
    segments: bool = False
    windows: bool = False


def show(options: ShowOptions) -> None:
    """Prints the state of an operator, or writes it into a file.

    Raises:
        CheckpointError: there is no such state, or it cannot be read; or a condition, or the file, is not a good one.
        SparkSetupError: there is no usable Java or Spark.
    """
    output = None if options.output == "-" else options.output
    if options.format == "parquet" and output is None:
        raise CheckpointError("Parquet is no text: say into which file, --output FILE.")
    with state_session("gpuwin state show") as spark, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PySpark, about pandas
        table, about = table_of_state(
            spark,
            options.checkpoint,
            options.operator,
            options.version,
            segments=options.segments,
            windows=options.windows,
        )
        for condition in options.where:
            table = table.where(_condition(spark, table, about, condition))
        limit = _SHOWN if options.limit is None and options.format == "table" else options.limit
        # Keys and bounds come first: a state has an order that does not depend on its partitions.
        table = table.orderBy(*(_column(name) for name in _order(table, about)))
        more = options.format == "table" and limit is not None
        found = table if limit is None else table.limit(limit + more)
        with _in_words():
            if options.format == "parquet":
                _write_parquet(found, str(output))
                return
            text = _text(spark, found, about, options, limit)
    if output is None:
        _print(text, exactly=options.format != "table")
    else:
        _write(output, text)


def _text(spark: SparkSession, found: DataFrame, about: StateAbout, options: ShowOptions, limit: int | None) -> str:
    if options.format == "json":
        from pyspark.sql import functions as F

        how = {"ignoreNullFields": "false", "timestampFormat": _TIMES}
        values = [_in_text(found, n) if _is_binary(found, n) else _column(n) for n in found.columns]
        lines = found.select(F.to_json(F.struct(*values), how).alias("json")).collect()
        return "".join(f"{row.json}\n" for row in lines)
    texts = found.select(*(_in_text(found, name) for name in found.columns))
    rows = [tuple(row) for row in texts.collect()]
    if options.format == "csv":
        return _csv(found.columns, rows)
    cut = limit is not None and len(rows) > limit
    mode = "" if about.mode is None else f", {about.mode} mode"
    said = [f"operator {about.operator}: {about.window}{mode}; version {about.version} "
            f"(batch {about.batch}), {about.partitions} partitions; times in "
            f"{spark.conf.get('spark.sql.session.timeZone')}"]  # fmt: skip
    aligned = _aligned(found.columns, rows[:limit], [_is_number(found, name) for name in found.columns])
    end = f"the first {limit} rows; --limit N shows more" if cut else f"{len(rows)} row{'s' * (len(rows) != 1)}"
    return "\n".join([*said, *aligned, end, ""])


def _in_text(found: DataFrame, name: str) -> Column:
    """A column as Spark writes its values; bytes in hexadecimal digits."""
    from pyspark.sql import functions as F

    column = _column(name)
    return (F.hex(column) if _is_binary(found, name) else column.cast("string")).alias(name)


def _is_binary(found: DataFrame, name: str) -> bool:
    from pyspark.sql.types import BinaryType

    return isinstance(found.schema[name].dataType, BinaryType)


def _is_number(found: DataFrame, name: str) -> bool:
    from pyspark.sql.types import NumericType

    return isinstance(found.schema[name].dataType, NumericType)


def _aligned(names: Sequence[str], rows: Sequence[Sequence[str | None]], right: Sequence[bool]) -> Iterator[str]:
    """Lines of a table: names, a rule, and rows."""
    names = [_printable(name) for name in names]
    texts = [["null" if v is None else _printable(v) for v in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]

    def line(values: Sequence[str]) -> str:
        cells = zip(values, widths, right, strict=True)
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in cells).rstrip()

    yield line(names)
    yield "  ".join("-" * w for w in widths)
    yield from map(line, texts)


def _printable(text: str) -> str:
    """A value in one line that is not too long, such as the registers of a sketch."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 3]}..."


def _csv(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    """RFC 4180: null is nothing, and an empty text is quoted."""

    def field(value: str | None) -> str:
        if value is None:
            return ""
        return '"' + value.replace('"', '""') + '"' if not value or re.search(r'[",\r\n]', value) else value

    return "".join(",".join(map(field, row)) + "\n" for row in [names, *rows])


def _write_parquet(found: DataFrame, output: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.types import YearMonthIntervalType

    for field in found.schema.fields:
        if isinstance(field.dataType, YearMonthIntervalType):  # neither Arrow nor Parquet has such values
            found = found.withColumn(field.name, _column(field.name).cast("string"))
    file = pa.BufferOutputStream()  # a writer of Parquet asks where it is, which a pipe does not know
    pq.write_table(_arrow(found), file)
    with _written(output) as path:
        path.write_bytes(file.getvalue())


def _arrow(found: DataFrame) -> pa.Table:
    import pyarrow as pa

    if hasattr(found, "toArrow"):
        return found.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = found._collect_as_arrow()  # Spark 3.5 has no public name for it
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(found.schema).empty_table()


def _print(text: str, *, exactly: bool) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding if exactly else "utf-8")
    except UnicodeEncodeError as e:
        raise CheckpointError(
            f"Standard output is {encoding}, which has no {text[e.start]!a}. Write a file, which is UTF-8 (--output "
            "FILE), or set PYTHONIOENCODING=utf-8."
        ) from e
    sys.stdout.write(text)


def _write(output: str, text: str) -> None:
    with _written(output) as path:
        path.write_text(text, encoding="utf-8", newline="")


@contextlib.contextmanager
def _written(output: str) -> Iterator[Path]:
    """A file beside ``output``, or beside what that links to, which takes its place and its mode once it is whole; a
    device, a pipe or a folder is ``output`` itself, and so is an open file (``/dev/stdout``).
    """
    part: Path | None = None
    try:
        there = os.stat(output) if os.path.exists(output) else None
        folder = os.path.realpath(os.path.dirname(output) or ".")
        if there is not None and (not stat.S_ISREG(there.st_mode) or folder.startswith(("/dev", "/proc"))):
            yield Path(output)
        else:
            target = Path(os.path.realpath(output))
            part = target.with_name(f".{target.name}.{os.getpid()}")
            yield part
            if there is not None:
                part.chmod(stat.S_IMODE(there.st_mode))
            part.replace(target)
    except OSError as e:
        raise CheckpointError(f"{Path(output).absolute()} cannot be written: {e.strerror or e}.") from e
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _condition(spark: SparkSession, table: DataFrame, about: StateAbout, condition: str) -> Column:
    """A condition ``key=value`` on the keys of the state."""
    from pyspark.sql import functions as F

    name, equals, value = condition.partition("=")
    keys = table.columns[: len(about.keys)]
    if not equals:
        raise CheckpointError(f"--where takes key=value, and not {condition!r}.")
    if name not in keys:
        there = f"its keys are {', '.join(keys)}" if keys else "it has no keys"
        raise CheckpointError(f"The state of operator {about.operator} has no key {name!r}; {there}.")
    column, wanted = _column(name), table.schema[name].dataType
    if value == "null":
        return column.isNull()
    kind = wanted.simpleString()
    known = f"{value!r} is no value of the key {name}, which is of type {kind}."
    if kind == "binary":
        if not re.fullmatch(r"(?:[0-9A-Fa-f]{2})*", value):
            raise CheckpointError(f"{known} Write its bytes in hexadecimal digits.")
        return F.hex(column) == value.upper()
    typed = f"try_cast({_quoted(value)} as {kind})"
    if spark.sql(f"select {typed} is null as wrong").collect()[0].wrong:
        raise CheckpointError(known)
    return column == F.expr(typed)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")


def _order(table: DataFrame, about: StateAbout) -> list[str]:
    """Bounds, keys, segment."""
    names, keys = table.columns, len(about.keys)
    end = keys + about.bounds
    segment = [name for name in names[end:] if re.fullmatch(r"segment(_\d+)?", name)][-1:]
    return [*names[keys:end], *names[:keys], *segment]


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Error that a task of gpuwin raised, without Spark's words around it; or a limit of Spark, and what to do."""
    try:
        yield
    except Exception as e:
        if "spark.driver.maxResultSize" in str(e):
            raise CheckpointError(
                "That is more than spark.driver.maxResultSize lets through to this process. Show a part of it (--limit "
                "N, --where KEY=VALUE), or read it as a DataFrame: gw.spark.read_state."
            ) from e
        raised = _RAISED.search(str(e))
        if raised is None:
            raise
        raise CheckpointError(raised[1]) from e

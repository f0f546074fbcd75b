"""What two runs of one query must have in common, and a sentence for each difference.

Everything is compared to the bit except float and double, which may differ by 1e-9 of their size, since the sum of
doubles depends on the order of addition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from .record import Batch, Recording

Row = tuple[object, ...]
Exact = tuple[tuple[str, object], ...]
Floats = tuple[float, ...]

TOLERANCE = 1e-9
_SHOWN = 2


class Vacuous(AssertionError):
    """The run shows nothing: no row came out, or no row was late in a stream made to have late rows."""


class NotOffloaded(AssertionError):
    """The run that should have been on gpuwin was not, or the one that should not have been was."""


def same_number(a: float, b: float) -> bool:
    """Equal, both NaN, or within the tolerance. Zeros of either sign are equal, as in Spark's own ordering."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or (math.isfinite(a) and math.isfinite(b) and abs(a - b) <= TOLERANCE * max(abs(a), abs(b)))


def in_sink(mode: str, *runs: Recording) -> list[Row]:
    """What a sink holds that replaces by key and window: all rows of append mode, and the last row of each in update
    mode. A key is a column named ``k...``."""
    rows = [row for r in runs for row in r.all_rows()]
    if mode == "append":
        return rows
    at = [i for i, c in enumerate(runs[0].columns) if c.startswith(("k", "window"))]
    return list({tuple(row[i] for i in at): row for row in rows}.values())


def _split(row: Sequence[object], exact_at: frozenset[int], keys_at: frozenset[int]) -> tuple[Exact, Floats]:
    """The part of a row that is compared to the bit, and the floats that are not. The type is a part: True is not 1."""
    exact: list[tuple[str, object]] = []
    floats: list[float] = []
    for i, value in enumerate(row):
        if not isinstance(value, float):
            exact.append((type(value).__name__, value))
        elif i in exact_at:
            exact.append(("float", value.hex() if i in keys_at else (value + 0.0).hex()))
        else:
            exact.append(("float", None))
            floats.append(value)
    return tuple(exact), tuple(floats)


def row_differences(expected: Sequence[Row], got: Sequence[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    """Compares two multisets of rows.

    A column named ``min_...`` or ``max_...`` is compared to the bit even where it is a double, and so is a key,
    ``k_...``, down to the sign of zero. (Which zero is the smaller, Spark itself leaves open.)
    """
    assert all(len(row) == len(columns) for rows in (expected, got) for row in rows) or not columns, "rows of others"
    exact_at = frozenset(i for i, c in enumerate(columns) if c.startswith(("min_", "max_", "k_")))
    keys_at = frozenset(i for i, c in enumerate(columns) if c.startswith("k_"))
    groups: dict[Exact, tuple[list[Floats], list[Floats]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((expected, got)):
        for row in rows:
            exact, floats = _split(row, exact_at, keys_at)
            groups[exact][side].append(floats)
    for exact, (wanted, found) in groups.items():
        left = list(found)
        for floats in wanted:
            match = next((f for f in left if all(map(same_number, floats, f))), None)
            if match is None:
                yield f"missing {_show(exact, floats)}" + (f"; nearest {_show(exact, left[0])}" if left else "")
            else:
                left.remove(match)
        for floats in left:
            yield f"unexpected {_show(exact, floats)}"


def _show(exact: Exact, floats: Floats) -> str:
    values = iter(floats)
    return "(" + ", ".join(repr(next(values) if e == ("float", None) else e[1]) for e in exact) + ")"


def differences(expected: Recording, got: Recording) -> list[str]:
    """Every way in which `got` is not `expected`: rows, schema, order of batches, watermark, late rows and error."""
    found: list[str] = []

    def check(what: str, a: object, b: object) -> None:
        if a != b:
            found.append(f"{what}: expected {a!r}, got {b!r}")

    check("error", expected.error, got.error)
    for what, a, b in (
        ("schema", expected.schema, got.schema),
        ("schema of the physical plan", expected.plan_schema, got.plan_schema),
    ):
        for x, y in zip_longest(a.split('{"name"'), b.split('{"name"')):
            check(what, x, y)
    check("batches", [b.id for b in expected.batches], [b.id for b in got.batches])
    for a, b in zip(expected.batches, got.batches, strict=False):
        found.extend(f"batch {a.id}: {line}" for line in _batch_differences(a, b, expected.columns))
    return found


def _batch_differences(expected: Batch, got: Batch, columns: Sequence[str]) -> Iterator[str]:
    if expected.watermark != got.watermark:
        yield f"watermark: expected {expected.watermark}, got {got.watermark}"
    if expected.input_rows != got.input_rows:
        yield f"input rows: expected {expected.input_rows}, got {got.input_rows}"
    if (expected.dropped > 0) != (got.dropped > 0):
        yield f"late rows: Spark dropped {expected.dropped}, gpuwin {got.dropped}"
    if (expected.rows is None) != (got.rows is None):
        yield f"rows: expected {expected.rows}, got {got.rows}"
    elif expected.rows is not None and got.rows is not None:
        lines = list(row_differences(expected.rows, got.rows, columns))
        missing = [line for line in lines if line.startswith("missing")]
        unexpected = [line for line in lines if line.startswith("unexpected")]
        yield from missing[:_SHOWN]
        yield from unexpected[:_SHOWN]
        if len(lines) > min(len(missing), _SHOWN) + min(len(unexpected), _SHOWN):
            yield f"of {len(expected.rows)} rows {len(missing)} are missing, and {len(unexpected)} unexpected"


def _short(plan: str) -> str:
    return "\n".join(line[:140] for line in plan.splitlines())


def assert_placed(recording: Recording, operators: Sequence[str]) -> None:
    """Every batch ran exactly these stateful operators, and the plan has a GpuWindow node where they say so."""
    wanted = tuple(operators)
    for batch in recording.batches:
        if batch.operators != wanted:
            raise NotOffloaded(f"batch {batch.id} ran {batch.operators}, and not {wanted}\n{_short(recording.plan)}")
    nodes = sum(line.lstrip(" :+-*()0123456789|").startswith("GpuWindow") for line in recording.plan.splitlines())
    if nodes != wanted.count("gpuwin"):
        raise NotOffloaded(
            f"{nodes} GpuWindow nodes in a plan that should have {wanted.count('gpuwin')}\n{_short(recording.plan)}"
        )


def assert_equal(
    plain: Recording,
    device: Recording,
    *,
    late: bool | None = True,
    rows: bool | None = True,
    fails: bool = False,
    operators: Sequence[str] = ("gpuwin",),
    spark_operators: Sequence[str] = ("stateStoreSave",),
) -> None:
    """Fails unless both runs are equal, each ran where it should, and the comparison meant something.

    `rows`, `late`: whether rows must have come out, and been dropped as late (None: it does not matter). `fails`:
    whether both must have failed; then batches before the failure count, and there may be none.
    """
    __tracebackhide__ = True
    lines = differences(plain, device)
    if lines:
        text = "\n  ".join(lines[:20])
        raise AssertionError(f"gpuwin differs from Spark:\n  {text}\n{_short(device.plan)}")
    if fails != (plain.error is not None):
        raise AssertionError(f"expected {'a failure' if fails else 'no failure'}, and both gave {plain.error}")
    assert_placed(plain, spark_operators)
    assert_placed(device, operators)
    if fails:
        return
    if rows and not any(b.rows for b in plain.batches):
        raise Vacuous("the query yields no row")
    dropped = sum(b.dropped for b in plain.batches)
    if late is not None and (dropped > 0) != late:
        raise Vacuous(f"{dropped} rows were late, where the stream should have {'some' if late else 'none'}")

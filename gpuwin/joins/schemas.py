"""Columns of the two sides: those that a specification needs, and those of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from gpuwin.errors import SchemaError
from gpuwin.joins.interval import Sides
from gpuwin.joins.keys import dictionary_of
from gpuwin.joins.output import JoinOutput
from gpuwin.joins.plan import JoinPlan
from gpuwin.joins.side import Side
from gpuwin.joins.state import JoinState
from gpuwin.joins.windows import WindowSides
from gpuwin.planning.ingest import check_time, planned_type, same_kind, unknown_type
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.vocabulary.durations import INT64_MIN

SIDE_NAMES = ("left", "right")
WINDOW_BOUNDS = ("window_start", "window_end")


def fresh_state(plan: JoinPlan) -> JoinState:
    """State of a join before its first batch."""
    none, progress = Side(()), plan.rule.begin()
    sides = plan.logic.empty(none, none)
    if progress.watermark > INT64_MIN:
        sides, _ = plan.logic.advance(sides, plan.bound(progress.watermark))  # type: ignore[arg-type]
    return JoinState(sides, (None, None), KeyDictionary([]), progress=progress)


def with_side(sides: Sides | WindowSides, number: int, side: Side) -> Sides | WindowSides:
    """Pair of sides with one (0: left, 1: right) replaced."""
    return replace(sides, left=side) if number == 0 else replace(sides, right=side)


def with_schema(plan: JoinPlan, state: JoinState, number: int, schema: pa.Schema) -> JoinState:
    """State with the columns of one side (0: left, 1: right). Raises SchemaError if they do not fit the
    specification.
    """
    side = SIDE_NAMES[number]
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise SchemaError(f"the {side} side has more than one column called {', '.join(sorted(repeated))}")
    for name in plan.keys:
        if name not in schema.names:
            what = "column" if plan.carried and name in WINDOW_BOUNDS else "key column"
            raise SchemaError(f"the {side} side has no {what} {name!r}; it has {schema.names}")
    if plan.times is not None:
        time = plan.times[number]
        if time not in schema.names:
            raise SchemaError(f"the {side} side has no time column {time!r}; it has {schema.names}")
        check_time(time, schema.field(time).type, f"{side}_schema=...")
    other = state.schemas[1 - number]
    bare = pa.schema([pa.field(f.name, planned_type(f.name, f.type)) for f in schema])
    if other is not None:
        bare = _with_keys_of(other, bare, plan.keys, side)
    types = [bare.field(name).type for name in plan.keys]
    schemas = (bare, other) if number == 0 else (other, bare)
    kept = tuple(bare.types) if plan.keeps_values(number) else ()
    known = replace((state.sides.left, state.sides.right)[number], types=kept)
    sides = with_side(state.sides, number, known)
    keys = dictionary_of(types) if other is None else state.keys
    return replace(state.with_batch(number, schema), schemas=schemas, sides=sides, keys=keys)


def _with_keys_of(other: pa.Schema, bare: pa.Schema, keys: Sequence[str], side: str) -> pa.Schema:
    """Columns of a side, with its keys in the types of the other side: a key that is encoded differently is cast."""
    for name in keys:
        type_, there = bare.field(name).type, other.field(name).type
        if not same_kind(there, type_) and not pa.types.is_null(type_):
            hint = unknown_type(name, "left_schema=..., right_schema=...") if there == pa.null() else ""
            raise SchemaError(
                f"key {name!r} is {type_} on the {side} side and {there} on the other: {hint or 'cast one'}"
            )
        bare = bare.set(bare.get_field_index(name), pa.field(name, there))
    return bare


def output_of(plan: JoinPlan, schemas: tuple[pa.Schema | None, pa.Schema | None]) -> JoinOutput:
    """Output of the columns that are known. A side without a schema has the keys and no other column."""
    known = schemas[0] if schemas[0] is not None else schemas[1]
    if known is None:
        bare = pa.schema([pa.field(name, pa.null()) for name in plan.keys])
    else:
        bare = pa.schema([known.field(name) for name in plan.keys])
    left, right = (bare if schema is None else schema for schema in schemas)
    zone = None
    if plan.times is not None and plan.times[0] in left.names:
        type_ = left.field(plan.times[0]).type
        zone = type_.tz if pa.types.is_timestamp(type_) else None
    return JoinOutput.of(
        left,
        right,
        plan.keys,
        zone,
        windowed=plan.windowed,
        cogroup=plan.cogroup,
        left_alone=plan.logic.alone is not None,
    )

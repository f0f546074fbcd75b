"""Cases of kind "accumulate": what an accumulation holds after each step of rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cases_runner import DIALECTS, table_of, value_type

import gpuwin as gw
from gpuwin.vocabulary.aggregates import Aggregate

SIMPLE = {
    "sum": gw.sum,
    "count": gw.count,
    "min": gw.min,
    "max": gw.max,
    "average": gw.mean,
    "group": gw.collect_list,
    "remove_duplicates": gw.collect_set,
    "sort": gw.collect_list,
    "concat": gw.collect_list,
    "top_n_by_key": gw.last,
}


def _plus(total: int, value: int) -> int:
    return total + value


def _itself(total: int) -> int:
    return total


def _aggregates(accumulator: dict[str, Any]) -> dict[str, Aggregate]:
    kind = accumulator["type"]
    if kind == "composite":
        return {part: SIMPLE[part]("value") for part in accumulator["parts"]}
    if kind == "top_n":
        return {"value": gw.top_k("value", accumulator["n"])}
    if kind == "custom_sum":
        own = gw.accumulation(state={"total": 0}, add=_plus, merge=_plus, result=_itself)
        return {"value": own("value")}
    return {"value": SIMPLE[kind]("value")}


def _as_written(accumulator: dict[str, Any], table: pa.Table) -> Any:
    """What the accumulator holds, as the cases write it."""
    kind = accumulator["type"]
    if kind == "top_n_by_key":
        largest = table.take(pc.select_k_unstable(table, accumulator["n"], [("value", "descending")]))
        return [[row["key"], row["value"]] for row in largest.to_pylist()]
    if kind == "composite":
        return [table.column(part)[0].as_py() for part in accumulator["parts"]]
    value = table.column("value")[0].as_py()
    if kind == "sort":
        return sorted(value, reverse=accumulator.get("descending", False))
    return accumulator["separator"].join(value) if kind == "concat" else value


def play_accumulate(case: dict[str, Any]) -> dict[str, Any]:
    accumulator = case["accumulator"]
    values = [v[1] if isinstance(v, list) else v for step in case["steps"] for v in step]
    types = {"value": value_type(values)}
    spec = gw.WindowedAggregation(
        window=gw.GlobalWindow(),
        keys=["key"] if accumulator["type"] == "top_n_by_key" else [],
        time="time",
        aggregates=_aggregates(accumulator),
        watermark=gw.ExplicitWatermark(),
        emit=gw.Complete(),
        semantics=DIALECTS[case["dialect"]],
    )
    op = spec.start()
    found = []
    for step in case["steps"]:
        pairs = [v if isinstance(v, list) else [None, v] for v in step]
        table = op.process(table_of([{"key": k, "ts_ms": 0, "value": v} for k, v in pairs], 1_000, types))
        found.append(_as_written(accumulator, table))
    return {"expected": found}

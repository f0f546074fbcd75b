"""Aggregates of bits, of statistics and of pairs against NumPy, over windows whose panes are merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw

AGGREGATES = {
    "true": gw.count_if("flag"),
    "bits and": gw.bit_and("whole"),
    "bits or": gw.bit_or("whole"),
    "bits xor": gw.bit_xor("whole"),
    "some": gw.any_value("whole"),
    "skewness": gw.skewness("y"),
    "kurtosis": gw.kurtosis("y"),
    "covar_pop": gw.covar_pop("y", "x"),
    "covar_samp": gw.covar_samp("y", "x"),
    "corr": gw.corr("y", "x"),
    "slope": gw.regr_slope("y", "x"),
    "intercept": gw.regr_intercept("y", "x"),
    "r2": gw.regr_r2("y", "x"),
    "pairs": gw.regr_count("y", "x"),
    "avgx": gw.regr_avgx("y", "x"),
    "avgy": gw.regr_avgy("y", "x"),
    "sxx": gw.regr_sxx("y", "x"),
    "syy": gw.regr_syy("y", "x"),
    "sxy": gw.regr_sxy("y", "x"),
}
FED = ("true", "pairs", "avgx", "avgy", "sxx", "syy")
"""What kernels aggregate in one pass from the rows, where a batch is large and nothing else is asked for."""


def rows_of(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pa.table(
        {
            "key": rng.integers(0, 3, n),
            "time": pa.array(np.sort(rng.integers(0, 60_000_000, n)), pa.timestamp("us")),
            "y": pa.array(3 * x + rng.gamma(2.0, size=n) + 100, pa.float64(), mask=rng.random(n) < 0.2),
            "x": pa.array(x, pa.float64(), mask=rng.random(n) < 0.2),
            "whole": pa.array(rng.integers(-(1 << 30), 1 << 30, n), pa.int32(), mask=rng.random(n) < 0.2),
            "flag": pa.array(rng.random(n) < 0.4, mask=rng.random(n) < 0.2),
        }
    )


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [r["whole"] for r in rows if r["whole"] is not None]
    alone = np.array([r["y"] for r in rows if r["y"] is not None])
    pairs = [(r["y"], r["x"]) for r in rows if r["y"] is not None and r["x"] is not None]
    y, x = np.array(pairs).reshape(-1, 2).T
    slope, intercept = np.polyfit(x, y, 1)
    apart = alone - alone.mean()
    r = np.corrcoef(x, y)[0, 1]
    return {
        "true": sum(r["flag"] is True for r in rows),
        "bits and": reduce(lambda a, b: a & b, whole),
        "bits or": reduce(lambda a, b: a | b, whole),
        "bits xor": reduce(lambda a, b: a ^ b, whole),
        "some": whole[0],
        "skewness": np.mean(apart**3) / np.mean(apart**2) ** 1.5,
        "kurtosis": np.mean(apart**4) / np.mean(apart**2) ** 2 - 3,
        "covar_pop": np.cov(x, y, ddof=0)[0, 1],
        "covar_samp": np.cov(x, y)[0, 1],
        "corr": r,
        "slope": slope,
        "intercept": intercept,
        "r2": r * r,
        "pairs": len(pairs),
        "avgx": x.mean(),
        "avgy": y.mean(),
        "sxx": np.sum((x - x.mean()) ** 2),
        "syy": np.sum((y - y.mean()) ** 2),
        "sxy": np.sum((x - x.mean()) * (y - y.mean())),
    }


def played(table: pa.Table, window: Any, names: Any, batches: int) -> list[dict[str, Any]]:
    chosen = {name: AGGREGATES[name] for name in names}
    views = gw.WindowedAggregation(
        window=window, keys=["key"], time="time", aggregates=chosen, watermark=gw.BoundedOutOfOrderness("1 second")
    )
    op, size = views.start(device="cpu"), -(-len(table) // batches)
    parts = [op.process(table.slice(at, size)) for at in range(0, len(table), size)]
    return [row for part in (*parts, op.finish()) for row in part.to_pylist()]


def check(found: list[dict[str, Any]], table: pa.Table, names: Any) -> None:
    rows = table.to_pylist()
    for window in found:
        start, end = window["window_start"], window["window_end"]
        of_window = expected([r for r in rows if r["key"] == window["key"] and start <= r["time"] < end])
        for name in names:
            assert window[name] == pytest.approx(of_window[name], rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize(
    "window",
    [
        gw.TumblingWindow("20 seconds"),
        gw.SlidingWindow("30 seconds", "10 seconds"),
        gw.SessionWindow("1 second"),
    ],
    ids=["tumbling", "sliding", "sessions"],
)
def test_the_same_as_numpy(window: Any) -> None:
    table = rows_of(900, 1)
    found = played(table, window, AGGREGATES, 3)
    enough = [row for row in found if row["pairs"] > 20]
    assert len(enough) >= 3
    check(enough, table, AGGREGATES)


def test_rows_of_a_large_batch_are_aggregated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel of the plan's columns; `unit_cells` would make a cell of each row."""
    monkeypatch.setattr("gpuwin.batch.pane_cells.AT_ONCE", 1)

    def refused(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("gpuwin.batch.pane_cells.unit_cells", refused)
    table = rows_of(2_000, 2)
    found = played(table, gw.TumblingWindow("20 seconds"), FED, 1)
    assert len(found) == 9
    check(found, table, FED)


def one(aggregate: Any, values: list[Any], type_: pa.DataType, other: pa.Array | None = None) -> pa.Array:
    table = pa.table({"time": pa.array(range(len(values)), pa.timestamp("us")), "c": pa.array(values, type_)})
    if other is not None:
        table = table.append_column("d", other)
    views = gw.WindowedAggregation(gw.GlobalWindow(), time="time", aggregates={"out": aggregate})
    return gw.aggregate(table, views)["out"].combine_chunks()


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()])
@pytest.mark.parametrize(
    ("aggregate", "both"),
    [(gw.bit_and, lambda a, b: a & b), (gw.bit_or, lambda a, b: a | b), (gw.bit_xor, lambda a, b: a ^ b)],
)
def test_bits_of_every_integer_type(aggregate: Any, both: Callable[[int, int], int], type_: pa.DataType) -> None:
    limits = np.iinfo(type_.to_pandas_dtype())
    for values in ([limits.max, 5, None], [limits.min, limits.max, 9], [limits.min], [None]):
        seen = [v for v in values if v is not None]
        found = one(aggregate("c"), values, type_)
        assert found.type == type_
        assert found.to_pylist() == [reduce(both, seen) if seen else None]


def test_decimals_and_integers_in_pairs() -> None:
    """Means keep the type of `mean`; the other statistics are of float64."""
    cents = pa.array([1, 2, 4, None]).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    found = one(gw.regr_avgy("d", "c"), [1, None, 3, 4], pa.int64(), cents)
    assert (found.type, str(found[0].as_py())) == (pa.decimal128(25, 6), "2.500000")
    assert one(gw.regr_avgx("d", "c"), [1, None, 3, 4], pa.int64(), cents).to_pylist() == [2.0]
    assert one(gw.corr("d", "c"), [1, None, 3, 4], pa.uint64(), cents).to_pylist() == [1.0]
    large = [2**63 - 1, 2**63 - 1, None]
    assert one(gw.regr_avgx("d", "c"), large, pa.int64(), pa.array([1, 1, 1])).to_pylist() == [float(2**63)]


@pytest.mark.parametrize(
    ("aggregate", "type_", "other"),
    [
        (gw.bit_and("c"), pa.float64(), None),
        (gw.count_if("c"), pa.int64(), None),
        (gw.skewness("c"), pa.string(), None),
        (gw.corr("c", "d"), pa.float64(), pa.string()),
        (gw.regr_avgy("d", "c"), pa.float64(), pa.decimal256(50, 2)),
        (gw.covar_pop("c", "d"), pa.float64(), pa.null()),
    ],
)
def test_a_type_that_does_not_fit_is_refused(aggregate: Any, type_: pa.DataType, other: pa.DataType | None) -> None:
    with pytest.raises(gw.SchemaError, match=r"aggregate 'out': .*column '[cd]', which is"):
        one(aggregate, [None], type_, None if other is None else pa.nulls(1, other))


def test_a_pair_takes_two_names() -> None:
    with pytest.raises(gw.SpecificationError, match="corr takes a column name, not 3"):
        gw.corr("y", 3)  # type: ignore[arg-type]


def test_large_means_lose_nothing() -> None:
    """Distances are kept, not sums of squares."""
    y = [1e9 + v for v in (1.0, 2.0, 3.0, 4.0)]
    assert one(gw.regr_slope("c", "d"), y, pa.float64(), pa.array([2.0, 4.0, 6.0, 8.0])).to_pylist() == [0.5]
    assert math.isclose(one(gw.kurtosis("c"), y, pa.float64())[0].as_py(), -1.36, rel_tol=1e-9)

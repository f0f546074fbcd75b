"""Names of other systems, which the package answers with its own."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest

import gpuwin as gw
from gpuwin.planning.aggregates import AGGREGATES, ON_SPARK
from gpuwin.vocabulary.other_names import INSTEAD

WITHOUT = {"bitmap_construct_agg", "bitmap_or_agg", "bitmap_and_agg", "collect_union", "pivotfirst"}
"""Functions of Spark that have nothing like them here."""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("avg", "it is gw.mean"),
        ("percentile", "it is gw.quantile"),
        ("percentile_approx", "it is gw.approx_quantile"),
        ("approx_percentile", "it is gw.approx_quantile"),
        ("stddev", "it is gw.std"),
        ("stddev_pop", "it is gw.std(column, ddof=0)"),
        ("variance", "it is gw.var"),
        ("mode", "gw.histogram has how often each value came"),
        ("arg_max", "it is gw.max_by"),
        ("nunique", "it is gw.count_distinct"),
        ("HoppingWindow", "it is gw.SlidingWindow"),
        ("withWatermark", "it is gw.BoundedOutOfOrderness"),
        ("OnWindowClose", "it is gw.OnClose"),
        ("suppress", "it is gw.OnClose"),
        ("TopOne", "it is gw.max_by"),
        ("sideOutputLateData", "late rows are had by collect_late=True and op.late_rows()"),
        ("WatermarkStrategy", "it is gw.BoundedOutOfOrderness"),
        ("grace", "it is allowed_lateness=, or the delay of gw.BoundedOutOfOrderness"),
    ],
)
def test_the_error_has_the_name(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"gpuwin has no '{name}': {says}") + "$"):
        getattr(gw, name)


def test_the_names_that_are_said_are_there_and_the_others_are_not() -> None:
    for name, text in INSTEAD.items():
        assert not hasattr(gw, name)
        assert all(hasattr(gw, ours) for ours in re.findall(r"gw\.(\w+)", text))
        assert name not in gw.__all__


def test_every_function_of_spark_leads_to_its_aggregate() -> None:
    """The table of names and the table of aggregates say the same."""
    for record in AGGREGATES.values():
        ours = {call.partition("(")[0] for call in record.calls}
        for function in (name for one in record.spark for name in one.functions if not hasattr(gw, name)):
            assert ours & set(re.findall(r"gw\.(\w+)", INSTEAD[function])), function
    every = {name for one in ON_SPARK for name in one.functions}
    assert {name for name in every if not hasattr(gw, name) and name not in INSTEAD} == WITHOUT


def test_any_other_name_is_missing_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'gpuwin' has no attribute 'nothing'") as caught:
        _ = gw.nothing
    assert caught.value.name == "nothing"
    assert not hasattr(gw, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'avg'"):
        exec("from gpuwin import avg")
    assert "avg" not in dir(gw)
    assert pickle.loads(pickle.dumps(gw.mean)) is gw.mean
    everything: dict[str, object] = {}
    exec("from gpuwin import *", everything)
    assert everything["mean"] is gw.mean
    assert "avg" not in everything


@pytest.mark.parametrize(("name", "last"), [("avg", "it is gw.mean"), ("meen", "Did you mean: 'mean'?")])
def test_python_has_a_guess_where_we_have_none(name: str, last: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import gpuwin\ngpuwin.{name}"], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1].endswith(last)

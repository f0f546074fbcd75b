"""The engine against the oracle, on streams that hypothesis makes up."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from streams import Options, answers, expected_answers, options, streams

import gpuwin as gw

EXAMPLES = settings(
    max_examples=100,
    derandomize=True,  # a run of CI says the same each time; look for more with another profile and more examples
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


KINDS = ["panes", "by row", "firings", "sessions", "session firings", "changes", "complete"]


@pytest.mark.parametrize("kind", [*KINDS, "event time", "any windows", "any sessions"])
@EXAMPLES
@given(data=st.data())
def test_engine_is_the_oracle(kind: str, data: st.DataObject) -> None:
    """Batch by batch the same rows, and the same counts of what was dropped."""
    chosen: Options = data.draw(options(kind))
    stream = data.draw(streams())
    assert answers(chosen, stream) == expected_answers(chosen, stream)


@EXAMPLES
@given(data=st.data())
def test_snapshots_at_any_point(data: st.DataObject) -> None:
    """Restored after every batch, an operator goes on to the same rows."""
    chosen = data.draw(
        options(data.draw(st.sampled_from(["panes", "firings", "sessions", "session firings", "changes"])))
    )
    stream = data.draw(streams())
    assert answers(chosen, stream, restore=True) == answers(chosen, stream)


@EXAMPLES
@given(data=st.data())
def test_any_split_gives_the_same_rows(data: st.DataObject) -> None:
    """With a watermark that moves by row nothing depends on where a batch ends; neither does it if nothing is late."""
    chosen = data.draw(options(data.draw(st.sampled_from(["by row", "ordered"]))))
    stream = data.draw(streams())
    rows = [row for batch in stream for row in batch]
    split, whole = answers(chosen, stream).rows, answers(chosen, [rows]).rows
    assert sorted(chain(*split), key=repr) == sorted(chain(*whole), key=repr)


@EXAMPLES
@given(data=st.data())
def test_any_order_within_the_watermark_gives_the_same_rows(data: st.DataObject) -> None:
    chosen = data.draw(options("ordered"))
    rows = [row for batch in data.draw(streams()) for row in batch]
    mixed = data.draw(st.permutations(rows))
    order_free = {"order_free": True}
    assert answers(chosen, [rows], **order_free) == answers(chosen, [mixed], **order_free)


def test_the_error_leaves_the_state_as_it_was() -> None:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 second"), keys=["key"], time="time", aggregates={"total": gw.sum("value")}
    )
    import pyarrow as pa

    def batch(values: list[Any], **more: Any) -> pa.Table:
        times = pa.array([0] * len(values), pa.timestamp("us"))
        return pa.table({"key": ["k"] * len(values), "time": times, "value": pa.array(values, pa.int64()), **more})

    op = spec.start()
    op.process(batch([5]))
    before = (op.metrics, op.watermark, op.snapshot())
    for bad, error in [
        (batch([2**62, 2**62]), gw.OverflowError),
        (batch([1]).drop(["value"]), gw.SchemaError),
        (batch([1]).set_column(2, "value", pa.array(["x"])), gw.SchemaError),
        ("not a table", gw.SchemaError),
    ]:
        with pytest.raises(error):
            op.process(bad)
        assert (op.metrics, op.watermark, op.snapshot()) == before
    assert op.finish().column("total").to_pylist() == [5]

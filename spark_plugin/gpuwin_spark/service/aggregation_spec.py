"""An operator that runs a whole `gw.WindowedAggregation`: what the request says of it, and how a batch moves it."""

from __future__ import annotations

import functools
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.errors import SpecificationError
from gpuwin.operator import WindowOperator
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.durations import saturating_add
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.specification_json import read_specification
from gpuwin.vocabulary.watermarks import ExplicitWatermark

from ..user_code import UserCodeError, read_code
from .protocol import ProtocolError


@dataclass(frozen=True)
class AggregationSpec:
    """One `gw.WindowedAggregation` as the service runs it on one partition.

    input: the columns that the specification reads. output: the Arrow types that Spark has for the results.
    follows: whether Spark's watermark, the smallest promise of all partitions, moves it; otherwise it has its own.
    delay: microseconds that Spark's watermark is behind the largest time seen.
    chained: whether the rows come from another stateful operator, which lets them out as the watermark moves.
    """

    specification: Specification
    input: pa.Schema
    output: pa.Schema
    follows: bool
    delay: int
    chained: bool = False

    @property
    def window_steps(self) -> dict[int, int]:
        """By column of a result, the distance in which its values come: none is known."""
        return {}

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> AggregationSpec:
        """Reads and checks the specification in a request.

        Raises:
            ProtocolError: a field is missing, of the wrong type, or not what it should be; or the file with the
                user's accumulations is not the one that the driver wrote.
        """
        try:
            code = fields["code"]  # which file has the user's accumulations
            return _parsed(
                str(fields["specification"]),
                str(fields["input"]),
                str(fields["output"]),
                bool(fields["follows"]),
                int(fields["delay"]),
                None if code is None else str(code),
                bool(fields.get("chained", False)),
            )
        except (KeyError, TypeError, ValueError, Base64Error, pa.ArrowException, UserCodeError) as e:
            if isinstance(e, SpecificationError):
                raise
            raise ProtocolError(f"the operator's specification is malformed: {e}") from e

    @functools.cached_property
    def partial(self) -> Specification:
        """The specification as a partition runs it: where Spark's watermark moves it, nothing else does."""
        if not self.follows:
            return self.specification
        semantics = replace(self.specification.semantics, late_filter="current")  # see `Event.apply`
        return replace(self.specification, watermark=ExplicitWatermark(), semantics=semantics)

    @functools.cached_property
    def lags(self) -> bool:
        """Whether rows are late by the watermark before the one that closes windows.

        So they are behind another operator: what that one lets out when the watermark moves is older than it.
        """
        return self.follows and (self.chained or self.specification.semantics.late_filter == "previous")

    @functools.cached_property
    def reads_clock(self) -> bool:
        """Whether time that passes without rows can change something."""
        rule = WatermarkRule(self.partial.watermark, self.partial.semantics)
        return rule.clocked or self.partial.trigger_reads_clock

    def watermark(self, spark: int | None) -> int | None:
        """Where Spark's watermark puts that of the specification, for `advance_watermark`; None before there is one.

        Spark's begins at 0, which says nothing.
        """
        if not self.follows or not spark:
            return None
        rule = WatermarkRule(self.specification.watermark, self.specification.semantics)
        asked = spark if rule.delay is None else saturating_add(spark + self.delay, -(rule.delay + rule.lag))
        latest = rule.to_user(rule.latest)
        assert latest is not None
        return min(asked, latest)

    def rows(self, chunks: list[bytes]) -> pa.Table:
        """Rows that Spark sent of a batch, in the order in which the stream has it, which the last column says."""
        tables = []
        for chunk in chunks:
            with pa.ipc.open_stream(chunk) as reader:
                tables.append(reader.read_all())
        if not tables:
            return self.input.empty_table()
        table = pa.concat_tables(tables)
        if table.num_columns != len(self.input) + 1 or table.schema.types[-1] != pa.int64():
            raise ProtocolError("the rows do not have the columns that were announced")
        place = table.column(len(self.input)).combine_chunks().to_numpy()
        table = table.select(range(len(self.input))).rename_columns(self.input.names)
        if len(place) > 1 and (place[1:] < place[:-1]).any():
            table = table.take(np.argsort(place, kind="stable"))
        return table.cast(self.input)

    def results(self, table: pa.Table) -> pa.Table:
        """Results in Spark's types."""
        return table.cast(self.output)


@dataclass(frozen=True, slots=True)
class Event:
    """One batch of one partition. `spark` is Spark's watermark, `now` the batch's time, both in microseconds; `data`:
    whether the batch has rows in any partition."""

    spark: int | None
    now: int
    data: bool
    rows: pa.Table

    def apply(self, spec: AggregationSpec, before: WindowOperator) -> tuple[WindowOperator, list[pa.Table]]:
        """The operator after the batch, and what it emits; the one before stays as it is.

        Spark learns the watermark of a batch at its end. So it is applied before the rows of the next one, or in a
        batch without data; or after these rows: behind another operator, and where a specification asks for
        `late_filter="previous"`, which is to say, for Spark without batches that have no data. Before rows, time stands
        while the watermark moves: a trigger that looks at the clock would fire without these rows.
        """
        watermark = spec.watermark(self.spark)
        operator = before.branch(clock=_still(self.now))
        if spec.lags:
            if not self.data:
                return operator, []
            emitted = [operator.process(self.rows)]
            return operator, emitted if watermark is None else [*emitted, operator.advance_watermark(watermark)]
        emitted = []
        if watermark is not None and self.data:
            operator = before.branch(clock=_still(0))  # for an operator time never goes back
            emitted.append(operator.advance_watermark(watermark))
            operator = operator.branch(clock=_still(self.now))
        elif watermark is not None:
            emitted.append(operator.advance_watermark(watermark))
        if self.data or spec.reads_clock:
            emitted.append(operator.process(self.rows))
        return operator, emitted


def _still(now: int) -> Callable[[], int]:
    """A clock that stands at `now`, microseconds."""
    return lambda: now


@functools.lru_cache(maxsize=256)
def _parsed(
    text: str, input_schema: str, output_schema: str, follows: bool, delay: int, code: str | None, chained: bool
) -> AggregationSpec:
    accumulations = () if code is None else read_code(code)
    return AggregationSpec(
        read_specification(text, accumulations),
        _schema(input_schema),
        _schema(output_schema),
        follows,
        delay,
        chained,
    )


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))

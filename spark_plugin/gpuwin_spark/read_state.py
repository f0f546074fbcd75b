"""The state that gpuwin keeps in a checkpoint, as a DataFrame."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError
from .explain import checked, plugin_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StateAbout:
    """Description of a table of state.

    Attributes:
        operator, version, batch: of the checkpoint; the batch is the one that left this version.
        window: the windows in words ("sliding 1 h every 1 min"), or the kind of a deduplication.
        mode: the output mode, as far as the checkpoint knows it; None of a deduplication.
        partitions: number of state stores.
        keys: names of the keys.
        bounds: how many columns after the keys are times: of a window, or that at which a key expires.
    """

    operator: int
    version: int
    batch: int
    window: str
    mode: str | None
    partitions: int
    keys: tuple[str, ...]
    bounds: int


def read_state(
    spark: SparkSession,
    path: str,
    operator: int | None = None,
    version: int | None = None,
    *,
    segments: bool = False,
    windows: bool = False,
) -> DataFrame:
    """The state of an operator of gpuwin in a checkpoint: a row per (key, pane), per session, or per key that a
    deduplication remembers.

    It is read as Spark's own source of states reads: nothing is written into the checkpoint, and a query may run on it
    meanwhile. The session needs the plugin's jar, and gpuwin in the Python of its executors. The rows are read when the
    DataFrame is used; of a version that is gone by then, that is the error.

    Args:
        path: the ``checkpointLocation`` of the query.
        operator: its number in the query; None where gpuwin runs one only.
        version: a committed one, which is the number of its batch and 1; None for the newest.
        segments: a row for each segment that has cells of a (key, pane), not one for all. A segment is what one batch
            wrote, or several of them once they were merged.
        windows: a row per (key, window) that is open, merged from its panes. A deduplication has none.

    Returns:
        The keys under the names that they had when the checkpoint was begun; ``pane_start`` and ``pane_end`` (or
        ``window_...``, ``session_...``), timestamps; the results of the aggregates, as Spark computes them of the
        buffers; ``segment``, the version that wrote the newest part of the row; ``version``; and each buffer, named by
        its aggregate and Spark's name for it (``total__sum``). A name that is taken gets a number (``segment_2``).
        Of a deduplication: the keys, ``expires_at`` if it is one within the watermark, ``segment`` and ``version``.

    Raises:
        CheckpointError: there is no such checkpoint, operator or version, or its state is not one that can be shown;
            the message says what there is.
        SparkSetupError: the plugin is not loaded in the session, or it is a Spark Connect one.
    """
    return table_of_state(spark, path, operator, version, segments=segments, windows=windows)[0]


def table_of_state(
    spark: SparkSession, path: str, operator: int | None, version: int | None, *, segments: bool, windows: bool
) -> tuple[DataFrame, StateAbout]:
    """`read_state`, and what its rows are about."""
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql.types import StructType

    from .map_in_arrow import map_in_arrow
    from .merged_cells import merging

    if segments and windows:
        raise CheckpointError(
            "A window is merged from the cells of all segments, so ask for windows or for segments, not both."
        )
    found = _found(spark, path, operator, version)
    fields = json.loads(str(found.about()))
    about = StateAbout(**{**fields, "keys": tuple(fields["keys"])})
    if found.request() is None:  # there is nothing to merge
        if windows:
            raise CheckpointError(
                f"Operator {about.operator} is a {about.window}, which has keys and no windows: leave windows out."
            )
        return SparkDataFrame(found.finished(found.cells(), "key"), spark), about
    request = str(found.request())
    grid = json.loads(request)["window"] == "grid"
    place = "session" if not grid else "window" if windows else "pane"
    cells = SparkDataFrame(found.cells(), spark)
    schema = StructType.fromJson(json.loads(str(found.mergedSchema())))
    merged = map_in_arrow(cells, merging(request, segments, windows), schema)
    return SparkDataFrame(found.finished(merged._jdf, place), spark), about


def _found(spark: SparkSession, path: str, operator: int | None, version: int | None) -> Any:
    """The `ShownState` of Scala."""
    tables = plugin_object("StateTable")
    return checked(tables.find(spark._jsparkSession, str(path), _text(operator), _text(version))).table()


def _text(number: int | None) -> str:
    return "" if number is None else str(int(number))

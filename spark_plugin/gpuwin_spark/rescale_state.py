"""The state of a stopped query for another number of partitions: ``gpuwin state rescale``.

Cells carry their keys. They are read from the logs of all partitions, shuffled as a batch shuffles them, and written
into new state stores beside the old ones. One file, ``state/_gpuwin_stores``, puts the new ones into use. Operators of
Spark's own in the query follow where Spark can do that (``RescaledQuery.scala``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import CheckpointError
from .explain import checked, plugin_object
from .state_session import state_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Each partition is a task and some files of every batch.
MOST_PARTITIONS: Final = 100_000


def rescale_state(spark: SparkSession, path: str, partitions: int, *, stopped: bool = False) -> str:
    """Writes the state of gpuwin's operators in a checkpoint anew, for `partitions` partitions. All of it, or nothing.

    The query must not run. Operators of Spark's own in it get the number, too, from Spark 4.2 on and on RocksDB; else
    they keep theirs, which the answer says. It is a Spark job, which runs where the session runs; the session needs
    the plugin's jar.

    Args:
        path: the ``checkpointLocation`` of the query.
        partitions: 1 to `MOST_PARTITIONS`.
        stopped: says that nothing runs on a checkpoint whose last batch was begun and is not committed.

    Returns:
        What was done, a line for each operator.

    Raises:
        CheckpointError: there is no such state, or it cannot be rescaled, or the query or another command works on it;
            nothing was changed. Or not all of it is in its place yet, which the message says.
        SparkSetupError: the plugin is not loaded in the session, or it is a Spark Connect one.
    """
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise CheckpointError(f"A state has 1 to {MOST_PARTITIONS:,} partitions, and not {partitions:,}.")
    answer = plugin_object("Rescaling").rescale(spark._jsparkSession, str(path), int(partitions), stopped)
    return str(checked(answer).done())


def rescale(checkpoint: str, partitions: int, *, stopped: bool = False) -> str:
    """`rescale_state` in a Spark of its own on this machine; see there."""
    with state_session("gpuwin state rescale") as spark:
        return rescale_state(spark, checkpoint, partitions, stopped=stopped)

"""Check before an adoption, ``gpuwin state adopt``: which operators of plain Spark's checkpoint gpuwin could take over
when the query is started with ``spark.gpuwin.adopt=true``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .explain import checked, plugin_object
from .state_session import state_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class AdoptionCheck:
    """Result of the check of a checkpoint.

    Attributes:
        lines: one for each stateful operator: whether it can be adopted, or why it stays with Spark.
        some: whether any of them can be adopted, or is gpuwin's already.
    """

    lines: tuple[str, ...]
    some: bool


def check_adoption(spark: SparkSession, path: str) -> AdoptionCheck:
    """Operators of a checkpoint whose state gpuwin could adopt. Nothing is written.

    The checkpoint knows windows and keys. It does not know the aggregates: ``explain`` of the query does.

    Args:
        path: the ``checkpointLocation`` of the query.

    Raises:
        CheckpointError: it is no checkpoint, or keeps no state, or cannot be read.
        SparkSetupError: the plugin's jar is not in the session, or it is a Spark Connect one.
    """
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    answer = checked(plugin_object("AdoptionCheck").check(str(path), conf))
    return AdoptionCheck(tuple(str(answer.lines()).split("\n")), bool(answer.some()))


def check(checkpoint: str) -> AdoptionCheck:
    """`check_adoption` in a Spark of its own on this machine; see there."""
    with state_session("gpuwin state adopt") as spark:
        return check_adoption(spark, checkpoint)

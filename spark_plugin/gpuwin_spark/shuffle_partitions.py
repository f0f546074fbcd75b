"""Shuffle partitions far above the cores: what they cost a stream, said before its first batch.

Every partition of a stateful operator is a task and a state store of its own in every batch, and there are as many as
at the query's first start. ``ShufflePartitions.scala`` says the same of a plan.
"""

from __future__ import annotations

import os
import re
from typing import Final

KEY: Final = "spark.sql.shuffle.partitions"
DEFAULT: Final = 200
#: Partitions for each core from which on it is said.
FAR_ABOVE: Final = 4

_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")


def advice(setting: str, cores: int) -> str | None:
    """The sentences that tell a user of too many partitions, or None where they are not far above the cores.

    Args:
        setting: the value of ``spark.sql.shuffle.partitions``, "" where it is not set.
        cores: tasks that run at once.
    """
    if not re.fullmatch(r"\s*\d+\s*", setting or str(DEFAULT)):
        return None  # Spark refuses it, in its own words
    partitions = int(setting or DEFAULT)
    if partitions <= FAR_ABOVE * cores:
        return None
    default = "" if setting else ", Spark's default,"
    return (
        f"{KEY} is {partitions}{default} on {cores} core{'' if cores == 1 else 's'}: every batch of a stateful stream "
        f"runs {partitions} tasks and commits {partitions} state stores, however few rows it has. Set it to {cores} "
        "before the first start of a query, whose checkpoint keeps the number."
    )


def cores_of(master: str) -> int | None:
    """Tasks that a local master runs at once; None for a cluster, of which the master's name does not say it."""
    found = _LOCAL.fullmatch(master.strip())
    if found is None:
        return None
    return cores_here() if found[1] == "*" else int(found[1] or 1)


def cores_here() -> int:
    """Cores of this machine that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1

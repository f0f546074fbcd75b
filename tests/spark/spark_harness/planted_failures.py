"""Failures of tasks that a query brings on itself."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType


def fails_once(column: Column, folder: Path) -> Column:
    """True for every row; the first attempt of each task fails after its rows were seen, and leaves a file in the
    folder. Spark tries a task again only with a master of local[threads, attempts].
    """
    place = str(folder)

    def check(value: object) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            (Path(place) / f"{context.stageId()}-{context.partitionId()}").touch()
            raise RuntimeError("planted failure of a first attempt")
        return True

    return F.udf(check, BooleanType())(column)

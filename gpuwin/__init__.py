"""Windowed aggregation of streams: event time, watermarks, triggers and state, on Arrow batches; on a GPU where there
is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwin.errors import (
    DeviceError,
    GpuwinError,
    LimitExceeded,
    OverflowError,
    SchemaError,
    SnapshotError,
    SpecificationError,
)
from gpuwin.metrics import Metrics
from gpuwin.vocabulary import aggregates
from gpuwin.vocabulary.accumulations import accumulation
from gpuwin.vocabulary.aggregates import *  # noqa: F403 - all that its __all__ names, as it is below
from gpuwin.vocabulary.evictors import KeepLast, KeepNear, KeepWithin
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.triggers import (
    Complete,
    Every,
    EveryEventTime,
    EveryRow,
    EveryRows,
    OnChange,
    OnClose,
    OnUpdate,
    Trigger,
)
from gpuwin.vocabulary.watermarks import (
    BoundedOutOfOrderness,
    EventClock,
    ExplicitWatermark,
    MultipleInputs,
    SystemClock,
)
from gpuwin.vocabulary.windows import (
    CalendarWindow,
    CumulativeWindow,
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    column,
)

if TYPE_CHECKING:
    import gpuwin_spark
    from gpuwin.aggregation import WindowedAggregation
    from gpuwin.deduplication import Deduplicate, DeduplicateOperator
    from gpuwin.joins import AsOfJoin, HashJoin, IntervalJoin, JoinOperator, WindowJoin
    from gpuwin.operator import WindowOperator
    from gpuwin.streaming import aggregate, run, window_time

    spark = gpuwin_spark

__version__ = "0.1.0"

_LATER = {  # loaded when first used: they bring in Numba, or Spark
    "WindowOperator": "gpuwin.operator",
    "run": "gpuwin.streaming",
    "WindowedAggregation": "gpuwin.aggregation",
    "aggregate": "gpuwin.streaming",
    "window_time": "gpuwin.streaming",
    "Deduplicate": "gpuwin.deduplication",
    "DeduplicateOperator": "gpuwin.deduplication",
    "WindowJoin": "gpuwin.joins",
    "IntervalJoin": "gpuwin.joins",
    "AsOfJoin": "gpuwin.joins",
    "HashJoin": "gpuwin.joins",
    "JoinOperator": "gpuwin.joins",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "spark":
        value: Any = importlib.import_module("gpuwin_spark")
    elif name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
    else:
        raise _no_such(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Names of the module, those that are loaded when first used too."""
    return sorted({*globals(), *_LATER, "spark"})


def _no_such(name: str) -> AttributeError:
    """Error about a name that the module does not have. If it is one of another system, it says ours, and Python then
    has no guess of its own.
    """
    import sys

    from gpuwin.vocabulary.other_names import INSTEAD

    if name not in INSTEAD:
        return AttributeError(f"module 'gpuwin' has no attribute {name!r}")
    return AttributeError(f"gpuwin has no {name!r}: {INSTEAD[name]}", obj=sys.modules[__name__])


__all__ = [
    "AsOfJoin",
    "BoundedOutOfOrderness",
    "CalendarWindow",
    "Complete",
    "CumulativeWindow",
    "Deduplicate",
    "DeduplicateOperator",
    "DeviceError",
    "EventClock",
    "Every",
    "EveryEventTime",
    "EveryRow",
    "EveryRows",
    "ExplicitWatermark",
    "GlobalWindow",
    "GpuwinError",
    "HashJoin",
    "InheritedWindow",
    "IntervalJoin",
    "JoinOperator",
    "KeepLast",
    "KeepNear",
    "KeepWithin",
    "LimitExceeded",
    "Limits",
    "Metrics",
    "MultipleInputs",
    "OnChange",
    "OnClose",
    "OnUpdate",
    "OverflowError",
    "SchemaError",
    "Semantics",
    "SessionWindow",
    "SlidingWindow",
    "SnapshotError",
    "SpecificationError",
    "SystemClock",
    "Trigger",
    "TumblingWindow",
    "WindowJoin",
    "WindowOperator",
    "WindowedAggregation",
    "accumulation",
    "aggregate",
    "column",
    "run",
    "window_time",
]
__all__ += aggregates.__all__

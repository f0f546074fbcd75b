"""Runs one streaming query on plain Spark and on gpuwin, over the same files in one process, and compares the two."""

from .both import Both
from .case import AGGREGATES, KEYS, OTHER_PROVIDER, PROVIDERS, WINDOWS, Case
from .checkpoints import digests
from .compare import NotOffloaded, Vacuous, assert_equal, assert_placed, differences, row_differences
from .covering import Row, covering
from .map_side import DEVICE, JVM, assert_below, explained, last_plan, map_side_metric, on
from .planted_failures import fails_once
from .processes import (
    await_until,
    children,
    is_ready,
    isolated,
    jvm_pid,
    kill,
    service,
    service_with,
    services,
    socket_of,
)
from .record import FAST, Batch, Failure, Query, Recording, Run, failure, leaves, rows_of, run
from .session import spark_home, start_plain_session, start_session
from .session_case import GAPS, SPARK_SESSIONS, SessionCase
from .streams import BASES, MINUTE, SCHEMA, SECOND, Stream, StreamSpec, stamp, write, write_tables
from .trigger_clock import TriggerClock
from .versions import (
    HAS_CORR_OF_CONSTANT,
    SPARK,
    TASK_ERROR,
    arrow_of,
    condition_of,
    frame_of,
    java_sessions,
    streaming_class,
)

__all__ = [
    "AGGREGATES",
    "BASES",
    "DEVICE",
    "FAST",
    "GAPS",
    "HAS_CORR_OF_CONSTANT",
    "JVM",
    "KEYS",
    "MINUTE",
    "OTHER_PROVIDER",
    "PROVIDERS",
    "SCHEMA",
    "SECOND",
    "SPARK",
    "SPARK_SESSIONS",
    "TASK_ERROR",
    "WINDOWS",
    "Batch",
    "Both",
    "Case",
    "Failure",
    "NotOffloaded",
    "Query",
    "Recording",
    "Row",
    "Run",
    "SessionCase",
    "Stream",
    "StreamSpec",
    "TriggerClock",
    "Vacuous",
    "arrow_of",
    "assert_below",
    "assert_equal",
    "assert_placed",
    "await_until",
    "children",
    "condition_of",
    "covering",
    "differences",
    "digests",
    "explained",
    "fails_once",
    "failure",
    "frame_of",
    "is_ready",
    "isolated",
    "java_sessions",
    "jvm_pid",
    "kill",
    "last_plan",
    "leaves",
    "map_side_metric",
    "on",
    "row_differences",
    "rows_of",
    "run",
    "service",
    "service_with",
    "services",
    "socket_of",
    "spark_home",
    "stamp",
    "start_plain_session",
    "start_session",
    "streaming_class",
    "write",
    "write_tables",
]

"""The command ``gpuwin size``: from its options to the report."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.errors import GpuwinError

from .costs import measured_costs
from .estimate import estimate
from .load import Load
from .report import report

#: Rounds in which the number of executors and that of map tasks, a core each, settle.
_ROUNDS = 20


class SizeError(GpuwinError, ValueError):
    """Options that no estimate can be made of; the message says why."""


@dataclass(frozen=True)
class SizeOptions:
    """Options of the command; durations are microseconds. Either `window_us` or `gap_us` is there.

    Attributes:
        key_bytes: length of a key that is a string; None for a number.
        map_tasks: None for as many as the executors have cores.
        executors: None for as many as it takes.
    """

    rows_per_second: float
    keys: int
    window_us: int | None
    gap_us: int | None
    slide_us: int | None
    delay_us: int
    trigger_us: int
    aggregates: tuple[str, ...]
    key_bytes: int | None
    partitions: int
    map_tasks: int | None
    executors: int | None
    cores: int
    device: str
    as_json: bool


def size(options: SizeOptions) -> str:
    """The report.

    Raises:
        SizeError: the options contradict each other, or nothing was measured for them.
    """
    if options.device == "cuda":
        raise SizeError("no kernel was measured on a GPU, so nothing can be said of cuda. Ask for --device cpu.")
    if options.gap_us is not None and options.slide_us is not None:
        raise SizeError("sessions have no slide: leave out --slide, or give --window in place of --gap")
    if options.window_us is not None and (options.slide_us or 0) > options.window_us:
        raise SizeError("the slide is longer than the window, so that rows between windows would be in none")
    costs = measured_costs()
    try:
        load = _load(options, options.map_tasks or (options.executors or 1) * options.cores)
        for _ in range(_ROUNDS):  # more executors read in more tasks, which make more cells of the same rows
            needed = estimate(load, costs, 1).executors(options.cores)
            if options.map_tasks or options.executors or load.map_tasks == needed * options.cores:
                break
            load = _load(options, needed * options.cores)
    except ValueError as e:
        raise SizeError(str(e)) from e
    return report(load, costs, options.executors, options.cores, as_json=options.as_json)


def _load(options: SizeOptions, map_tasks: int) -> Load:
    size_us = options.gap_us if options.window_us is None else options.window_us
    if size_us is None:
        raise ValueError("neither a window nor a gap is given")
    return Load(
        rows_per_second=options.rows_per_second,
        keys=options.keys,
        size=size_us / 1e6,
        slide=None if options.window_us is None else (options.slide_us or options.window_us) / 1e6,
        interval=options.trigger_us / 1e6,
        delay=options.delay_us / 1e6,
        map_tasks=map_tasks,
        partitions=options.partitions,
        key_bytes=options.key_bytes or 8,
        text_keys=options.key_bytes is not None,
        aggregates=options.aggregates,
    )

"""Tiers of runs: the runs that are to become one, and the merge of several.

Runs lie in the order in which they came, large ones before small ones, in the manner of a log-structured merge tree: a
run that is not much larger than the next is merged with it, so a cell is copied a logarithmic number of times. Runs of
a stream in order of time have no pane in common. Where nobody reads them as a whole they may stay apart until there are
many of them, and are then joined by one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpuwin.errors import OverflowError
from gpuwin.state.cells import concat_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.panes.runs import Run, concat_runs
from gpuwin_kernels import tuning
from gpuwin_kernels.layout import CellLayout


def trailing(runs: Sequence[Run], fan: int) -> int:
    """Number of the last runs (at least one, none of them empty) that are to become one; 1: none are.

    fan: number of runs of about one size that become one though they have no pane in common; at least 2.
    """
    count, cells, first = 1, len(runs[-1]), runs[-1].first
    while True:
        near = count
        while near < len(runs) and len(runs[-1 - near]) < tuning.TIER_FACTOR * cells:
            near += 1
        some = runs[len(runs) - near : len(runs) - count]
        if len(some) + 1 < fan:  # only runs that share panes with the next are merged
            follows = [*[run.first for run in some[1:]], first]
            shared = [k for k, run in enumerate(some) if run.last >= follows[k]]
            some = some[shared[0] :] if shared else []
        if not some:
            return count
        count += len(some)
        cells += sum([len(run) for run in some])
        first = min(first, *[run.first for run in some])


def in_order(runs: Sequence[Run]) -> bool:
    """Whether each run ends before the pane that the next begins with."""
    return all(a.last < b.first for a, b in pairwise(runs))


def joined(layout: CellLayout, runs: Sequence[Run], heap: BytesHeap) -> Run:
    """One run of several (at least one, none of them empty). Cells are merged in the order of the runs, newest pairs
    first.

    Raises gpuwin.OverflowError if an exact sum leaves its type.
    """
    return concat_runs(apart(layout, runs, heap))


def joined_few(layout: CellLayout, runs: Sequence[Run], heap: BytesHeap) -> list[Run]:
    """The cells of `joined` as runs without a pane in common, oldest first: no large run is copied only to stand in one
    array with the next.
    """
    found: list[Run] = []
    small: list[Run] = []  # which follow each other, and are copied together
    for run in apart(layout, runs, heap):
        if small and sum(map(len, small)) + len(run) >= tuning.APART_CELLS:
            found.append(concat_runs(small))
            small = []
        small.append(run)
    found.append(concat_runs(small))
    return found if len(found) <= tuning.TIER_RUNS else [concat_runs(found)]


def apart(layout: CellLayout, runs: Sequence[Run], heap: BytesHeap) -> list[Run]:
    """The cells of `joined` as runs without a pane in common, oldest first; parts of a run share its arrays."""
    done = [runs[-1]]  # newest first
    try:
        for run in reversed(runs[:-1]):
            before: list[Run] = []
            while done and run.last >= done[-1].first:
                *head, run = run.merged_apart(done.pop(), layout, heap)
                before += head
            done += [run, *reversed(before)]
    except OverflowError:  # the sum of two parts of a cell fits with a third one
        return [_at_once(layout, runs, heap)]
    return done[::-1]


def _at_once(layout: CellLayout, runs: Sequence[Run], heap: BytesHeap) -> Run:
    pane, code = np.concatenate([r.pane for r in runs]), np.concatenate([r.code for r in runs])
    return Run.from_cells(layout, pane, code, concat_cells([r.columns for r in runs]), heap)

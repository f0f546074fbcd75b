"""Threads of the kernels: results in order, errors, and processes that end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import parallel
from gpuwin_kernels.cpu.parallel import each

RUN = """
import atexit, threading, time
import numpy as np
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of

tuning.threads = lambda: 2
values = np.arange(4 * tuning.SPLIT_ROWS)

def say(when):
    print(when, ends_of(values), flush=True)

def go_on():
    threading.main_thread().join()
    say("later")

if {first}:
    say("first")
threading.Thread(target=go_on).start()
atexit.register(say, "at exit")
"""


@pytest.fixture(autouse=True, params=[2, 5])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: request.param)


def test_results_are_in_the_order_of_the_parts() -> None:
    assert each(lambda part: (part, threading.get_ident()), range(1)) == [(0, threading.get_ident())]
    found = each(lambda part: (part * part, threading.get_ident()), range(20))
    assert [square for square, _ in found] == [part * part for part in range(20)]
    assert found[0][1] == threading.get_ident()
    assert threading.get_ident() not in {thread for _, thread in found[1:]}


@pytest.mark.parametrize("wrong", [{0}, {3}, {2, 4}])
def test_an_error_of_a_part_is_raised_once_all_have_ended(wrong: set[int]) -> None:
    ended = []

    def part(k: int) -> int:
        ended.append(k)
        if k in wrong:
            raise ValueError(f"part {k}")
        return k

    with pytest.raises(ValueError, match=f"part {min(wrong)}"):
        each(part, range(6))
    assert sorted(ended) == list(range(6))
    assert each(lambda k: k, range(6)) == list(range(6))


@pytest.mark.parametrize("first", [True, False])
def test_threads_that_outlive_the_main_one_go_on(first: bool) -> None:
    """As of a consumer that a program starts before it falls off its end."""
    command = [sys.executable, "-W", "error", "-c", RUN.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    most = 4 * tuning.SPLIT_ROWS - 1
    said = [f"{when} (0, {most})" for when in (["first"] if first else []) + ["later", "at exit"]]
    assert done.stdout.splitlines() == said
    assert not done.stderr


def test_a_process_that_can_start_no_thread_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parallel._threads.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", no)
    assert each(lambda part: (part, threading.get_ident()), range(3)) == [(k, threading.get_ident()) for k in range(3)]

"""Marks of the tests that run, by what was asked for on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def second_ones_long(cases: Sequence[object], ids: Sequence[str], short: int = 2) -> list[ParameterSet]:
    """Parameters of a comparison, every second one of them long, or all but one of `short`: where many cases ask the
    same of other values.
    """
    return [
        pytest.param(case, id=name, marks=pytest.mark.long if number % short else ())
        for number, (case, name) in enumerate(zip(cases, ids, strict=True))
    ]


def chosen(asked: str, everything: bool) -> str:
    """The marks of the tests that run: no sweep unless it is asked for, and nothing long where neither marks nor a path
    are given.
    """
    if not asked:
        return "not sweep and not long and not pipelines" if everything else "not sweep"
    return asked if "sweep" in asked else f"({asked}) and not sweep"

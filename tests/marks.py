"""Marks of the tests that run, by what was asked for on the command line."""

from __future__ import annotations


def chosen(asked: str, everything: bool) -> str:
    """The marks of the tests that run: no sweep unless it is asked for, and nothing long where neither marks nor a path
    are given.
    """
    if not asked:
        return "not sweep and not long and not pipelines" if everything else "not sweep"
    return asked if "sweep" in asked else f"({asked}) and not sweep"

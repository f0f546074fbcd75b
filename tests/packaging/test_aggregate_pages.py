"""Pages about aggregates against the table they are made from."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import gpuwin as gw
from gpuwin.planning.aggregate_pages import BEGIN, PAGES, made, main
from gpuwin.planning.aggregates import AGGREGATES
from gpuwin.vocabulary import aggregates as vocabulary

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_table_says(name: str) -> None:
    page = (DOCS / name).read_text()
    assert page == made(page, PAGES[name]()), "run python -m gpuwin.planning.aggregate_pages docs"


def test_the_command_writes_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in PAGES:
        page = (DOCS / name).read_text()
        (tmp_path / name).write_text(page.replace("| `sum", "| `summe"))
    assert main([str(tmp_path)]) == 0
    assert all((tmp_path / name).read_text() == (DOCS / name).read_text() for name in PAGES)
    (tmp_path / "aggregates.md").write_text(f"# Aggregates\n\n{BEGIN}")
    with pytest.raises(ValueError, match="end of what is made"):
        main([str(tmp_path)])
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_every_function_of_the_vocabulary_is_in_the_table() -> None:
    """By the same name and with the same parameters as the page has it, and handed on by the package."""
    calls = {call for record in AGGREGATES.values() for call in record.calls}
    functions = {
        name: function
        for name, function in vars(vocabulary).items()
        if inspect.isfunction(function) and function.__module__ == vocabulary.__name__ and not name.startswith("_")
    }
    assert {call.split("(")[0] for call in calls} == set(functions)
    for name, function in functions.items():
        assert getattr(gw, name) is function
        assert name in gw.__all__
        given = max((call for call in calls if call.startswith(f"{name}(")), key=len)
        assert len(re.findall(r"\w+(?:=[\w.]+)?", given.split("(")[1])) == len(inspect.signature(function).parameters)

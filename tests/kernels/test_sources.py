"""The sources of the kernels, read as text: what takes Numba long to compile is not in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpuwin_kernels.cpu

MODULES = sorted(Path(gpuwin_kernels.cpu.__path__[0]).glob("*.py"))


def compiled_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Call) and ast.unparse(d.func).endswith("njit") for d in node.decorator_list)
    ]


def is_number(value: ast.expr) -> bool:
    """Whether it is plainly one number: a constant, or the length of an array."""
    return isinstance(value, ast.Constant) or ".shape[" in ast.unparse(value)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_array_is_assigned_to_a_slice(module: Path) -> None:
    """Numba compiles such an assignment together with the text of an error on shapes, in 1.5 s; use `copy_items`."""
    for function in compiled_functions(ast.parse(module.read_text())):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                places = [p for p in ast.walk(node.targets[0]) if isinstance(p, ast.Slice)]
                assert not places or is_number(node.value), f"{module.name}:{node.lineno}: {ast.unparse(node)}"


def test_the_rule_sees_an_assignment() -> None:
    tree = ast.parse("@njit(cache=True)\ndef f(a, b):\n    a[:3] = b\n")
    (function,) = compiled_functions(tree)
    (node,) = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
    assert not is_number(node.value)

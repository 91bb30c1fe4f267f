"""No comparison of numbers in a test is looser than 1e-3: what is exact to seven digits must not be checked to two.

How far chance may carry a count or a mean is another matter: write that as bounds, ``0.57 < share < 0.63``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture.sources import TESTS, name_of, syntax_tree

LOOSEST = 1e-3
KEYWORDS = {"rel", "abs", "rtol", "atol", "rel_tol", "abs_tol"}
# Where a tolerance may also stand by position.
POSITIONS = {"approx": (1, 2), "allclose": (2, 3), "isclose": (2, 3), "assert_allclose": (2, 3), "assert_close": ()}


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def given(tree: ast.AST, compare: dict[str, tuple[int, ...]], keywords: set[str]) -> Iterator[tuple[int, ast.expr]]:
    """Line and expression of every tolerance that is handed to one of the functions of ``compare``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in compare:
            yield from ((node.lineno, node.args[i]) for i in compare[called(node)] if i < len(node.args))
            yield from ((node.lineno, keyword.value) for keyword in node.keywords if keyword.arg in keywords)


def tolerances(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """All in a file. Where a test's own helper takes the tolerance: the helper's default and what it is called with."""
    parameters: set[ast.expr] = set()
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        names = [argument.arg for argument in function.args.args]
        for _, expression in given(function, POSITIONS, KEYWORDS):
            if isinstance(expression, ast.Name) and expression.id in names:
                parameters.add(expression)
                yield from given(tree, {function.name: (names.index(expression.id),)}, {expression.id})
                yield from ((function.lineno, default) for default in function.args.defaults if _is_number(default))
    yield from ((line, found) for line, found in given(tree, POSITIONS, KEYWORDS) if found not in parameters)


def _is_number(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and isinstance(expression.value, float)


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """What the names of a module stand for."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def value_of(expression: ast.expr, names: dict[str, ast.expr]) -> float | None:
    """The number ``expression`` is, 0 for a tolerance that is None, or None if it cannot be read off."""
    if isinstance(expression, ast.Name) and expression.id in names:
        return value_of(names[expression.id], {})
    try:
        value = ast.literal_eval(expression)
    except ValueError:
        return None
    if value is None:
        return 0.0
    return float(value) if isinstance(value, int | float) else None


def problems(tree: ast.Module) -> list[str]:
    found = []
    for line, expression in tolerances(tree):
        value = value_of(expression, constants(tree))
        if value is None:
            found.append(f"line {line}: {ast.unparse(expression)} cannot be read off; write the number")
        elif value > LOOSEST:
            found.append(f"line {line}: {ast.unparse(expression)} is looser than {LOOSEST}")
    return found


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=name_of)
def test_tolerances_are_tight(path: Path) -> None:
    assert not problems(syntax_tree(path))


@pytest.mark.parametrize(
    "code",
    [
        "approx(1, rel=1e-2)",
        "pytest.approx(1, 0.01)",
        "torch.allclose(a, b, 1e-5, 0.5)",
        "torch.testing.assert_close(a, b, rtol=0, atol=1)",
        "math.isclose(a, b, abs_tol=0.01)",
        "LOOSE = 0.1\napprox(1, abs=LOOSE)",
        "approx(1, abs=f())",
        "def close(a, tolerance=1e-9):\n    assert_close(a, 0, atol=tolerance)\nclose(1, 0.1)",
        "def close(a, tolerance=1e-9):\n    assert_close(a, 0, atol=tolerance)\nclose(1, tolerance=0.1)",
        "def close(a, tolerance=0.5):\n    assert_close(a, 0, atol=tolerance)",
    ],
)
def test_loose_ones_are_found(code: str) -> None:
    assert len(problems(ast.parse(code))) == 1


def test_tight_ones_pass() -> None:
    tight = (
        "EPS = 1e-6\napprox(1)\napprox(1, rel=None, abs=EPS)\nassert_close(a, b, rtol=0.0, atol=1e-3)\napprox(2, 1e-9)"
    )
    assert problems(ast.parse(tight)) == []

import doctest
import inspect
import subprocess
import sys

import pytest

import oncurve.functional as functional

FUNCTIONS = [name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))]


def test_importing_the_mathematics_loads_no_model_code() -> None:
    code = (
        "import sys, oncurve.functional; "
        "print([m for m in ('transformers', 'pydantic', 'oncurve.types', 'oncurve.config') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_all_names_every_public_function() -> None:
    public = {
        name
        for module in {inspect.getmodule(getattr(functional, name)) for name in FUNCTIONS}
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public == set(FUNCTIONS)
    assert functional.__all__ == sorted(functional.__all__)


@pytest.mark.parametrize("module", sorted({getattr(functional, name).__module__ for name in FUNCTIONS}))
def test_the_examples_in_the_docstrings_hold(module: str) -> None:
    results = doctest.testmod(sys.modules[module])
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_states_shapes_source_and_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(functional, name)) or ""
    for part in ("Args:", "Returns:", "Source:", ">>> "):
        assert part in text, f"{name} has no {part.strip()!r} in its docstring"

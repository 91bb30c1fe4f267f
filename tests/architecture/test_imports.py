"""Who may import whom. The table is the architecture: a lower layer never learns what is above it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from architecture.sources import PACKAGE, ROOT, name_of, package_files, syntax_tree

BASE = {"types", "presets", "config", "recipe", "runlog", "terminal"}

# Layer by layer, what each part may import besides itself. "package" is `oncurve` itself: its version and lazy names.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "functional": set(),
    **dict.fromkeys(("models", "data", "rewards", "parallel"), BASE | {"functional"}),
    "tasks": BASE | {"functional", "rewards", "data"},
    "engines": BASE | {"functional", "models", "data"},
    "checks": BASE | {"data", "rewards"},  # what of these needs no torch
    "train": BASE | {"package", "checks", "functional", "models", "data", "rewards", "parallel", "tasks", "engines"},
    "clinic": BASE | {"package", "models", "data", "rewards", "tasks"},
    "board": {"runlog"},
    "compare": BASE,
    "dry_run": BASE | {"checks", "models", "data", "rewards"},  # what of these needs no torch
    "cli": BASE | {"package", "dry_run", "train", "board", "clinic", "compare"},
    "package": BASE | {"train", "cli"},
}

# Nothing else may be imported inside a function; these are extras that a user may not have.
OPTIONAL = {
    "antlr4",  # of math_verify
    "bubblewrap",
    "datasets",
    "gguf",
    "httpx2",
    "latex2sympy2_extended",
    "lingua",
    "math_verify",
    "peft",
    "pyarrow",
    "reasoning_gym",
    "sympy",
    "tensorboard",
    "trackio",
    "verifiers",
    "vllm",
    "wandb",
}
# Imported by the command that needs it, so that `oncurve --help` is instant.
LAZY = {"cli", "package"}
# transformers cannot be without these.
WITH_TRANSFORMERS = {"huggingface_hub", "jinja2", "tokenizers"}
IMPORT_NAME = {"pyyaml": "yaml"}


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    module: str
    """Dotted and absolute: ``oncurve.models.load``."""
    in_function: bool
    for_types_only: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def part(self) -> str:
        """The part of Oncurve it asks for."""
        rest = self.module.split(".")[1:]
        return rest[0] if rest else "package"

    def __str__(self) -> str:
        return f"{name_of(self.path)}:{self.line} imports {self.module}"


def part_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "package" if name in ("__init__", "__main__") else name


def imports_in(path: Path) -> list[Import]:
    return list(_walk(path, syntax_tree(path), in_function=False, for_types_only=False))


def _walk(path: Path, node: ast.AST, *, in_function: bool, for_types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for module in _modules(path, child):
            yield Import(path, child.lineno, module, in_function, for_types_only)  # type: ignore[attr-defined]
        yield from _walk(
            path,
            child,
            in_function=in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            for_types_only=for_types_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)),
        )


def _modules(path: Path, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:
        here = ["oncurve", *path.relative_to(PACKAGE).parts]
        module = ".".join([*here[: len(here) - node.level], *filter(None, [module])])
    if (
        module == "oncurve"
    ):  # `from oncurve import models` asks for the part, `from oncurve import __version__` does not
        parts = [alias.name for alias in node.names if alias.name in MAY_IMPORT]
        return [f"oncurve.{part}" for part in parts] or ["oncurve"]
    return [module]


def all_imports() -> list[Import]:
    return [found for path in package_files() for found in imports_in(path)]


def test_every_part_is_in_the_table() -> None:
    unknown = {part_of(path) for path in package_files()} - MAY_IMPORT.keys()
    assert not unknown, f"say in MAY_IMPORT which layer {sorted(unknown)} belongs to"


def test_the_import_table() -> None:
    wrong = [
        f"{found}; {part_of(found.path)} may import {sorted(MAY_IMPORT[part_of(found.path)]) or 'nothing of ours'}"
        for found in all_imports()
        if found.top == "oncurve" and found.part not in MAY_IMPORT[part_of(found.path)] | {part_of(found.path)}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("part", "outside"),
    [
        *((part, {"pydantic", "yaml", "rich"}) for part in sorted(BASE - {"types", "presets"})),
        ("types", {"torch"}),
        ("presets", set()),
        ("functional", {"torch"}),
        ("board", set()),
        ("cli", set()),
        ("package", set()),
    ],
)
def test_what_stays_light(part: str, outside: set[str]) -> None:
    """No torch in the records, the board or the start of the command line; nothing but torch in the maths."""
    allowed = set(sys.stdlib_module_names) | outside | {"oncurve"}
    wrong = [
        str(found)
        for found in all_imports()
        if part_of(found.path) == part
        and found.top not in allowed
        and not (found.in_function and found.top in OPTIONAL)
    ]
    assert not wrong, "\n".join(wrong)


def test_types_needs_torch_for_annotations_only() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if part_of(found.path) == "types" and found.top == "torch" and not found.for_types_only
    ]
    assert not wrong, "\n".join(wrong)


def test_setup_alone_names_engines_and_model_classes() -> None:
    """The loops take an Engine and a module; which ones is decided in one file."""
    wrong = [
        str(found)
        for found in all_imports()
        if part_of(found.path) == "train"
        and found.path.name != "setup.py"
        and (found.module.startswith("oncurve.engines") or found.top in ("transformers", "peft", "vllm"))
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if found.in_function and found.top not in OPTIONAL and part_of(found.path) not in LAZY
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_imported_where_they_are_used() -> None:
    wrong = [str(found) for found in all_imports() if found.top in OPTIONAL and not found.in_function]
    assert not wrong, "importing Oncurve must not need an extra:\n" + "\n".join(wrong)


def test_what_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {requirement.split(">")[0].strip() for requirement in project["dependencies"]}
    known = {IMPORT_NAME.get(name, name) for name in declared} | WITH_TRANSFORMERS | OPTIONAL | {"oncurve"}
    wrong = [str(found) for found in all_imports() if found.top not in known | set(sys.stdlib_module_names)]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_pickled() -> None:
    """Somebody else's run directory must be safe to open."""
    pickling = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    wrong = [str(found) for found in all_imports() if found.top in pickling]
    for path in package_files():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
                wrong.append(f"{name_of(path)}:{node.lineno} uses {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_no_handler_swallows_everything() -> None:
    wrong = []
    for path in package_files():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    wrong.append(f"{name_of(path)}:{node.lineno} is a bare except")
                elif _is_broad(node.type) and all(_does_nothing(statement) for statement in node.body):
                    wrong.append(f"{name_of(path)}:{node.lineno} swallows {ast.unparse(node.type)}")
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                wrong += [
                    f"{name_of(path)}:{node.lineno} suppresses {ast.unparse(kind)}"
                    for kind in node.args
                    if _is_broad(kind)
                ]
    assert not wrong, "\n".join(wrong)


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr | ast.Return):
        return statement.value is None or isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break)


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, oncurve.cli; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_board_works_without_torch() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in package_files()
        if part_of(path) in ("board", "runlog", "recipe", "terminal", "config", "presets")
    ]
    code = f"import sys\nfor name in {modules}: __import__(name)\nprint('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"

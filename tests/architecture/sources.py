"""The files that the architecture tests read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "oncurve"
TESTS = ROOT / "tests"


def name_of(path: Path) -> str:
    """``path`` as a message shows it."""
    return path.relative_to(ROOT).as_posix()


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def documents() -> list[Path]:
    """What a user or a contributor reads."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

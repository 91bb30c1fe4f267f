"""The repository speaks to its readers: nothing in it points to one machine, or to how and by whom it was written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from architecture.sources import ROOT, name_of

FOLDERS = ("src", "tests", "docs", "recipes", "examples", "benchmarks", ".ci")
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".jsonl", ".csv", ".sh", ".html", ".css", ".js", ""}

# Broken in two so that this file passes its own test.
EVERYWHERE = {
    "a path of one machine": r"(?<![\w.-])/(?:wo" + r"rk|ro" + r"ot)/",
    "a note to the authors": r"DES" + r"IGN\.md|DES" + r"IGN \d|contra" + r"ct\.md",
    "an author that is a program": r"(?i)\b(?:sub-?agen" + r"t|helper agen" + r"t|claud" + r"e)\b",
}
IN_PROSE = {
    "an issue by number": r"(?i)\b(?:issues?|ticket|pull request|pr) #?\d{1,2}\b|(?<![\w&/])#\d{1,2}\b",
    "how it was written": r"(?i)\b(?:this|earlier|next|last) session\b|\bsessions\b|\bthe brief\b|\bthe lead\b",
    "a scratch directory": r"(?<![\w.])/tmp/",
}


def files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a git worktree
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in found if path.suffix in TEXT and path.stat().st_size < 1_000_000)


def is_prose(path: Path) -> bool:
    return path.suffix == ".md" or path.parent == ROOT


def found_in(text: str, *, prose: bool) -> list[str]:
    return [
        f"line {number}: {what}: {match[0]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in (EVERYWHERE | (IN_PROSE if prose else {})).items()
        if (match := re.search(pattern, line))
    ]


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_nothing_private(path: Path) -> None:
    found = found_in(path.read_text(encoding="utf-8", errors="replace"), prose=is_prose(path))
    assert not found, f"{name_of(path)}: " + "; ".join(found)


@pytest.mark.parametrize(
    "line",
    ["see /wo" + "rk/main", "fixed in issue 12", "closes #7", "done in the last session", "DES" + "IGN 3 says"],
)
def test_private_words_are_found(line: str) -> None:
    assert len(found_in(line, prose=True)) == 1


@pytest.mark.parametrize(
    "line", ["transformers issue 35782", "TRL #3179", "path/work/x", "a `#!/bin/sh` line", "docs#anchors", "&#39;"]
)
def test_ordinary_words_pass(line: str) -> None:
    assert found_in(line, prose=True) == []

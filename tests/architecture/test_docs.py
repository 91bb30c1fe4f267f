"""What the documents name is there: files, links, headings, make targets, commands, options, functions, metrics."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import oncurve.functional
from architecture.sources import PACKAGE, ROOT, TESTS, documents, name_of, syntax_tree
from oncurve.board.catalogue import SECTIONS
from oncurve.config import Recipe, leaves
from oncurve.rewards import BUILT_IN

FOLDERS = ("src", "tests", "docs", "recipes", "examples", "benchmarks", ".ci")
# Words that stand for something the reader has: `path/to/rewards.py`, `--section.key`, `RECIPE.toml`.
PLACEHOLDER = re.compile(r"\bpath/to/|[<>{}$~]|[A-Z]{3,}|\.\.\.|section\.key")
SECTION_NAMES = "|".join(Recipe.model_fields)
FILE_ENDINGS = ("py", "toml", "yaml", "json", "jsonl", "csv", "sqlite", "md", "txt", "html", "safetensors", "parquet")

# Losses, estimators, advantages, aggregation: what a run's numbers are made of.
EXPLAINED_MODULES = (
    *("advantages", "batch_advantages", "process", "shaping", "ratios", "corrections", "policy_losses", "unified"),
    *("kl", "aggregate", "value", "supervised", "estimators"),
)


def fenced(text: str) -> list[str]:
    """The insides of code blocks, lines joined where they end in a backslash."""
    blocks = re.findall(r"^( *)(`{3,}|~{3,})[^\n]*\n(.*?)^\1\2", text, re.M | re.S)
    return [body.replace("\\\n", " ") for _, _, body in blocks]


def spans(text: str) -> list[str]:
    """Inline code: `like this`."""
    without_blocks = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2", "", text, flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", without_blocks)]


def slugs(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def each_document() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents(), ids=name_of)


@pytest.mark.parametrize(
    "page",
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    + [f"docs/{page}.md" for page in ("quickstart", "notation", "follow_one_batch", "metrics", "rewards", "decisions")],
)
def test_the_pages_are_written(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8")) > 300


# -- files ------------------------------------------------------------------------------------------------------------


@each_document()
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        where, _, anchor = target.partition("#")
        path = (document.parent / where).resolve() if where else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in slugs(path.read_text("utf-8"))):
            broken.append(target)
    assert not broken, f"{name_of(document)} links to what is not there: {', '.join(broken)}"


@each_document()
def test_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set()
    for code in fenced(text) + spans(text):
        folders = "|".join(map(re.escape, FOLDERS))
        named |= set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./*<>{{}}-]*", code))
    named |= {span for span in spans(text) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|md|toml|txt|yaml)", span)}
    missing = [
        path
        for path in sorted(named)
        if not PLACEHOLDER.search(path) and not path.startswith("runs/") and not _exists(path, document)
    ]
    assert not missing, f"{name_of(document)} names what is not there: {', '.join(missing)}"


def _exists(path: str, document: Path) -> bool:
    path = path.rstrip(".")
    return any(any(folder.glob(path.rstrip("/"))) for folder in (ROOT, PACKAGE, document.parent))


# -- commands ---------------------------------------------------------------------------------------------------------


def commands(text: str, program: str) -> list[list[str]]:
    """The words of every ``program ...`` in code, up to a pipe, a redirection or a comment."""
    found = []
    for line in [line for block in fenced(text) for line in block.splitlines()] + spans(text):
        start = re.search(rf"(?:^|[;&|(]\s*|\$ |=\S+ )\s*(?:[\w.]*/)*(?:python3? -m )?{program}(?=\s|$)(.*)", line)
        if start:
            words = re.split(r"\s(?:[;&>#]|\|\s)|\s\|\s|[;)]", start[1], maxsplit=1)[0]
            found.append(words.split())
    return found


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


@cache
def help_text(*command: str) -> str | None:
    """What ``oncurve COMMAND --help`` prints, or None if there is no such command."""
    shown = subprocess.run(
        [sys.executable, "-m", "oncurve", *command, "--help"], capture_output=True, text=True, check=False
    )
    return shown.stdout if shown.returncode == 0 else None


@each_document()
def test_make_targets_exist(document: Path) -> None:
    named = {
        word
        for words in commands(document.read_text(encoding="utf-8"), "make")
        for word in words
        if re.fullmatch(r"[a-z][\w-]*", word)
    }
    assert named <= make_targets(), f"{name_of(document)}: no such target: make {' '.join(named - make_targets())}"


@each_document()
def test_commands_and_their_options_exist(document: Path) -> None:
    wrong = []
    for words in commands(document.read_text(encoding="utf-8"), "oncurve"):
        shown = " ".join(["oncurve", *words])
        names = words[0].split("|") if words and not words[0].startswith("-") else [""]
        for name in names:
            if PLACEHOLDER.search(name):
                continue
            text = help_text(*filter(None, [name]))
            if text is None:
                wrong.append(f"{shown}: no command {name}")
                continue
            wrong += [f"{shown}: no option {option}" for option in _options(words) if not _is_option(option, text)]
    assert not wrong, f"{name_of(document)}:\n" + "\n".join(wrong)


def _options(words: list[str]) -> list[str]:
    return [word.strip("[]").partition("=")[0] for word in words if word.strip("[]").startswith("--")]


def _is_option(option: str, help_of_command: str) -> bool:
    if PLACEHOLDER.search(option):
        return True
    if "." in option:
        return option.removeprefix("--").replace("-", "_") in leaves() or _is_free_form(option.removeprefix("--"))
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_of_command) is not None


def _is_free_form(name: str) -> bool:
    """Below `data.options`, which goes to a generator as it is."""
    return any(name.startswith(leaf + ".") for leaf in leaves())


@each_document()
def test_options_named_in_prose_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = {
        match[1].replace("-", "_")
        for span in spans(text)
        if (match := re.match(rf"(?:--)?((?:{SECTION_NAMES})\.[a-z][\w-]*)(?![\w./(:])", span))
        and match[1].rpartition(".")[2] not in FILE_ENDINGS
    }
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    wrong = sorted(name for name in named if name not in leaves() and name not in modules)
    assert not wrong, f"{name_of(document)} names options that do not exist: {', '.join(wrong)}"


# -- functions, rewards, metrics --------------------------------------------------------------------------------------


@cache
def all_docs() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))


@cache
def all_tests(folder: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((TESTS / folder).rglob("test_*.py")))


def functions() -> dict[str, Callable[..., object]]:
    found = {name: getattr(oncurve.functional, name) for name in oncurve.functional.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


@pytest.mark.parametrize("name", sorted(functions()))
def test_every_function_of_the_maths_has_a_test(name: str) -> None:
    assert re.search(rf"\b{name}\(", all_tests("functional")), f"no test under tests/functional calls {name}"


@pytest.mark.parametrize(
    "name", [n for n, f in sorted(functions().items()) if f.__module__.rpartition(".")[2] in EXPLAINED_MODULES]
)
def test_every_loss_estimator_and_advantage_is_explained(name: str) -> None:
    assert re.search(rf"`{name}[`(]", all_docs()), f"no page under docs/ explains `{name}`"


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_reward_has_a_test_and_a_section(name: str) -> None:
    function = BUILT_IN[name].__name__
    assert re.search(rf"\b{function}\(", all_tests("rewards")), f"no test under tests/rewards calls {function}"
    assert re.search(rf"^#+ .*`{name}`", all_docs(), re.M), f"no page under docs/ has a section on `{name}`"


def test_every_metric_of_the_report_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    charts = [chart for charts in SECTIONS.values() for chart in charts]
    names = {name for chart in charts for name in chart.names}
    missing = sorted(
        name for name in names if not re.search(re.escape(f"`{name}`").replace(r"\*", r"\{\w+\}"), glossary)
    )
    assert not missing, f"docs/metrics.md does not explain {', '.join(missing)}"


def test_every_metric_that_training_records_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    family = re.compile(r"f?'((?:advantage|clip_ratio|completions|perf|ratio|rewards|sampling|time)/[\w/{}]+)'")
    names = {
        match[1]
        for path in sorted((PACKAGE / "train").glob("*.py"))
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Constant | ast.JoinedStr) and (match := family.fullmatch(ast.unparse(node)))
    }
    assert len(names) > 10
    missing = sorted(name for name in names if f"`{name}`" not in glossary)
    assert not missing, f"docs/metrics.md does not explain {', '.join(missing)}"


# -- the readers above, on text that is wrong ------------------------------------------------------------------------


def test_these_tests_can_read() -> None:
    text = (
        "Use `make  test`.\n\n```sh\n$ .venv/bin/oncurve grpo a.toml \\\n  --run.name x > log  # go\n"
        "make demo | cat\nLOG=1 python -m oncurve runs; oncurve report runs/x\n```\nThe oncurve of prose is not one.\n"
    )
    assert commands(text, "make") == [["demo"], ["test"]]
    assert commands(text, "oncurve") == [["grpo", "a.toml", "--run.name", "x"], ["runs"]]
    assert _options(["a", "[--quiet]", "--n=3"]) == ["--quiet", "--n"]
    assert _is_option("--grpo.kl-coef", "")
    assert not _is_option("--grpo.kl-coeff", "")
    assert not _is_option("--quie", "--quiet")
    assert help_text("no-such-command") is None
    assert slugs("## Why `x`, and how?\n") == {"why-x-and-how"}

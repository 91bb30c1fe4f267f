"""The pages that are made from the presets are what the presets say. To write them anew, run this file:

python tests/presets/test_pages.py
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from oncurve.config import Grpo
from oncurve.presets import OTHER_PAPERS, PRESETS, TERMS, OtherPaper
from oncurve.presets.pages import metrics, pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HINT = "write them anew with: python tests/presets/test_pages.py"


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_what_the_presets_say(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], HINT


def test_there_is_no_page_of_a_preset_that_is_gone() -> None:
    assert {path.stem for path in (DOCS / "presets").iterdir()} == PRESETS.keys()


def test_every_metric_of_a_page_is_in_the_glossary() -> None:
    glossary = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for preset in PRESETS.values():
        for section, names in metrics(preset.terms).items():
            assert f"\n## {section}\n" in glossary
            assert [name for name in names if f"`{name}`" not in glossary] == [], preset.name


def test_metrics_follow_the_terms() -> None:
    assert "kl" in metrics(PRESETS["deepseekmath"].terms)["Policy"]
    assert "kl" not in metrics(PRESETS["dapo"].terms)["Policy"]
    assert "clip_ratio/high_mean" in metrics(PRESETS["cispo"].terms)["Policy"]
    assert "clip_ratio/high_mean" not in metrics(PRESETS["rloo"].terms)["Policy"]
    own = {**PRESETS["dapo"].terms, "sampler_correction": "mask_token", "off_policy_bound": 0.5}
    assert {"sampling/importance_weight", "sampling/off_policy_dropped"} <= set(metrics(own)["Policy"])


@pytest.mark.parametrize("paper", OTHER_PAPERS, ids=lambda paper: paper.name)
def test_what_a_paper_is_said_to_be_here_is_here(paper: OtherPaper) -> None:
    assert paper.url.startswith("https://")
    grpo = Grpo(**paper.options)  # type: ignore[arg-type]
    assert {name: getattr(grpo, name) for name in paper.options} == paper.options
    missing = [name for name in paper.functions if name not in functions()]
    assert not missing, f"oncurve.functional has no {', '.join(missing)}"


def test_every_choice_names_a_function_that_is_there() -> None:
    named = {choice.function for term in TERMS.values() for choice in term.choices.values()} - {None}
    assert named <= functions()


def functions() -> set[str]:
    """The public functions of the maths, read without importing torch."""
    files = (ROOT / "src" / "oncurve" / "functional").glob("[!_]*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    print(f"{len(pages())} pages under {DOCS}")

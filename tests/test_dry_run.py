"""``--dry-run`` looks for everything that a recipe names, as far as that needs no model and no network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncurve.cli import main
from oncurve.dry_run import check_recipe
from oncurve.recipe import recipe_from_dict
from oncurve.types import OncurveError

ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "completion": str(n + 1)} for n in range(4)]


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """``refusal(data={...})``: the lines that are said of a recipe of which all is there, with sections changed."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").touch()
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("mine.py").write_text("def good(completions, answer, **_): ...\ndef picky(completions, solution): ...\n")

    def lines(**sections: Any) -> list[str]:
        tree: dict[str, Any] = {
            "model": {"path": "model"},
            "data": {"train": "rows.jsonl"},
            "rewards": {"functions": ["accuracy", "mine.py:good"]},
            "sft": {},
            "grpo": {},
        }
        for name, changes in sections.items():
            tree[name] = tree.get(name, {}) | changes
        try:
            check_recipe(recipe_from_dict(tree), ("sft", "grpo"))
        except OncurveError as error:
            return str(error).splitlines()
        return []

    return lines


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"path": "some-owner/some-model"}, "data": {"train": "hub:some/data", "options": {"name": "main"}}},
        {
            "model": {"path": "embedded:chain"},
            "data": {"train": "task:chain:validation"},
            "sft": {"data": "rows.jsonl"},
        },
        {"data": {"train": "task:letters", "options": {"slip": 0.1}}, "sft": {"data": "rows.jsonl"}},
        {"data": {"eval": "nowhere.jsonl", "eval_size": 0}},
        {"rewards": {"functions": ["mine.py:picky"]}, "data": {"train": "task:letters"}},
    ],
)
def test_what_is_there_or_cannot_be_known_passes(refusal: Callable[..., list[str]], sections: dict[str, Any]):
    assert refusal(**sections) == []


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"model": {"path": "./modle"}}, "model.path = './modle': there is no such directory as "),
        ({"model": {"path": "m.gguf"}}, "model.path = 'm.gguf': there is no such file as "),
        ({"model": {"path": "mine.py"}}, "model.path = 'mine.py' is a file. Give"),
        ({"model": {"path": "package:no_such_package"}}, "model.path = 'package:no_such_package': the Python package"),
        ({"model": {"path": "embedded:leters"}}, "model.path: embedded:leters: there is no task 'leters'; did"),
        ({"model": {"tokenizer": "./tok"}}, "model.tokenizer = './tok': there is no such directory as "),
        ({"model": {"chat_template": "t.jinja"}}, "model.chat_template = 't.jinja' cannot be read: "),
        ({"data": {"train": "row.jsonl"}}, "data.train: there is no file row.jsonl; did you mean rows.jsonl?"),
        ({"data": {"eval": "row.jsonl"}}, "data.eval: there is no file row.jsonl; did you mean rows.jsonl?"),
        ({"sft": {"data": "row.jsonl"}}, "sft.data: there is no file row.jsonl; did you mean rows.jsonl?"),
        ({"data": {"train": "task:leters"}}, "data.train: task:leters: there is no task 'leters'; did you mean"),
        ({"sft": {"data": "task:chain:eval"}}, "sft.data: task:chain:eval: there is no task 'chain:eval'"),
        (
            {"data": {"prompt_column": "q"}},
            "data.train: rows.jsonl: data row 0 (counted from 0): there is no column 'q'",
        ),
        (
            {"data": {"completion_column": "c"}},
            "data.train: rows.jsonl: data row 0 (counted from 0): there is no column",
        ),
        (
            {"data": {"options": {"max_digits": 1}}},
            "data.options.max_digits: rows.jsonl is a file, which takes no options",
        ),
        ({"rewards": {"functions": ["acuracy"]}}, "there is no reward 'acuracy' (did you mean 'accuracy'?)"),
        ({"rewards": {"functions": ["other.py:good"]}}, "reward 'other.py:good': there is no file "),
        (
            {"rewards": {"functions": ["mine.py:god"]}},
            "reward 'mine.py:god': mine.py has no 'god' (did you mean 'good'?)",
        ),
        ({"rewards": {"metrics": ["mine.py:god"]}}, "reward 'mine.py:god': mine.py has no 'god'"),
        (
            {"rewards": {"functions": ["mine.py:picky"]}},
            "data.train: rows.jsonl: reward 'picky' requires `solution`, whi",
        ),
    ],
)
def test_what_is_not_there_is_told(refusal: Callable[..., list[str]], sections: dict[str, Any], expected: str):
    [line] = refusal(**sections)
    assert line.startswith(expected)


def test_all_is_told_at_once(refusal: Callable[..., list[str]]):
    found = refusal(model={"path": "./m"}, data={"train": "a.jsonl", "eval": "b.csv"}, rewards={"functions": ["no"]})
    assert [line.partition(":")[0].partition("; give")[0] for line in found] == [
        "model.path = './m'",
        "there is no reward 'no'",
        "data.train",
        "data.eval",
    ]


def test_a_generators_options_are_checked(refusal: Callable[..., list[str]]):
    pytest.importorskip("reasoning_gym")
    gym = {"train": "reasoning_gym:chain_sum"}
    assert refusal(data=gym | {"options": {"min_terms": 2}}, sft={"data": "rows.jsonl"}) == []
    [line] = refusal(data=gym | {"options": {"min_term": 2}}, sft={"data": "rows.jsonl"})
    assert line.startswith("data.options.min_term: reasoning_gym:chain_sum has no such option")


@pytest.mark.parametrize("command", ["sft", "grpo", "train", "demo"])
def test_the_commands_look_before_they_print(tmp_path: Path, capsys: Any, command: str):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[model]\npath = "embedded:letters"\n[data]\ntrain = "x.jsonl"\n[sft]\n[grpo]\n')
    argv = ["demo", "--data.train", "x.jsonl"] if command == "demo" else [command, str(recipe)]
    assert main([*argv, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("data.train: there is no file x.jsonl")


def test_it_needs_no_torch(tmp_path: Path):
    """Not even where it reads data and loads functions."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "mine.py").write_text("def good(completions, **_): ...\n")
    (tmp_path / "r.toml").write_text(
        '[model]\npath = "a/b"\n[data]\ntrain = "rows.jsonl"\n[rewards]\nfunctions = ["mine.py:good"]\n'
        'metrics = ["oncurve.tasks.chain:right_unboxed"]\n[sft]\n[grpo]\n'
    )
    code = (
        "import sys; from oncurve.cli import main; code = main(['train', 'r.toml', '--dry-run'])\n"
        "print(code, 'torch' in sys.modules, 'transformers' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "0 False False\n"

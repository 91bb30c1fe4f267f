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
from oncurve.train.setup import prepare
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
            "data": {"train": "rows.jsonl", "eval_size": 1},
            "sampling": {"max_new_tokens": 64},
            "rewards": {"functions": ["accuracy", "mine.py:good"]},
            "sft": {},
            "grpo": {"prompts_per_iteration": 3},
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


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"grpo": {"prompts_per_iteration": 4}}, "grpo.prompts_per_iteration is 4, but there are only 3 training"),
        ({"data": {"eval_size": 2}}, "grpo.prompts_per_iteration is 3, but there are only 2 training prompts"),
        ({"data": {"eval_size": 4}}, "data.eval_size is 4, but the training data has only 4 different prompts"),
        ({"data": {"train": "twice.jsonl"}}, "grpo.prompts_per_iteration is 3, but there are only 2 training prompts"),
        ({"data": {"eval": "rows.jsonl", "eval_size": 4}}, "data.train leaves no prompt to train on: each of them"),
        (
            {"data": {"train": "task:letters", "size": 2}, "sft": {"data": "rows.jsonl"}},
            "grpo.prompts_per_iteration is 3, but there are only 2 training prompts",
        ),
        (
            {"data": {"train": "reasoning_gym:chain_sum", "size": 9, "eval_size": 9}, "sft": {"data": "rows.jsonl"}},
            "data.eval_size is 9, but the training data, of which they are split off, has only data.size = 9 prompts",
        ),
        (
            {"model": {"path": "embedded:letters"}, "sampling": {"max_new_tokens": 128}},
            "sampling.max_new_tokens is 128, which leaves no room for a prompt in the model's context of 128 tokens",
        ),
        (
            {"model": {"path": "short"}, "eval": {"max_new_tokens": 300}, "sampling": {"max_new_tokens": 8}},
            "eval.max_new_tokens is 300, which leaves no room for a prompt in the model's context of 256 tokens",
        ),
        ({"data": {"train": "odd.jsonl"}}, "data.train: odd.jsonl: data row 1 (counted from 0): column `answer`: True"),
        (
            {"data": {"train": "empty.jsonl"}},
            "data.train: empty.jsonl: no row has an `answer`, so the accuracy reward could score nothing",
        ),
    ],
)
def test_numbers_that_a_run_refuses_are_refused(
    refusal: Callable[..., list[str]], sections: dict[str, Any], expected: str
):
    if "reasoning_gym" in str(sections):
        pytest.importorskip("reasoning_gym")
    Path("short").mkdir()
    Path("short/config.json").write_text('{"max_position_embeddings": 256}')
    for name, rows in (
        ("twice", [*ROWS[:3], ROWS[0]]),
        ("odd", [ROWS[0], ROWS[1] | {"answer": True}, *ROWS[2:]]),
        ("empty", [row | {"answer": None} for row in ROWS]),
    ):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [line] = refusal(**sections)
    assert line.startswith(expected)


def test_what_it_counts(refusal: Callable[..., list[str]]):
    assert refusal() == []
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, ROWS[0] | {"answer": None}]))
    data = {"train": "rows.jsonl", "eval": "held_out.jsonl"}
    Path("held_out.jsonl").write_text(json.dumps(ROWS[1]) + "\n")
    tree = {"model": {"path": "model"}, "data": data, "sft": {}, "grpo": {"prompts_per_iteration": 4}}
    found = check_recipe(recipe_from_dict(tree), ("sft", "grpo"))
    assert found.rows == {"train": 4, "eval": 1, "sft": 4}
    assert found.notes == [
        "rows.jsonl: 1 of 5 prompts have no `answer`; accuracy leaves them unscored",
        "1 training prompts ask what a held-out prompt asks and are left out of training",
    ]


def test_a_recipe_with_nothing_wrong_runs(tiny: Callable[..., Any], tmp_path: Path, quiet: Any):
    """What a dry run passes, at its largest, training takes too."""
    rows = [{"prompt": f"How many a's are in {'ab' * n}?", "answer": str(n)} for n in range(1, 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tiny(
        sft=None,
        data={"train": str(tmp_path / "rows.jsonl"), "eval_size": 3},
        grpo={"prompts_per_iteration": 4, "iterations": 1},
        eval={"samples": 0},
    )
    assert check_recipe(recipe, ("grpo",)).rows == {"train": 4, "eval": 3}
    parts = prepare(recipe, quiet, ("grpo",))
    assert (len(parts.train_prompts), len(parts.eval_prompts)) == (4, 3)


def test_the_objective_and_the_passes_are_printed(refusal: Callable[..., list[str]], capsys: Any):
    assert refusal() == []
    Path("r.toml").write_text(
        '[model]\npath = "model"\n[data]\ntrain = "rows.jsonl"\neval_size = 1\n[sft]\nrows_per_step = 2\n'
        "[grpo]\nprompts_per_iteration = 3\niterations = 3\nkl_coef = 0.02\n"
    )
    assert main(["train", "r.toml", "--grpo.preset", "r1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "# objective: preset r1 (arXiv 2501.12948), overridden: kl_coef\n" in out
    assert "[r1 has 0.001]\n" in out
    assert "#   prompts            9 drawn from 3 of rows.jsonl = 3 passes\n" in out
    assert "# sft                  1 pass x 3 rows / 2 rows a step = 1 optimizer step\n" in out
    assert "# evaluation, greedy   2 times x 1 prompt = 2 completions\n" in out
    assert main(["sft", "r.toml", "--dry-run"]) == 0
    assert "objective" not in capsys.readouterr().out


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
    recipe.write_text(
        '[model]\npath = "embedded:letters"\n[data]\ntrain = "x.jsonl"\n[sampling]\nmax_new_tokens = 9\n[sft]\n[grpo]\n'
    )
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
        '[model]\npath = "a/b"\n[data]\ntrain = "rows.jsonl"\neval_size = 1\n[rewards]\nfunctions = ["mine.py:good"]\n'
        'metrics = ["oncurve.tasks.chain:right_unboxed"]\n[sft]\n[grpo]\nprompts_per_iteration = 3\n'
    )
    code = (
        "import sys; from oncurve.cli import main; code = main(['train', 'r.toml', '--dry-run'])\n"
        "print(code, 'torch' in sys.modules, 'transformers' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "0 False False\n"

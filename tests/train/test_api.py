"""What Python users call, and what the command line calls: `oncurve.train`, `oncurve.evaluate`, `oncurve.sample`."""

from __future__ import annotations

import json

import pytest

import oncurve
from oncurve.terminal import Terminal
from oncurve.train import conform_command
from oncurve.types import OncurveError

PROMPT = "How many a's are in ab?"


def test_train_evaluate_and_sample_by_recipe_run_and_model(tiny, tmp_path, capsys):
    recipe = tiny(grpo={"iterations": 1}, eval={"samples": 0})
    result = oncurve.train(recipe, ["--quiet"])
    assert capsys.readouterr().out == ""
    moved = tmp_path / "moved"
    result.run_dir.rename(moved)
    model = moved / "models" / "grpo"

    sampled = [oncurve.sample(source, PROMPT, ["--quiet"], n=3) for source in (moved, model, moved / "config.toml")]
    assert sampled[0] == sampled[1]
    assert sampled[2] != sampled[0]  # the recipe's own run is not there any more: its model is a new one
    assert capsys.readouterr().out == ""

    values = [
        {e.name: e.value for each in oncurve.evaluate(source, overrides=flags) for e in each.estimates.values()}
        for source, flags in (
            (moved, []),
            (model, []),
            (recipe, ["--model.path", str(model)]),
        )
    ]
    assert values[0] == values[1] == values[2]
    assert capsys.readouterr().out.count(f"evaluating {model}\n") == 3


def test_a_model_alone_is_evaluated_on_data_that_is_given(tiny, tmp_path, capsys):
    rows = [{"prompt": f"How many a's are in {'ab' * n}?", "answer": str(n)} for n in range(1, 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--data.train", str(tmp_path / "rows.jsonl"), "--data.eval-size", "3", "--sampling.max-new-tokens", "8"]
    [greedy] = oncurve.evaluate("embedded:letters", overrides=[*flags, "--eval.samples", "0"])
    assert greedy.estimates["accuracy"].n == 3
    with pytest.raises(OncurveError, match=r"embedded:letters is taken for a model, .*--data.train FILE"):
        oncurve.evaluate("embedded:letters")
    [text] = oncurve.sample("embedded:letters", PROMPT, ["--sampling.max-new-tokens", "3"], n=1)
    assert text in capsys.readouterr().out


def test_a_greedy_completion_is_printed_once(capsys):
    short = ["--sampling.max-new-tokens", "4"]
    [text] = oncurve.sample("embedded:letters", PROMPT, short, n=2, temperature=0.0)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "greedy (temperature 0) gives the same completion every time; here it is, once"
    assert said[1].startswith(text)
    assert len(said) == 2
    assert oncurve.sample("embedded:letters", PROMPT, short, n=1, temperature=0.0) == [text]
    assert "greedy" not in capsys.readouterr().out


def test_a_run_says_that_it_will_not_clip(tiny, capsys):
    sections = {"sft": None, "data": {"eval_size": 0}}
    hint = "with one optimizer step an iteration every ratio is 1, so that surrogate clip never clips; more "
    for grpo, said in (
        ({"preset": "gspo", "kl_coef": 0.0}, 1),
        ({"minibatches": 2}, 0),
        ({"epochs": 2}, 0),
        ({"preset": "rloo"}, 0),
    ):
        name = f"run{said}{len(grpo)}{''.join(grpo)}"
        oncurve.train(tiny(run={"name": name}, grpo={"iterations": 1, **grpo}, **sections))
        assert capsys.readouterr().out.count(hint) == said


def test_conform_names_what_it_looks_at(tiny, capsys):
    conform_command(tiny(grpo={"preset": "dr-grpo", "kl_coef": 0.0}), Terminal())
    assert "must be the same (embedded:letters, preset dr-grpo, [sft])\n" in capsys.readouterr().out

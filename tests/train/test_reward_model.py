"""Training a reward model: the loss, the cut of a batch, that it learns, resumes to the same bits and is recorded."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from oncurve.config import RewardTraining
from oncurve.data.labelled import Labelled
from oncurve.models.reward_model import Form, load_reward_model, new_reward_model
from oncurve.runlog import RunLog
from oncurve.train.reward_evaluation import evaluate_reward_model
from oncurve.train.reward_figure import reward_figure
from oncurve.train.reward_model import accumulate_gradient, losses, reward_model_steps, scores_of, total_steps
from oncurve.train.reward_run import _Training, train_reward_model
from oncurve.train.step import make_optimizer
from oncurve.types import OncurveError
from tiny import tiny_llama, tiny_tokenizer

PAIRS = [
    Labelled("a", ((1, 6, 7, 2), (1, 6, 8, 9, 2)), ((4,), (5,)), (), 0.5, (2, 3)),
    Labelled("b", ((1, 10, 2), (1, 10, 8, 7, 6, 2)), ((3,), (6,)), (), 0.0, (1, 4)),
    Labelled("c", ((1, 9, 9, 2), (1, 9, 2)), ((4,), (3,)), (), 1.0, (2, 1)),
]
STEPS = [
    Labelled("a", ((1, 6, 7, 8, 2),), ((3, 5),), (1.0, 0.0), 0.0, (1, 3)),
    Labelled("b", ((1, 9, 10),), ((3,),), (0.25,), 0.0, (1,)),
]


def model_of(kind):
    model = new_reward_model(tiny_llama(), tiny_tokenizer(), Form(kind))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.module.score.weight)
    model.module.double()
    return model


def test_the_losses_are_the_formulas():
    model = model_of("pairwise")
    scores = scores_of(model, PAIRS).detach()
    found = losses(RewardTraining(centring=0.01), PAIRS, scores)
    for row, (chosen, rejected), loss in zip(PAIRS, scores.reshape(-1, 2), found, strict=True):
        assert torch.equal(model.scores([row.rows[0]]), chosen[None])
        expected = math.log1p(math.exp(-(chosen - rejected - row.margin))) + 0.01 * (chosen + rejected) ** 2
        assert float(loss - expected) == pytest.approx(0.0, abs=1e-6)
    model = model_of("process")
    scores = scores_of(model, STEPS)
    found = losses(RewardTraining(kind="process"), STEPS, scores)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        scores, torch.tensor([1.0, 0.0, 0.25]), reduction="none"
    )
    assert (found - expected).abs().max() <= 1e-6


@pytest.mark.parametrize(("kind", "rows"), [("pairwise", PAIRS), ("process", STEPS)])
@pytest.mark.parametrize("budget", [1, 12, 8192])
def test_the_cut_of_a_batch_changes_nothing(kind, rows, budget):
    def gradient(tokens):
        model = model_of(kind)
        found = accumulate_gradient(model, RewardTraining(kind=kind, microbatch_tokens=tokens), rows)
        return found, {name: p.grad for name, p in model.module.named_parameters()}

    (loss, right), whole = gradient(8192)
    (cut_loss, cut_right), cut = gradient(budget)
    assert cut_loss == pytest.approx(loss, abs=1e-6)
    assert cut_right == right
    assert all((cut[name] - value).abs().max() <= 1e-6 for name, value in whole.items())


def rows_about_hello(kind, n=24):
    """What is right says hello (11); lengths say nothing."""
    draws = random.Random(0)
    found = []
    for number in range(n):
        words = [draws.choice((6, 7, 8, 9)) for _ in range(draws.choice((2, 3)))]
        good, bad = (1, 10, *words, 11, 2), (1, 10, *words, 8, 2)
        ends = ((len(good),), (len(bad),))
        if kind == "pairwise":
            found.append(Labelled(str(number), (good, bad), ends, (), 0.0, (3, 3)))
        else:
            label = float(number % 2)
            found.append(Labelled(str(number // 2), (good if label else bad,), ends[:1], (label,), 0.0, (len(words),)))
    return found


@pytest.mark.parametrize("kind", ["pairwise", "pointwise"])
def test_it_learns_what_tells_right_from_wrong(kind):
    rows = rows_about_hello(kind)
    model = new_reward_model(tiny_llama(), tiny_tokenizer(), Form(kind))
    config = RewardTraining(kind=kind, epochs=10, rows_per_step=4, learning_rate=1e-2)
    before = evaluate_reward_model(model, rows[16:], seed=0, token_budget=64)
    assert before.estimates["accuracy"].value == 0.5  # all scores are 0
    optimizer = make_optimizer(model.module, config)
    for done in reward_model_steps(model, rows[:16], config, optimizer, seed=0):
        last = done
    assert last.step == total_steps(config, 16) == 40
    after = evaluate_reward_model(model, rows[16:], seed=0, token_budget=64)
    assert after.estimates["accuracy"].value == 1.0
    assert after.estimates["accuracy"].low > 0.5
    if kind == "pointwise":
        assert after.estimates["auc"].value == 1.0
        assert after.estimates["majority"].value == 0.5
        assert after.estimates["calibration_error"].value < before.estimates["calibration_error"].value + 0.3
    else:
        assert after.estimates["longer_chosen"].value == 0.5
    alone = evaluate_reward_model(model, rows[16:], seed=0, token_budget=1)
    for (_, score, _), (_, together, _) in zip(alone.points, after.points, strict=True):
        assert score == pytest.approx(together, abs=1e-5)
    figure = reward_figure(after.table, after.points, kind == "pairwise")
    assert figure.count("<circle") == len(after.points) + sum(part.n > 0 for part in after.table)


def test_a_model_that_takes_length_for_quality_is_found_out():
    rows = [Labelled(str(n), ((1,) + (6,) * n,), ((n + 1,),), (float(n % 2),), 0.0, (n,)) for n in range(1, 20)]
    model = new_reward_model(tiny_llama(), tiny_tokenizer(), Form("pointwise"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(model), "scores", lambda self, texts, ends=None: torch.tensor([float(len(t)) for t in texts])
        )
        found = evaluate_reward_model(model, rows, seed=0, token_budget=64)
    assert found.estimates["length_correlation"].value == pytest.approx(1.0)
    assert found.estimates["auc"].value == pytest.approx(0.5)
    assert found.estimates["auc"].low < 0.5 < found.estimates["auc"].high


@pytest.fixture
def recipe(tiny, tmp_path):
    path = tmp_path / "pairs.jsonl"
    with path.open("w") as file:
        for number in range(30):
            row = {"prompt": f"count {number}", "chosen": f"{number} \\boxed{{1}}", "rejected": f"{number} no"}
            file.write(json.dumps(row) + "\n")
        file.write(json.dumps({"prompt": "x", "chosen": "a", "rejected": "a"}) + "\n")
    section = {"data": str(path), "held_out": 6, "rows_per_step": 4, "epochs": 2, "learning_rate": 1e-2}
    return lambda **changes: tiny(sft=None, grpo=None, reward_model=section | changes)


def test_a_run_is_saved_recorded_and_repeated_as_it_was(recipe, quiet):
    result = train_reward_model(recipe(), quiet)
    assert AutoModelForSequenceClassification.from_pretrained(result.model_dir).config.num_labels == 1
    assert load_reward_model(result.model_dir).form.kind == "pairwise"
    assert result.before["accuracy"].value == 0.5
    assert result.after["accuracy"].value == 1.0
    assert result.figure.read_text().startswith("<svg")
    with RunLog.open(result.run_dir, readonly=True) as log:
        assert [step for _, step, _ in log.series("loss", "reward_model")] == list(range(1, 13))
        assert {row.kind for row in log.eval_rows()} == {"held_out"}
        digest = log.digest()
    again = train_reward_model(recipe(), quiet)  # it is finished: nothing is done twice
    assert again.after == result.after
    with RunLog.open(result.run_dir, readonly=True) as log:
        assert log.digest() == digest


def test_resuming_gives_the_same_bits(recipe, quiet, monkeypatch):
    whole = train_reward_model(recipe(), quiet)
    expected = {p.name: p.read_bytes() for p in whole.model_dir.glob("*.safetensors")}
    with RunLog.open(whole.run_dir, readonly=True) as log:
        digest = log.digest()
    broken = recipe().model_copy(update={"run": recipe().run.model_copy(update={"name": "broken"})})

    class Killed(Exception):
        pass

    evaluate = _Training._evaluate

    def killed(self, step):
        if step:
            raise Killed
        return evaluate(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(_Training, "_evaluate", killed)  # after 12 steps; the last checkpoint is of step 10
        with pytest.raises(Killed):
            train_reward_model(broken, quiet)
    result = train_reward_model(broken, quiet)
    assert {p.name: p.read_bytes() for p in result.model_dir.glob("*.safetensors")} == expected
    with RunLog.open(result.run_dir, readonly=True) as log:
        assert log.digest() == digest


def test_training_goes_on_from_a_reward_model(recipe, quiet):
    first = train_reward_model(recipe(), quiet)
    config = {"path": str(first.model_dir), "learning_rate": 0.0}
    again = recipe(**config)
    again = again.model_copy(update={"run": again.run.model_copy(update={"name": "second"})})
    second = train_reward_model(again, quiet)
    assert second.before["accuracy"].value == first.after["accuracy"].value == 1.0
    assert second.after["length_correlation"].value == first.after["length_correlation"].value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"held_out": 30}, "reward_model.held_out is 30, but the rows are about only 30"),
        ({"data": "nowhere.jsonl"}, "reward_model.data: there is no file nowhere.jsonl"),
        ({"data": None}, "task:letters has questions and no labels"),
        ({"kind": "pointwise"}, "reward_model.data: .*Set data.completion_column"),
        ({"path": "nowhere/at/all"}, "reward_model.path = 'nowhere/at/all'"),
    ],
)
def test_what_cannot_be_done_is_said(recipe, quiet, changes, said):
    with pytest.raises(OncurveError, match=said):
        train_reward_model(recipe(**changes), quiet)


def test_divergence_says_what_to_lower(recipe, quiet, monkeypatch):
    monkeypatch.setattr("oncurve.train.reward_model.losses", lambda config, rows, scores: scores[::2] * float("nan"))
    with pytest.raises(OncurveError, match=r"after step 0: the loss is nan.* lower reward_model\.learning_rate"):
        train_reward_model(recipe(), quiet)


def test_a_recipe_without_the_section(tiny, quiet):
    with pytest.raises(OncurveError, match=r"no \[reward_model\] section"):
        train_reward_model(tiny(), quiet)

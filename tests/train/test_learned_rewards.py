"""``reward_model:PATH`` as a reward: the score of a text is its own, by its own tokenizer, in GRPO as in Python."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

from oncurve.dry_run import check_recipe
from oncurve.models.reward_model import Form, RewardModel, new_reward_model, save_reward_model
from oncurve.rewards import RewardError, load_functions
from oncurve.rewards.splitting import step_splitter
from oncurve.runlog import RunLog
from oncurve.train import run
from oncurve.train.learned_rewards import LearnedReward, load_learned_reward, score_steps, score_texts, with_models
from oncurve.train.setup import prepare
from oncurve.types import OncurveError
from tiny import TEMPLATE, tiny_llama, tiny_llama_config, tiny_tokenizer

PROMPTS = ["two plus two is", "hello", "two plus two is", "please"]
TEXTS = ["four", "hello please hello please hello", "", "two plus"]
LINES = step_splitter("\n")


def model_of(kind="pairwise", template=None, **form) -> RewardModel:
    model = new_reward_model(tiny_llama(), tiny_tokenizer(template=template), Form(kind, **form))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.module.score.weight)
    return model


@pytest.fixture
def saved(tmp_path):
    def save(kind="pairwise", **form):
        save_reward_model(model_of(kind, **form), tmp_path / "rm")
        return str(tmp_path / "rm")

    return save


def test_the_score_is_read_at_the_end_of_prompt_completion_and_eos():
    model = model_of()
    scores = score_texts(model, PROMPTS, TEXTS)
    assert scores[0] == pytest.approx(model.scores([[6, 7, 6, 8, 9, 2]]).item(), abs=1e-6)
    assert scores[2] == pytest.approx(model.scores([[6, 7, 6, 8, 2]]).item(), abs=1e-6)
    right = score_texts(RewardModel(model.module, model.tokenizer, Form("pointwise")), PROMPTS, TEXTS)
    assert right[0] == pytest.approx(1 / (1 + math.exp(-scores[0])), abs=1e-6)


def test_a_prompt_is_rendered_as_in_the_models_own_training():
    model = model_of(template=TEMPLATE, chat=True, system_prompt="please", suffix=" is")
    messages = [{"role": "user", "content": "two"}]
    expected = model.scores([[4, 10, 3, 6, 8, 5, 9, 2]]).item()
    assert score_texts(model, ["two"], ["four"]) == [pytest.approx(expected, abs=1e-6)]
    assert score_texts(model, [messages], ["four"]) == [pytest.approx(expected, abs=1e-6)]
    reward = LearnedReward(model, LINES)
    completion = [{"role": "assistant", "content": "four"}]
    assert reward(prompts=[messages], completions=[completion]) == [pytest.approx(expected, abs=1e-6)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["pairwise", "process"])
def test_neither_batch_nor_order_nor_padding_side_matters(kind, side):
    model = model_of(kind)
    model.module.double()
    model.tokenizer.padding_side = side
    together = score_texts(model, PROMPTS, TEXTS, split=LINES)
    assert score_texts(model, PROMPTS[::-1], TEXTS[::-1], split=LINES)[::-1] == pytest.approx(together, abs=1e-6)
    assert score_texts(model, PROMPTS, TEXTS, split=LINES, token_budget=1) == pytest.approx(together, abs=1e-6)
    alone = [score_texts(model, [p], [t], split=LINES)[0] for p, t in zip(PROMPTS, TEXTS, strict=True)]
    assert alone == pytest.approx(together, abs=1e-6)


def test_a_process_model_scores_every_step():
    model = model_of("process", max_tokens=6)
    steps = score_steps(model, ["two"] * 3, ["four\nis four\n", " \n", "is is is is is\nis"], LINES)
    logits = model.scores([[6, 9, 8, 9, 2]] * 1, [[2, 4]]).sigmoid().tolist()
    assert steps[0] == [(5, pytest.approx(logits[0], abs=1e-6)), (13, pytest.approx(logits[1], abs=1e-6))]
    assert steps[1] == []
    assert steps[2][1] == (17, None)  # cut off after six tokens
    assert steps[2][0][1] is not None
    whole = score_texts(model, ["two"] * 3, ["four\nis four\n", " \n", "is is is is is\nis"])
    assert whole[0] == pytest.approx(min(logits), abs=1e-6)
    assert whole[1] is None


def test_a_prompt_that_leaves_no_room_is_unscored():
    model = model_of(max_tokens=3)
    assert score_texts(model, ["two two two", "two two"], ["four", "four"])[0] is None
    assert score_texts(model, ["two two two", "two two"], ["four", "four"])[1] is not None


@pytest.mark.parametrize("kind", ["pairwise", "pointwise", "process"])
def test_grpo_is_rewarded_by_it(tiny, quiet, tmp_path, kind):
    policy = prepare(tiny(sft=None), quiet, ("grpo",))
    model = new_reward_model(policy.lm.frozen_copy().module, policy.tokenizer, Form(kind, steps=" "))
    torch.nn.init.normal_(model.module.score.weight)
    save_reward_model(model, tmp_path / "rm")
    name = f"reward_model:{tmp_path / 'rm'}"
    options = {"preset": "deepseekmath-process"} if kind == "process" else {}
    recipe = tiny(
        sft=None, rewards={"functions": [name, "format"], "metrics": ["accuracy"]}, grpo={"iterations": 2, **options}
    )
    check_recipe(recipe, ("grpo",))
    result = run(recipe, terminal=quiet)
    with RunLog.open(result.run_dir, readonly=True) as log:
        means = [value for *_, value in log.series("rewards/reward_model/mean", "grpo")]
    assert len(means) == 2
    assert all(math.isfinite(mean) for mean in means)
    assert all(0.0 < mean < 1.0 for mean in means) or kind == "pairwise"


def test_a_classifier_of_transformers_own(tmp_path):
    torch.manual_seed(0)
    settings = tiny_llama_config(num_labels=1, pad_token_id=0)
    LlamaForSequenceClassification(settings).save_pretrained(tmp_path / "rm")
    tiny_tokenizer().save_pretrained(tmp_path / "rm")
    reward = load_learned_reward(str(tmp_path / "rm"))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    logit = theirs(torch.tensor([[6, 7, 9, 2]])).logits.item()
    assert reward(prompts=["two plus"], completions=["four"]) == [pytest.approx(logit, abs=1e-5)]


def test_what_is_no_reward_model_is_refused(tiny, quiet, tmp_path, saved):
    def both(name, said):
        recipe = tiny(sft=None, rewards={"functions": [name], "weights": None})
        with pytest.raises(OncurveError, match=said):
            check_recipe(recipe, ("grpo",))
        with pytest.raises(OncurveError, match=said):
            run(recipe, terminal=quiet)

    torch.manual_seed(0)
    LlamaForSequenceClassification(tiny_llama_config(num_labels=3)).save_pretrained(tmp_path / "three")
    tiny_tokenizer().save_pretrained(tmp_path / "three")
    both(f"reward_model:{tmp_path / 'three'}", "has 3 labels; a reward model gives one score")
    both(f"reward_model:{tmp_path / 'nowhere'}", "rewards.functions = .*there is no such directory")
    tiny_llama().save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    both(f"reward_model:{tmp_path / 'policy'}", "is no reward model but LlamaForCausalLM")
    both("reward_model:", "names no model")
    path = saved()
    (tmp_path / "rm" / "model.safetensors").unlink()
    with pytest.raises(OncurveError, match="cannot be loaded"):
        load_learned_reward(path)


def test_a_score_that_is_no_number_stops_the_run(saved, monkeypatch):
    [reward] = with_models(load_functions([f"reward_model:{saved()}"]), "cpu", ["two"])
    assert reward.name == "reward_model"
    monkeypatch.setattr(RewardModel, "scores", lambda self, rows, ends=None: torch.tensor([math.nan] * len(rows)))
    with pytest.raises(OncurveError, match="1 of 1 texts a score of nan"):
        reward.function(prompts=["two"], completions=["four"])


def test_options(saved, tmp_path):
    path = saved("process")
    name = f"reward_model:{path}"
    given = {"reward_model": {"steps": " ", "dtype": "bfloat16"}}
    [reward] = with_models(load_functions([name], options=given), "cpu", ["two"])
    assert reward.function.model.module.dtype == torch.bfloat16
    assert [end for end, _ in reward.function(prompts=["two"], completions=["is four"])[0]] == [3, 7]
    with pytest.raises(RewardError, match=r"rewards\.options\.reward_model\.step: .*did you mean 'steps'"):
        load_functions([name], options={"reward_model": {"step": " "}})


def test_no_code_is_run_because_a_models_file_says_so(saved, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def ends(text):\n    return [len(text)]\n")
    path = saved("process", steps=f"{file}:ends")
    with pytest.raises(OncurveError, match=r"say so too: rewards\.options"):
        load_learned_reward(path)
    reward = load_learned_reward(path, steps=f"{file}:ends")
    assert [end for end, _ in reward(prompts=["two"], completions=["is four"])[0]] == [7]


def test_a_config_that_cannot_be_read(saved, tmp_path):
    path = saved()
    config = tmp_path / "rm" / "config.json"
    config.write_text(config.read_text().replace('"pairwise"', '"best"'))
    with pytest.raises(OncurveError, match="kind = 'best'"):
        load_learned_reward(path)

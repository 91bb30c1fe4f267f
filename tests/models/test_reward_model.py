"""Reward models: where a score is read, that it depends on its own text alone, and that transformers loads what is
saved."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from oncurve.models.reward_model import (
    Form,
    RewardModel,
    checked_scores,
    load_reward_model,
    new_reward_model,
    save_reward_model,
)
from oncurve.models.source import check_reward_model, is_reward_model
from oncurve.types import OncurveError
from tiny import tiny_llama, tiny_llama_config, tiny_tokenizer

ROWS = [[1, 6, 7, 6, 2], [1, 9], [6, 7, 8], [11, 10, 9, 8, 7, 6, 2]]  # 2 is EOS: some end with it, some do not


def reward_model(kind="pairwise", seed=0, **options) -> RewardModel:
    model = new_reward_model(tiny_llama(seed), tiny_tokenizer(**options), Form(kind))
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.module.score.weight)
    return model


def test_it_begins_with_the_policys_layers_and_scores_of_zero():
    policy = tiny_llama()
    model = new_reward_model(policy, tiny_tokenizer(), Form("pairwise"))
    assert torch.equal(model.scores(ROWS), torch.zeros(4))
    assert model.module.model is policy.model
    model.scores(ROWS).sum().backward()
    assert model.module.score.weight.grad.abs().max() > 0


def test_a_score_depends_on_its_own_row_alone():
    model = reward_model()
    together = model.scores(ROWS)
    for row, score in zip(ROWS, together, strict=True):
        assert abs(model.scores([row]).item() - score.item()) <= 1e-6
    assert (model.scores(ROWS[::-1]).flip(0) - together).abs().max() <= 1e-6


def test_step_scores_are_those_of_the_prefixes():
    model = reward_model("process")
    ends = [[2, 4, 5], [], [3], [1, 7]]
    found = model.scores(ROWS, ends)
    prefixes = [row[:end] for row, places in zip(ROWS, ends, strict=True) for end in places]
    assert (found - model.scores(prefixes)).abs().max() <= 1e-6


@pytest.mark.parametrize("side", ["left", "right"])
def test_transformers_reads_the_same_score_whatever_the_padding_side(tmp_path, side):
    """Through the saved directory, by transformers' own forward."""
    model = reward_model()
    save_reward_model(model, tmp_path / "rm")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    assert isinstance(loaded, LlamaForSequenceClassification)
    assert loaded.config.num_labels == 1
    pad = AutoTokenizer.from_pretrained(tmp_path / "rm").pad_token_id
    assert pad == loaded.config.pad_token_id != 2
    width = max(map(len, ROWS))
    real = [[1] * len(row) for row in ROWS]
    fill = [[0] * (width - len(row)) for row in ROWS]
    join = (lambda a, b: b + a) if side == "left" else (lambda a, b: a + b)
    tokens = torch.tensor([join(row, [pad] * len(f)) for row, f in zip(ROWS, fill, strict=True)])
    mask = torch.tensor([join(r, f) for r, f in zip(real, fill, strict=True)])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = loaded(tokens, attention_mask=mask, position_ids=positions).logits[:, 0]
    assert (logits - model.scores(ROWS)).abs().max() <= 1e-5


def test_what_is_saved_comes_back(tmp_path):
    model = reward_model("process")
    save_reward_model(
        RewardModel(model.module, model.tokenizer, Form("process", steps=";", suffix="!")), tmp_path / "rm"
    )
    again = load_reward_model(tmp_path / "rm")
    assert again.form == Form("process", steps=";", suffix="!")
    assert torch.equal(again.scores(ROWS), model.scores(ROWS))
    assert is_reward_model("model.path", str(tmp_path / "rm"))
    check_reward_model("rewards.functions", str(tmp_path / "rm"))


def test_another_family(tmp_path):
    settings = GPT2Config(vocab_size=12, n_embd=16, n_layer=2, n_head=2, n_positions=32, eos_token_id=2, bos_token_id=1)
    torch.manual_seed(0)
    model = new_reward_model(GPT2LMHeadModel(settings).eval(), tiny_tokenizer(), Form("pointwise"))
    torch.nn.init.normal_(model.module.score.weight)
    save_reward_model(model, tmp_path / "rm")
    assert torch.equal(load_reward_model(tmp_path / "rm").scores(ROWS), model.scores(ROWS))


def test_a_vocabulary_without_a_token_for_padding_gets_one():
    tokenizer = Tokenizer(models.WordLevel({"two": 0, "<s>": 1, "</s>": 2}, unk_token="two"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    model = new_reward_model(tiny_llama(vocab_size=3), tokenizer, Form("pairwise"))
    assert model.tokenizer.pad_token_id == 3
    assert model.module.get_input_embeddings().num_embeddings == model.module.config.vocab_size == 4
    assert tokenizer.pad_token_id is None  # the policy's own tokenizer is left as it was


@pytest.mark.parametrize("labels", [2, 3])
def test_another_number_of_labels_is_refused(tmp_path, labels):
    torch.manual_seed(0)
    LlamaForSequenceClassification(tiny_llama_config(num_labels=labels)).save_pretrained(tmp_path / "rm")
    tiny_tokenizer().save_pretrained(tmp_path / "rm")
    for check in (load_reward_model, lambda path: check_reward_model("rewards.functions", str(path))):
        with pytest.raises(OncurveError, match=f"has {labels} labels; a reward model gives one score"):
            check(tmp_path / "rm")


def test_a_language_model_is_refused(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "lm")
    tiny_tokenizer().save_pretrained(tmp_path / "lm")
    for check in (load_reward_model, lambda path: check_reward_model("rewards.functions", str(path))):
        with pytest.raises(OncurveError, match="is no reward model but LlamaForCausalLM"):
            check(tmp_path / "lm")
    assert not is_reward_model("model.path", str(tmp_path / "lm"))


def test_nan_scores_are_an_error():
    model = reward_model()
    with torch.no_grad():
        model.module.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(OncurveError, match="gives 4 of 4 texts a score of nan"):
        checked_scores(model, ROWS, None)


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(OncurveError, match="there is no such directory"):
        load_reward_model(tmp_path / "no" / "such" / "thing")

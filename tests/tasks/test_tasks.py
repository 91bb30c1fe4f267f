"""What holds for every task: its texts survive the tokenizer, its model fits them, its examples have the asked form."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from oncurve.tasks import TASKS, need_options, task
from oncurve.types import OncurveError

EVERY = pytest.mark.parametrize("name", sorted(TASKS))


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(OncurveError, match="no task 'leters'; did you mean 'letters'"):
        task("leters")


@EVERY
def test_options_are_checked_by_name_and_value(name):
    need_options(task(name), {"slip": 0.5, "unboxed": 0})
    with pytest.raises(OncurveError, match=f"task '{name}' has no option 'slips'; it has: slip, unboxed"):
        need_options(task(name), {"slips": 0.5})
    with pytest.raises(OncurveError, match=r"data.options.slip is 1.5; it is a share"):
        need_options(task(name), {"slip": 1.5})


@EVERY
def test_decoding_gives_the_text_again(name):
    each = task(name)
    tokenizer = each.build_tokenizer()
    texts = [row["prompt"] + row["completion"] for row in each.demonstrations(1000, 0)]
    texts += [row["prompt"] for row in (*each.rows(300, 0, "eval"), *each.showcase)]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text
        assert len(ids) < 64


@EVERY
def test_prompt_and_completion_are_cut_where_they_meet(name):
    each = task(name)
    tokenizer = each.build_tokenizer()
    for row in each.demonstrations(200, 0):
        whole = tokenizer(row["prompt"] + row["completion"])["input_ids"]
        assert tokenizer(row["prompt"])["input_ids"] + tokenizer(row["completion"])["input_ids"] == whole


@EVERY
def test_any_text_can_be_asked(name):
    tokenizer = task(name).build_tokenizer()
    ids = tokenizer("Wie viele É's,\n\x1b[31m in 1234?\n")["input_ids"]
    assert ids
    assert tokenizer.unk_token_id in ids
    assert all(0 <= i < len(tokenizer) for i in ids)
    assert tokenizer("")["input_ids"] == []


@EVERY
def test_the_tokenizer_survives_saving(name, tmp_path: Path):
    each = task(name)
    tokenizer = each.build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = each.demonstrations(1, 0)[0]["completion"]
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.pad_token, loaded.eos_token, loaded.bos_token) == ("<pad>", "<eos>", None)
    assert loaded.decode([*loaded(text)["input_ids"], loaded.eos_token_id], skip_special_tokens=True) == text


@EVERY
def test_the_model_is_small_and_knows_its_special_tokens(name):
    each = task(name)
    tokenizer, config = each.build_tokenizer(), each.build_model_config()
    assert (config.vocab_size, config.pad_token_id, config.eos_token_id, config.bos_token_id) == (
        len(tokenizer),
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) < 260_000
    ids = torch.tensor([tokenizer(each.showcase[0]["prompt"])["input_ids"]])
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))


@EVERY
def test_boxed_examples_have_one_think_block_and_then_one_box(name):
    form = re.compile(r"<think>\n(?:(?!</?think>|\\boxed).)*</think>\n\\boxed\{\d+\}", re.DOTALL)
    rows = task(name).demonstrations(300, 0, unboxed=0.0)
    assert all(form.fullmatch(row["completion"]) for row in rows)
    assert not any("\\boxed" in row["completion"] for row in task(name).demonstrations(300, 0, unboxed=1.0))


@EVERY
def test_named_metrics_exist(name):
    for path in task(name).metrics:
        module, _, function = path.partition(":")
        assert module == f"oncurve.tasks.{name}"
        assert callable(getattr(__import__(module, fromlist=[function]), function))

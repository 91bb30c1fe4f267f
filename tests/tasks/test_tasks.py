"""What holds for every task: its texts survive the tokenizer, its model fits them, its examples have the asked form."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from oncurve import config
from oncurve.config import EMBEDDED_CONTEXT
from oncurve.rewards import accuracy
from oncurve.tasks import TASKS, NotEnough, need_options, task
from oncurve.types import OncurveError

EVERY = pytest.mark.parametrize("name", sorted(TASKS))


def test_the_tasks_are_those_that_a_recipe_may_name():
    assert tuple(TASKS) == config.TASKS
    assert all(each.name == name for name, each in TASKS.items())


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(OncurveError, match="no task 'leters'; did you mean 'letters'"):
        task("leters")


@EVERY
def test_options_are_checked_by_name_and_value(name):
    need_options(task(name), {"slip": 0.5, task(name).options[1]: 0})
    names = ", ".join(task(name).options)
    with pytest.raises(OncurveError, match=f"task '{name}' has no option 'slips'; it has: {names}"):
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
        assert len(ids) < 80 < EMBEDDED_CONTEXT


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
def test_rows_follow_from_the_arguments_and_no_prompt_is_in_two_splits(name):
    each = task(name)
    for split in ("train", "validation", "eval"):
        assert each.rows(150, 0, split) == each.rows(150, 0, split)
        assert each.rows(150, 0, split) != each.rows(150, 1, split)
        assert all(isinstance(row["prompt"], str) and isinstance(row["answer"], str) for row in each.rows(9, 0, split))
    sizes = each.check(0)
    assert sizes["eval"] >= 300
    assert sizes["train"] >= 3000
    assert sizes["showcase"] == 1
    with pytest.raises(OncurveError, match="split is 'test'"):
        each.rows(3, 0, "test")
    with pytest.raises(NotEnough, match="and 500000 were asked for; ask for fewer"):
        each.rows(500_000, 0, "eval")


@EVERY
def test_the_tutor_is_right_and_in_form_without_flaws_only(name):
    each = task(name)
    assert each.tutor_score(each.demonstrations(300, 0, **dict.fromkeys(each.options, 0.0))) == {
        "right_and_boxed": 1.0,
        "right": 1.0,
        "boxed": 1.0,
    }
    careless = each.tutor_score(each.demonstrations(2000, 0))
    assert 0.1 < careless["right_and_boxed"] < 0.5
    assert careless["right_and_boxed"] < careless["right"] < 0.75
    assert 0.5 < careless["boxed"] < 0.75
    assert each.tutor_score(each.demonstrations(300, 0, **{each.options[1]: 1.0}))["boxed"] == 0.0


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"functions"}))
def test_boxed_examples_have_one_think_block_and_then_one_box(name):
    form = re.compile(r"<think>\n(?:(?!</?think>|\\boxed).)*</think>\n\\boxed\{[^{}\n]+\}", re.DOTALL)
    rows = task(name).demonstrations(300, 0, unboxed=0.0)
    assert all(form.fullmatch(row["completion"]) for row in rows)
    assert not any("\\boxed" in row["completion"] for row in task(name).demonstrations(300, 0, unboxed=1.0))


@pytest.mark.parametrize("name", ["letters", "chain", "strings"])
def test_accuracy_knows_right_from_wrong(name):
    answers = [row["answer"] for row in task(name).rows(300, 0, "eval")]
    boxes = [f"\\boxed{{{answer}}}" for answer in answers]
    assert accuracy(boxes, answers) == [1.0] * 300
    assert accuracy(boxes[1:] + boxes[:1], answers) == [
        float(a == b) for a, b in zip(answers, answers[1:] + answers[:1], strict=True)
    ]


@EVERY
def test_named_metrics_exist(name):
    for path in task(name).metrics:
        module, _, function = path.partition(":")
        assert module == f"oncurve.tasks.{name}"
        assert callable(getattr(__import__(module, fromlist=[function]), function))

import logging

import pytest

from oncurve.config import Data
from oncurve.data.demonstrations import build_demonstrations
from oncurve.data.prompts import build_prompts
from oncurve.types import Demonstration, OncurveError, Prompt
from tiny import TEMPLATE, TEMPLATE_WITH_BOS, tiny_tokenizer

USER = {"role": "user", "content": "two plus two"}
BOT = {"role": "assistant", "content": "is four"}


def build(rows, tokenizer, context=64, held_out=(), **data):
    return build_demonstrations(rows, tokenizer, Data(train="x.jsonl", **data), context=context, held_out=held_out)


@pytest.mark.parametrize("completion", ["is four", "is four </s>", "is four </s> </s>", [BOT]])
def test_completion_ends_with_exactly_one_eos(completion):
    made = build([{"prompt": "two plus two", "completion": completion}], tiny_tokenizer(adds_bos=True))
    assert made.demonstrations == [Demonstration((1, 6, 7, 6), (8, 9, 2))]


def test_eos_that_the_tokenizer_adds_is_not_doubled():
    made = build([{"prompt": "two", "completion": "four"}], tiny_tokenizer(adds_bos=True, adds_eos=True))
    assert made.demonstrations == [Demonstration((1, 6), (9, 2))]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, BOT]},
        {"prompt": [USER], "completion": "is four"},
        {"prompt": [USER], "completion": [BOT]},
    ],
)
def test_chat_forms_agree_with_each_other_and_with_sampling(row):
    tokenizer = tiny_tokenizer(template=TEMPLATE_WITH_BOS)
    data = Data(train="x.jsonl", suffix=" please", system_prompt="hello")
    (shown,) = build_demonstrations([row], tokenizer, data, context=64).demonstrations
    (sampled,) = build_prompts([row], tokenizer, data, context=64, max_new_tokens=8).prompts
    assert shown.prompt_ids == sampled.token_ids == (1, 4, 11, 3, 6, 7, 6, 10, 5)
    assert shown.completion_ids == (8, 9, 2)


def test_the_loss_falls_on_the_last_turn_and_that_is_said(caplog):
    rows = [{"messages": [USER, BOT, {"role": "user", "content": "please"}, {"role": "assistant", "content": "hello"}]}]
    with caplog.at_level(logging.INFO, "oncurve"):
        made = build(rows, tiny_tokenizer(template=TEMPLATE))
    assert made.demonstrations == [Demonstration((3, 6, 7, 6, 5, 8, 9, 3, 10, 5), (11, 2))]
    assert "1 rows have earlier turns of the assistant" in caplog.text


def test_held_out_questions_are_not_shown():
    held_out = [Prompt(5, "two  plus two", "", (6,))]
    rows = [{"prompt": "two plus two", "completion": "four"}, {"prompt": "two", "completion": "two"}]
    made = build(rows, tiny_tokenizer(), held_out=held_out)
    assert (made.demonstrations, made.held_out) == ([Demonstration((6,), (6, 2))], 1)
    with pytest.raises(
        OncurveError, match="no demonstration is left of 1 rows: 0 are over-long and 1 are about held-out"
    ):
        build(rows[:1], tiny_tokenizer(), held_out=held_out)


def test_over_long():
    rows = [{"prompt": "two plus two", "completion": "is four"}, {"prompt": "two", "completion": "four"}]
    with pytest.raises(OncurveError, match=r"row 0 .*3 \+ 3 tokens; the model's context is 5"):
        build(rows, tiny_tokenizer(), context=5)
    with pytest.raises(OncurveError, match=r"row 0 .*the prompt has 3 tokens; data\.max_prompt_tokens is 2"):
        build(rows, tiny_tokenizer(), max_prompt_tokens=2)
    made = build(rows, tiny_tokenizer(), context=5, over_long="drop")
    assert (made.demonstrations, made.dropped) == ([Demonstration((6,), (9, 2))], 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "two", "answer": "4"},
            r"no column 'completion', only: prompt, answer\. Set data\.completion_column",
        ),
        ({"completion": "four"}, "no column 'prompt', only: completion"),
        ({"prompt": "two", "completion": " "}, "completion is empty"),
        ({"prompt": "two", "completion": 4}, "completion is 4; it must be text"),
        (
            {"prompt": "two", "completion": [USER]},
            "the last message of completion is from 'user', not from 'assistant'",
        ),
        ({"prompt": "two", "completion": [USER, BOT]}, "completion has 2 messages"),
        ({"prompt": "two", "completion": "four </s> two"}, "'</s>', the end of a sequence, stands in the middle"),
        ({"messages": [USER]}, "the last message of messages is from 'user'"),
    ],
)
def test_bad_rows_are_named(row, message):
    with pytest.raises(OncurveError, match=f"row 1 .*{message}"):
        build([{"prompt": "two", "completion": "two"}, row], tiny_tokenizer(template=TEMPLATE))

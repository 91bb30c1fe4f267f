import importlib

import pytest

from oncurve.tasks import TASKS, chain, letters
from oncurve.tasks.steps import is_boxed, judge_steps


def chain_of(text, numbers=(7, 8, -3), answer="12"):
    (steps,) = chain.chain_steps(completions=[text], numbers=[numbers], answer=[answer])
    return [(text[start:end], reward) for (start, _), (end, reward) in zip([(0, 0.0), *steps], steps, strict=False)]


def test_every_line_and_the_answer_are_steps():
    assert chain_of("<think>\n7 + 8 = 15\n15 - 3 = 12\n</think>\n\\boxed{12}") == [
        ("<think>\n7 + 8 = 15\n", 1.0),
        ("15 - 3 = 12\n", 1.0),
        ("</think>\n\\boxed{12}", 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("<think>\n7 + 8 = 5\n5 - 3 = 2\n</think>\n\\boxed{2}", [0, 1, 0]),  # the slip alone, and what came of it
        ("<think>\n7 + 8 = 15\n15 - 3 = 12\n</think>\n12", [1, 1, 0]),  # no box
        ("<think>\n7 + 8 = 15\n5 - 3 = 2\n</think>\n\\boxed{12}", [1, 0, 1]),  # a total that nobody had come to
        ("<think>\n7 + 8 = 15\n15 - 4 = 11\n</think>\n", [1, 0]),  # another operation; no answer
        ("<think>\n7 + 8 = 15\n15 - 3 = 12\n12 + 0 = 12\n</think>\n\\boxed{12}", [1, 1, 0, 1]),  # one too many
        ("<think>\nwell\n15 - 3 = 12\n</think>\n\\boxed{12}", [0, 1, 1]),  # no operation: go on from the right total
        ("<think>\n7 + 8 = 15\n15 - 3 = 1", [1, 0]),  # cut off
        ("7 + 8 = 15\n15 - 3 = 12\n</think>\n\\boxed{12}", [1, 1, 1]),  # the template had opened the block
        ("<think>7 + 8 = 15\n\n 15 - 3 = 12\n</think>\\boxed{12}", [1, 1, 1]),  # white space
        ("\\boxed{12}", [1]),
        ("12", [0]),
        ("<think>\n</think>\n\\boxed{12}", [1]),
        ("<think>\n7 + 8 = " + "9" * 5000 + "\n15 - 3 = 12\n</think>\n\\boxed{12}", [0, 1, 1]),
        ("<think>", []),
        ("", []),
    ],
)
def test_a_step_of_a_sum_is_judged_for_itself(text, rewards):
    assert [reward for _, reward in chain_of(text)] == rewards


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("<think>\ne: no (0)\nr: yes (1)\nr: yes (2)\n</think>\n\\boxed{2}", [1, 1, 1, 1]),
        ("<think>\ne: no (0)\nr: yes (0)\nr: yes (1)\n</think>\n\\boxed{1}", [1, 0, 1, 0]),  # not raised once
        ("<think>\ne: yes (1)\nr: yes (2)\nr: yes (3)\n</think>\n\\boxed{3}", [0, 1, 1, 0]),  # misjudged
        ("<think>\ne: no (0)\nr: no (1)\nr: yes (2)\n</think>\n\\boxed{2}", [1, 0, 1, 1]),
        ("<think>\nr: yes (1)\nr: yes (2)\n</think>\n\\boxed{2}", [0, 1, 1]),  # a letter left out
        ("<think>\ne: no (0)\nr: yes (1)\nr: yes (2)\nr: yes (3)\n</think>\n\\boxed{3}", [1, 1, 1, 0, 0]),
        ("<think>\nwhat?\nr: yes (1)\n", [0, 1]),
    ],
)
def test_a_step_of_a_count_is_judged_for_itself(text, rewards):
    (steps,) = letters.letters_steps(completions=[text], word=["err"], letter=["r"], answer=["2"])
    assert [reward for _, reward in steps] == rewards


def test_lines_end_at_newlines_only_and_ends_rise():
    text = "<think>\na\u2028b\n\nc\r\n</think>x"
    seen: list[str] = []
    steps = judge_steps(text, lambda lines: [seen.append(line) is None for line in lines], is_boxed("1"))
    assert seen == ["a\u2028b", "c"]
    assert steps == [(12, 1.0), (16, 1.0), (len(text), 0.0)]


def checker(name):
    path = TASKS[name].steps
    assert path is not None
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "completion")}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_tutor_without_flaws_takes_right_steps_only(name):
    task = TASKS[name]
    rows = task.demonstrations(200, 0, **dict.fromkeys(task.options, 0.0))
    found = checker(name)(completions=[row["completion"] for row in rows], **columns(rows))
    for row, steps in zip(rows, found, strict=True):
        assert len(steps) >= 2
        assert steps[-1][0] == len(row["completion"])
        assert all(reward == 1.0 for _, reward in steps), row["completion"]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_careless_tutor_has_wrong_steps_and_every_wrong_answer_has_one(name):
    task = TASKS[name]
    rows = task.demonstrations(300, 0)
    found = checker(name)(completions=[row["completion"] for row in rows], **columns(rows))
    wrong = [any(reward == 0.0 for _, reward in steps) for steps in found]
    assert 0.2 < sum(wrong) / len(wrong) < 1.0
    tokenizer = task.build_tokenizer()
    for row, steps in zip(rows, found, strict=True):
        ends = [end for end, _ in steps]
        assert ends == sorted(set(ends))
        pieces = (row["completion"][a:b] for a, b in zip([0, *ends], ends, strict=False))
        whole = tokenizer(row["completion"])["input_ids"]
        assert [i for piece in pieces for i in tokenizer(piece)["input_ids"]] == whole  # a step ends with a token


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("text", ["", "\0", "<think>" * 5000, "</think>\n" * 5000, "9" * 50_000, "\\boxed{" * 20_000])
def test_any_text_has_steps_or_none(name, text):
    row = TASKS[name].rows(1, 0, "train")[0]
    (steps,) = checker(name)(completions=[text], **columns([row]))
    assert all(0 < end <= len(text) and reward == 0.0 for end, reward in steps)

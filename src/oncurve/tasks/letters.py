r"""How many r's are in strawberry? The task that Oncurve trains out of the box.

    <think>
    s: no (0)
    t: no (0)
    r: yes (1)
    ...
    </think>
    \boxed{3}

The worked examples come from a careless tutor: they spell the word and judge every letter rightly, but at most of the
letters asked for they forget to raise the count, and they often forget the box. The flaws are on purpose. From clean
examples this model learns the task by imitation alone and leaves nothing to reinforce; and a model this small can only
re-weight what it already does, so the examples must show the mechanism, and rewards must be able to tell when it fails.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.tasks import words
from oncurve.tasks.base import (
    CLOSE,
    OPEN,
    NotEnough,
    Row,
    Task,
    boxed_answer,
    last_number,
    need_share,
    need_split,
    small_llama_config,
    tutor_score,
    word_level_tokenizer,
)
from oncurve.tasks.steps import StepRewards, is_boxed, judge_steps

YES, NO = ": yes", ": no"
PHRASES = ("How many ", "'s are in ", "?", OPEN, CLOSE, YES, NO, *(f" ({n})\n" for n in range(11)), "\\boxed{", "}")

SLIP, UNBOXED = 0.6, 0.4
"""How often the tutor forgets to raise the count, and how often the box."""


def question(word: str, letter: str) -> str:
    """The prompt."""
    return f"How many {letter}'s are in {word}?"


def worked(word: str, letter: str, slips: Sequence[bool] = (), boxed: bool = True) -> str:
    """Spell the word, counting along. ``slips[i]`` True: the count is not raised at the letter's occurrence i."""
    lines, count, met = [], 0, 0
    for each in word:
        if each == letter:
            count += not (met < len(slips) and slips[met])
            met += 1
        lines.append(f"{each}{YES if each == letter else NO} ({count})\n")
    return OPEN + "".join(lines) + CLOSE + boxed_answer(count, boxed)


def rows(size: int, seed: int, split: str) -> list[Row]:
    """``size`` questions, as many for each count from 0 to 4. Each held-out question is about another word;
    training words come round again when they are used up.

    Raises OncurveError for an unknown split or for more held-out questions than there are words."""
    need_split(split)
    if split != "train" and size > words.SIZES[split]:
        raise NotEnough(
            f"the letters task has {words.SIZES[split]} words for {split}, and {size} were asked for; ask for fewer"
        )
    columns = words.questions(seed)[split]
    found = []
    for i in range(size):
        column = columns[i % len(columns)]
        found.append(_row(column[i // len(columns) % len(column)]))
    random.Random(f"oncurve letters {split} {seed}").shuffle(found)
    return found


def _row(asked: words.Question) -> Row:
    prompt = question(asked.word, asked.letter)
    return {"prompt": prompt, "answer": str(asked.count), "word": asked.word, "letter": asked.letter}


def demonstrations(size: int, seed: int, slip: float = SLIP, unboxed: float = UNBOXED) -> list[Row]:
    """The tutor's examples about training words: rows with a ``completion``.

    ``slip`` is the share of occurrences at which the count is not raised, ``unboxed`` the share of answers without a
    box; 0.0 for both makes clean examples."""
    need_share("slip", slip)
    need_share("unboxed", unboxed)
    rng = random.Random(f"oncurve letters tutor {seed}")
    found = []
    for row in rows(size, seed, "train"):
        slips = [rng.random() < slip for _ in range(int(row["answer"]))]
        found.append({**row, "completion": worked(row["word"], row["letter"], slips, rng.random() >= unboxed)})
    return found


def steps_right(completion: str, word: str, letter: str) -> bool:
    """Does the completion spell the whole word, judge each letter and count rightly? (Not: is the answer boxed.)"""
    return completion.startswith(worked(word, letter).partition(CLOSE)[0] + CLOSE)


def chain_right(*, completions: Sequence[str], word: Sequence[str], letter: Sequence[str], **_: Any) -> list[float]:
    """1.0 where every counting step is right."""
    return [float(steps_right(*each)) for each in zip(completions, word, letter, strict=True)]


def right_unboxed(*, completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where the last number written is the answer, boxed or not."""
    return [float(last_number(text) == right) for text, right in zip(completions, answer, strict=True)]


def letters_steps(
    *, completions: Sequence[str], word: Sequence[str], letter: Sequence[str], answer: Sequence[str], **_: Any
) -> list[StepRewards]:
    """A step for each line ``r: yes (1)`` and one for the answer: see ``oncurve.tasks.steps``.

    A line is right if it has the next letter of the word, judges it rightly and goes on counting rightly from the line
    before it. After a line of another form the right count is expected. The answer is right if it is the right one, in
    a box."""
    return [
        judge_steps(text, lambda lines, w=w, x=x: _lines_right(lines, w, x), is_boxed(right))
        for text, w, x, right in zip(completions, word, letter, answer, strict=True)
    ]


def _lines_right(lines: Sequence[str], word: str, letter: str) -> list[bool]:
    right: list[bool] = []
    stated = 0
    for i, line in enumerate(lines):
        if i == len(word):  # more lines than letters
            return right + [False] * (len(lines) - i)
        found = word[i] == letter
        right.append(line == f"{word[i]}{YES if found else NO} ({stated + found})")
        came_to = re.fullmatch(r"[a-z]: (?:yes|no) \(([0-9]{1,9})\)", line)
        stated = int(came_to[1]) if came_to else word[: i + 1].count(letter)
    return right


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, number and phrase; see ``word_level_tokenizer``."""
    return word_level_tokenizer(PHRASES)


def build_model_config() -> LlamaConfig:
    """The small model that learns this task."""
    return small_llama_config(build_tokenizer())


TASK = Task(
    name="letters",
    rows=rows,
    demonstrations=demonstrations,
    options=("slip", "unboxed"),
    tutor_score=tutor_score,
    check=words.check_split,
    build_tokenizer=build_tokenizer,
    build_model_config=build_model_config,
    showcase=(_row(words.Question(*words.SHOWCASE)),),
    metrics=tuple(f"oncurve.tasks.letters:{f.__name__}" for f in (chain_right, right_unboxed)),
    steps="oncurve.tasks.letters:letters_steps",
)

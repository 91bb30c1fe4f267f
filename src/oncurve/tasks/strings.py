r"""A word and two or three things to do to it, one after another, done by a tutor who leaves some out.

    bako: reverse, double last, swap ends = ?     <think>
                                                  reverse: okab
                                                  double last: okabb
                                                  swap ends: bkabo
                                                  </think>
                                                  \boxed{bkabo}

At half of the operations the tutor copies the word as it was, and often forgets the box. Everything written after a
slip follows from it. As in the letters task the flaws are on purpose: they leave something for a reward to mend.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.tasks.base import (
    CLOSE,
    OPEN,
    NotEnough,
    Row,
    Task,
    distinct_prompts,
    need_share,
    need_split,
    small_llama_config,
    split_of_text,
    word_level_tokenizer,
)
from oncurve.tasks.steps import StepRewards, is_boxed, judge_steps

OPERATIONS: Mapping[str, Callable[[str], str]] = {
    "reverse": lambda word: word[::-1],
    "swap ends": lambda word: word[-1] + word[1:-1] + word[0] if len(word) > 1 else word,
    "drop first": lambda word: word[1:],
    "drop last": lambda word: word[:-1],
    "double first": lambda word: word[0] + word,
    "double last": lambda word: word + word[-1],
    "first to end": lambda word: word[1:] + word[0],
}
"""None of them takes more than a letter away, so that every operation of a question finds at least two."""

PHRASES = (*OPERATIONS, ": ", ", ", " = ?", "\n", OPEN, CLOSE, "\\boxed{", "}")

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
LENGTHS = range(4, 6)
"""Letters of the words."""
STEPS = range(2, 4)
"""Operations of a question."""
SHOWCASE = ("grpo", ("reverse", "double last", "swap ends"))
MOST = {"train": 200_000, "validation": 5000, "eval": 5000}
"""Rows that a split gives, of several million questions."""

SLIP, UNBOXED = 0.5, 0.4
"""How often the tutor leaves an operation out, and how often the box."""


def question(word: str, operations: Sequence[str]) -> str:
    """The prompt."""
    return f"{word}: {', '.join(operations)} = ?"


def stages(word: str, operations: Sequence[str], slips: Sequence[bool] = ()) -> list[str]:
    """What the word becomes, step by step. ``slips[i]`` True: operation i is left out, the word copied."""
    found = []
    for i, operation in enumerate(operations):
        if not (i < len(slips) and slips[i]):
            word = OPERATIONS[operation](word)
        found.append(word)
    return found


def worked(word: str, operations: Sequence[str], slips: Sequence[bool] = (), boxed: bool = True) -> str:
    """One line for each operation, then the answer."""
    found = stages(word, operations, slips)
    lines = "".join(f"{name}: {became}\n" for name, became in zip(operations, found, strict=True))
    return f"{OPEN}{lines}{CLOSE}" + (f"\\boxed{{{found[-1]}}}" if boxed else found[-1])


def rows(size: int, seed: int, split: str) -> list[Row]:
    """``size`` different questions. The words of one split are in no other.

    Raises OncurveError for an unknown split and for more questions than ``MOST``."""
    need_split(split)
    if size > MOST[split]:
        raise NotEnough(
            f"the strings task gives at most {MOST[split]} questions for {split}, and {size} were asked for; ask for "
            "fewer"
        )
    rng = random.Random(f"oncurve strings {split} {seed}")
    found: dict[str, Row] = {}
    while len(found) < size:
        word = _draw_word(rng)
        operations = tuple(rng.choices(list(OPERATIONS), k=rng.choice(STEPS)))
        if word != SHOWCASE[0] and split_of_text(word) == split:
            found.setdefault(question(word, operations), _row(word, operations))
    return list(found.values())


def _draw_word(rng: random.Random) -> str:
    vowel = rng.random() < 0.4
    letters = []
    for _ in range(rng.choice(LENGTHS)):
        letters.append(rng.choice(VOWELS if vowel else CONSONANTS))
        vowel = vowel != (rng.random() < 0.85)
    return "".join(letters)


def _row(word: str, operations: tuple[str, ...]) -> Row:
    return {
        "prompt": question(word, operations),
        "answer": stages(word, operations)[-1],
        "word": word,
        "operations": operations,
    }


def demonstrations(size: int, seed: int, slip: float = SLIP, unboxed: float = UNBOXED) -> list[Row]:
    """The tutor's examples about training words: rows with a ``completion``.

    ``slip`` is the share of operations that are left out, ``unboxed`` the share of answers without a box."""
    need_share("slip", slip)
    need_share("unboxed", unboxed)
    rng = random.Random(f"oncurve strings tutor {seed}")
    found = []
    for row in rows(size, seed, "train"):
        slips = [rng.random() < slip for _ in row["operations"]]
        found.append({**row, "completion": worked(row["word"], row["operations"], slips, rng.random() >= unboxed)})
    return found


def last_word(text: str) -> str | None:
    """The last run of lower-case letters that is no command, boxed or not."""
    found = re.findall(r"(?<![\\a-z])[a-z]+", text)
    return found[-1] if found else None


def tutor_score(demonstrations: Sequence[Row]) -> dict[str, float]:
    """As ``oncurve.tasks.base.tutor_score``, for answers that are words."""
    boxed = ["\\boxed{" in row["completion"] for row in demonstrations]
    right = [last_word(row["completion"]) == row["answer"] for row in demonstrations]
    return {
        "right_and_boxed": fmean(r and b for r, b in zip(right, boxed, strict=True)),
        "right": fmean(right),
        "boxed": fmean(boxed),
    }


def chain_right(
    *, completions: Sequence[str], word: Sequence[str], operations: Sequence[Sequence[str]], **_: Any
) -> list[float]:
    """1.0 where every operation is done, in order and rightly. (Not: is the answer boxed.)"""
    return [
        float(text.startswith(worked(given, named).partition(CLOSE)[0] + CLOSE))
        for text, given, named in zip(completions, word, operations, strict=True)
    ]


def right_unboxed(*, completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where the last word written is the answer, boxed or not."""
    return [float(last_word(text) == right) for text, right in zip(completions, answer, strict=True)]


def strings_steps(
    *,
    completions: Sequence[str],
    word: Sequence[str],
    operations: Sequence[Sequence[str]],
    answer: Sequence[str],
    **_: Any,
) -> list[StepRewards]:
    """A step for each line ``reverse: okab`` and one for the answer: see ``oncurve.tasks.steps``.

    A line is right if it names the next operation and does it to the word that the line before it came to. After a line
    of another form the right word is expected. The answer is right if it is the right one, in a box."""
    return [
        judge_steps(text, lambda lines, w=given, o=named: _lines_right(lines, w, o), is_boxed(right))
        for text, given, named, right in zip(completions, word, operations, answer, strict=True)
    ]


def _lines_right(lines: Sequence[str], word: str, operations: Sequence[str]) -> list[bool]:
    right: list[bool] = []
    true, stated = stages(word, operations), word
    for i, line in enumerate(lines):
        if i == len(operations):  # more lines than operations
            return right + [False] * (len(lines) - i)
        right.append(line == f"{operations[i]}: {OPERATIONS[operations[i]](stated)}")
        came_to = re.fullmatch(r"[a-z ]+: ([a-z]{1,20})", line)
        stated = came_to[1] if came_to else true[i]
    return right


def check(seed: int) -> dict[str, int]:
    """Draw 500 held-out questions of each kind and 5000 to train on, and confirm that no word is in two of them.

    Raises OncurveError naming a word that is; returns the number of questions looked at in each split."""
    splits = {name: rows(size, seed, name) for name, size in (("eval", 500), ("validation", 500), ("train", 5000))}
    splits["showcase"] = list(TASK.showcase)
    return distinct_prompts({name: [{"prompt": row["word"]} for row in found] for name, found in splits.items()})


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, number and phrase; see ``word_level_tokenizer``."""
    return word_level_tokenizer(PHRASES)


def build_model_config() -> LlamaConfig:
    """The small model that learns this task."""
    return small_llama_config(build_tokenizer())


TASK = Task(
    name="strings",
    rows=rows,
    demonstrations=demonstrations,
    options=("slip", "unboxed"),
    tutor_score=tutor_score,
    check=check,
    build_tokenizer=build_tokenizer,
    build_model_config=build_model_config,
    showcase=(_row(*SHOWCASE),),
    metrics=tuple(f"oncurve.tasks.strings:{f.__name__}" for f in (chain_right, right_unboxed)),
    steps="oncurve.tasks.strings:strings_steps",
)

r"""Sums and differences of three to five numbers, worked out from left to right by a careless tutor.

    7 + 8 - 3 = ?     <think>
                      7 + 8 = 15
                      15 - 3 = 12
                      </think>
                      \boxed{12}

The tutor often forgets to carry or borrow a ten (then 7 + 8 is 5) and often forgets the box. Everything written after a
slip follows from it. As in the letters task the flaws are on purpose: they leave something for a reward to mend.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.tasks.base import (
    CLOSE,
    OPEN,
    NotEnough,
    Row,
    Task,
    boxed_answer,
    distinct_prompts,
    last_number,
    need_share,
    need_split,
    small_llama_config,
    split_of_text,
    tutor_score,
    word_level_tokenizer,
)
from oncurve.tasks.steps import StepRewards, is_boxed, judge_steps

PHRASES = (" + ", " - ", " = ", "?", "\n", OPEN, CLOSE, "\\boxed{", "}")

TERMS = range(3, 6)
LARGEST = 20
"""Every total on the way lies in 0..20."""
SHOWCASE = (9, 8, -12, 7, -4)

SLIP, UNBOXED = 0.7, 0.4
"""How often the tutor forgets a needed ten, and how often the box."""


def question(numbers: Sequence[int]) -> str:
    """The prompt. Numbers after the first carry their sign: ``(7, 8, -3)`` is 7 + 8 - 3."""
    return str(numbers[0]) + "".join(_signed(n) for n in numbers[1:]) + " = ?"


def _signed(number: int) -> str:
    return f" + {number}" if number >= 0 else f" - {-number}"


def totals(numbers: Sequence[int], slips: Sequence[bool] = ()) -> list[int]:
    """The running totals, the first number among them. ``slips[i]`` True: operation i loses its ten, if it has one to
    carry or borrow."""
    found = [numbers[0]]
    for i, number in enumerate(numbers[1:]):
        total = found[-1] + number
        if i < len(slips) and slips[i]:
            if number >= 0 and found[-1] % 10 + number % 10 >= 10:
                total -= 10  # the carry is forgotten
            elif number < 0 and found[-1] % 10 < -number % 10:
                total += 10  # the borrow is forgotten
        found.append(total)
    return found


def worked(numbers: Sequence[int], slips: Sequence[bool] = (), boxed: bool = True) -> str:
    """One line for each operation, then the answer."""
    found = totals(numbers, slips)
    lines = [f"{a}{_signed(n)} = {b}\n" for (a, b), n in zip(pairwise(found), numbers[1:], strict=True)]
    return OPEN + "".join(lines) + CLOSE + boxed_answer(found[-1], boxed)


def split_of(numbers: Sequence[int]) -> str:
    """Which split a sum belongs to, from the sum itself; see ``split_of_text``."""
    return "showcase" if tuple(numbers) == SHOWCASE else split_of_text(question(numbers))


@lru_cache(maxsize=1)
def sizes() -> dict[str, int]:
    """The most rows that each split can give: as many sums of three terms as there are, and as many of each other
    length, of which there are more."""
    found = {"train": 0, "validation": 0, "eval": 0}
    for passed in product(range(LARGEST + 1), repeat=min(TERMS)):
        numbers = (passed[0], *(b - a for a, b in pairwise(passed)))
        if 0 not in numbers[1:] and (split := split_of(numbers)) in found:
            found[split] += len(TERMS)
    return found


def rows(size: int, seed: int, split: str) -> list[Row]:
    """``size`` different sums, as many of each length.

    Raises OncurveError for an unknown split and for more sums than it has."""
    need_split(split)
    if size > sizes()[split]:
        raise NotEnough(
            f"the chain task has {sizes()[split]} different sums for {split}, and {size} were asked for; ask for fewer"
        )
    rng = random.Random(f"oncurve chain {split} {seed}")
    found: dict[tuple[int, ...], Row] = {}
    while len(found) < size:
        numbers = _draw(rng, TERMS[len(found) % len(TERMS)])
        if split_of(numbers) == split:
            found.setdefault(numbers, _row(numbers))
    mixed = list(found.values())
    rng.shuffle(mixed)
    return mixed


def _draw(rng: random.Random, terms: int) -> tuple[int, ...]:
    found = [rng.randint(0, LARGEST)]
    total = found[0]
    for _ in range(terms - 1):
        following = rng.choice([t for t in range(LARGEST + 1) if t != total])
        found.append(following - total)
        total = following
    return tuple(found)


def _row(numbers: tuple[int, ...]) -> Row:
    return {"prompt": question(numbers), "answer": str(sum(numbers)), "numbers": numbers}


def demonstrations(size: int, seed: int, slip: float = SLIP, unboxed: float = UNBOXED) -> list[Row]:
    """The tutor's examples about training sums: rows with a ``completion``.

    ``slip`` is the share of needed tens that are forgotten, ``unboxed`` the share of answers without a box."""
    need_share("slip", slip)
    need_share("unboxed", unboxed)
    rng = random.Random(f"oncurve chain tutor {seed}")
    found = []
    for row in rows(size, seed, "train"):
        numbers = row["numbers"]
        slips = [rng.random() < slip for _ in numbers[1:]]
        if min(totals(numbers, slips)) < 0:
            slips = []  # the tutor would notice: nothing is below zero in these sums
        found.append({**row, "completion": worked(numbers, slips, boxed=rng.random() >= unboxed)})
    return found


def steps_right(completion: str, numbers: Sequence[int]) -> bool:
    """Does the completion work out every operation, in order and rightly? (Not: is the answer boxed.)"""
    return completion.startswith(worked(numbers).partition(CLOSE)[0] + CLOSE)


def chain_right(*, completions: Sequence[str], numbers: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """1.0 where every step is right."""
    return [float(steps_right(text, terms)) for text, terms in zip(completions, numbers, strict=True)]


def right_unboxed(*, completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where the last number written is the answer, boxed or not."""
    return [float(last_number(text) == right) for text, right in zip(completions, answer, strict=True)]


def chain_steps(
    *, completions: Sequence[str], numbers: Sequence[Sequence[int]], answer: Sequence[str], **_: Any
) -> list[StepRewards]:
    """A step for each line ``a + b = c`` and one for the answer: see ``oncurve.tasks.steps``.

    A line is right if it works out the next operation of the sum, from the total that the line before it came to, and
    rightly. After a line that is no operation the right total is expected. The answer is right if it is the right one,
    in a box."""
    return [
        judge_steps(text, lambda lines, terms=terms: _lines_right(lines, terms), is_boxed(right))
        for text, terms, right in zip(completions, numbers, answer, strict=True)
    ]


def _lines_right(lines: Sequence[str], numbers: Sequence[int]) -> list[bool]:
    right: list[bool] = []
    true, stated = totals(numbers), numbers[0]
    for i, line in enumerate(lines):
        if i + 1 == len(numbers):  # more lines than operations
            return right + [False] * (len(lines) - i)
        right.append(line == f"{stated}{_signed(numbers[i + 1])} = {stated + numbers[i + 1]}")
        came_to = re.fullmatch(r"[0-9]{1,9} [+-] [0-9]{1,9} = ([0-9]{1,9})", line)
        stated = int(came_to[1]) if came_to else true[i + 1]
    return right


def check(seed: int) -> dict[str, int]:
    """Draw 500 held-out sums of each kind and 5000 to train on, and confirm that no sum is in two of them.

    Raises OncurveError naming a sum that is; returns the number of sums looked at in each split."""
    return distinct_prompts(
        {
            "eval": rows(500, seed, "eval"),
            "validation": rows(500, seed, "validation"),
            "train": rows(5000, seed, "train"),
            "showcase": list(TASK.showcase),
        }
    )


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each number and phrase; see ``word_level_tokenizer``."""
    return word_level_tokenizer(PHRASES)


def build_model_config() -> LlamaConfig:
    """The small model that learns this task."""
    return small_llama_config(build_tokenizer())


TASK = Task(
    name="chain",
    rows=rows,
    demonstrations=demonstrations,
    options=("slip", "unboxed"),
    tutor_score=tutor_score,
    check=check,
    build_tokenizer=build_tokenizer,
    build_model_config=build_model_config,
    showcase=(_row(SHOWCASE),),
    metrics=tuple(f"oncurve.tasks.chain:{f.__name__}" for f in (chain_right, right_unboxed)),
    steps="oncurve.tasks.chain:chain_steps",
)

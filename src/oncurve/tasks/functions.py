"""Small Python functions, told in words and checked by tests, from a tutor who mixes things up.

    f(x): times 2, subtract 3, at least 0. f(4) = 5     def f(x):
                                                            x = x * 2
                                                            x = x - 3
                                                            x = max(x, 0)
                                                            return x

Often the tutor writes what looks alike (``+`` for ``-``, ``min`` for ``max``, ``>`` for ``<``) or forgets the
``return``. As in the letters task the flaws are on purpose: they leave something for a reward to mend. The reward is
``code``: programs are run in the sandbox, on the test that the prompt shows and on five hidden ones, which no single
slip passes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from types import CodeType
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.tasks.base import (
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
from oncurve.tasks.steps import StepRewards

ON_NUMBERS: Mapping[str, tuple[str, str]] = {
    "add N": ("x + N", "x - N"),
    "subtract N": ("x - N", "x + N"),
    "times N": ("x * N", "x + N"),
    "square": ("x * x", "x + x"),
    "halve": ("x // 2", "x % 2"),
    "modulo N": ("x % N", "x // N"),
    "at least N": ("max(x, N)", "min(x, N)"),
    "at most N": ("min(x, N)", "max(x, N)"),
}
"""What is said, the expression for it, and the one that it is taken for. N is a number."""

ON_LISTS: Mapping[str, tuple[str, str]] = {
    "keep over N": ("[x for x in xs if x > N]", "[x for x in xs if x < N]"),
    "keep under N": ("[x for x in xs if x < N]", "[x for x in xs if x > N]"),
    "add N to each": ("[x + N for x in xs]", "[x * N for x in xs]"),
    "times N each": ("[x * N for x in xs]", "[x + N for x in xs]"),
    "reverse": ("xs[::-1]", "sorted(xs)"),
    "sort": ("sorted(xs)", "xs[::-1]"),
    "drop first": ("xs[1:]", "xs[:-1]"),
    "drop last": ("xs[:-1]", "xs[1:]"),
}
ENDS: Mapping[str, str] = {"sum": "sum(xs)", "count": "len(xs)", "the list": "xs"}
"""What a function of a list returns."""

NUMBERS = range(2, 10)
SHOWCASE = ("x", ("square", "subtract 4", "at most 9"))
TESTS = 6
"""One is shown in the prompt, the others are hidden."""
MOST = {"train": 100_000, "validation": 2000, "eval": 2000}
"""Rows that a split gives, of about 250,000 questions."""

SLIP, UNRETURNED = 0.4, 0.3
"""How often the tutor takes an operation for another, and how often the ``return`` is forgotten."""

PHRASES = tuple(
    dict.fromkeys(
        (
            *(
                name.replace(" to each", "").removesuffix("N").replace("N each", "")
                for name in (*ON_NUMBERS, *ON_LISTS)
            ),
            *(" to each", " each", *ENDS, "f(", "): ", ". f(", ") = "),
            *("def ", "xs", "):\n", "    ", "return ", "\n", " = ", " + ", " - ", " * ", " // ", " % ", " > ", " < "),
            *("max(", "min(", "sorted(", "sum(", "len(", ")", "[", "]", "[::-1]", "[1:]", "[:-1]", ", ", "-"),
            *(" for ", " in ", " if "),
        )
    )
)

_BUILTINS = {"__builtins__": {}, "max": max, "min": min, "sorted": sorted, "sum": sum, "len": len}

Question = tuple[str, tuple[str, ...]]
"""The argument, ``x`` or ``xs``, and what is said of it; of a list what is returned as well."""


def said(question: Question) -> str:
    """What the function shall do, in words."""
    argument, parts = question
    return f"f({argument}): {', '.join(parts)}"


def program(question: Question, slips: Sequence[bool] = (), returned: bool = True) -> str:
    """The function. ``slips[i]`` True: operation i is taken for another; ``returned`` False: it returns nothing."""
    argument, parts = question
    lines = [
        f"    {argument} = {_expression(argument, part, i < len(slips) and slips[i])}\n"
        for i, part in enumerate(_operations(question))
    ]
    end = argument if argument == "x" else ENDS[parts[-1]]
    return f"def f({argument}):\n{''.join(lines)}    {'return ' * returned}{end}"


def run(question: Question, value: Any, slips: Sequence[bool] = ()) -> Any:
    """What the function returns. It is the table above that is evaluated here, and never what a model wrote."""
    argument, parts = question
    for i, part in enumerate(_operations(question)):
        slipped = i < len(slips) and slips[i]
        value = eval(_compiled(_expression(argument, part, slipped)), {**_BUILTINS, argument: value})
    return value if argument == "x" else eval(_compiled(ENDS[parts[-1]]), {**_BUILTINS, argument: value})


def _operations(question: Question) -> tuple[str, ...]:
    return question[1] if question[0] == "x" else question[1][:-1]


def _expression(argument: str, part: str, slipped: bool) -> str:
    number = next((word for word in part.split() if word.isdigit()), "")
    table = ON_NUMBERS if argument == "x" else ON_LISTS
    name = part.replace(number, "N") if number else part
    return table[name][slipped].replace("N", number)


@lru_cache(maxsize=10_000)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "functions", "eval")


@lru_cache(maxsize=50_000)
def inputs(question: Question) -> tuple[Any, ...] | None:
    """What the function is tested on, the shown one first: on the others every single slip returns something else
    somewhere. None if there is no such choice, because an operation has no effect.

    It follows from the question alone."""
    rng = random.Random(f"oncurve functions tests {said(question)}")
    operations = len(_operations(question))
    slips = [tuple(i == k for i in range(operations)) for k in range(operations)]
    for _ in range(10):
        shown = rng.randint(1, 12) if question[0] == "x" else [rng.randint(1, 12) for _ in range(3)]
        hidden = [_draw_input(rng, question[0]) for _ in range(TESTS - 1)]
        right = [run(question, value) for value in (shown, *hidden)]
        if (
            len({repr(value) for value in (shown, *hidden)}) == TESTS
            and all(abs(n) <= 99 for n in (right[0] if isinstance(right[0], list) else [right[0]]))
            and len({repr(value) for value in right}) > TESTS // 2
            and all([run(question, value, slip) for value in hidden] != right[1:] for slip in slips)
        ):
            return (shown, *hidden)
    return None


def _draw_input(rng: random.Random, argument: str) -> Any:
    return rng.randint(-20, 30) if argument == "x" else [rng.randint(-9, 20) for _ in range(rng.randint(0, 6))]


def rows(size: int, seed: int, split: str) -> list[Row]:
    """``size`` different questions; ``answer`` is the program, ``tests`` and ``hidden_tests`` are for ``code``.

    Raises OncurveError for an unknown split and for more questions than ``MOST``."""
    need_split(split)
    if size > MOST[split]:
        raise NotEnough(
            f"the functions task gives at most {MOST[split]} questions for {split}, and {size} were asked for; ask for "
            "fewer"
        )
    rng = random.Random(f"oncurve functions {split} {seed}")
    found: dict[Question, Row] = {}
    while len(found) < size:
        question = _draw(rng)
        if question not in found and question != SHOWCASE and split_of_text(said(question)) == split:
            values = inputs(question)
            if values is not None:
                found[question] = _row(question, values)
    return list(found.values())


def _draw(rng: random.Random) -> Question:
    if rng.random() < 0.6:
        return "x", tuple(_draw_part(rng, ON_NUMBERS) for _ in range(rng.randint(2, 3)))
    return "xs", (*(_draw_part(rng, ON_LISTS) for _ in range(rng.randint(1, 2))), rng.choice(list(ENDS)))


def _draw_part(rng: random.Random, table: Mapping[str, Any]) -> str:
    return rng.choice(list(table)).replace("N", str(rng.choice(NUMBERS)))


def _row(question: Question, values: Sequence[Any]) -> Row:
    tests = [{"call": [value], "returns": run(question, value)} for value in values]
    return {
        "prompt": f"{said(question)}. f({values[0]}) = {tests[0]['returns']}\n",
        "answer": program(question),
        "tests": tests[:1],
        "hidden_tests": tests[1:],
        "entry_point": "f",
        "said": said(question),
    }


def demonstrations(size: int, seed: int, slip: float = SLIP, unreturned: float = UNRETURNED) -> list[Row]:
    """The tutor's examples about training questions: rows with a ``completion``.

    ``slip`` is the share of operations that are taken for another, ``unreturned`` that of functions that return
    nothing."""
    need_share("slip", slip)
    need_share("unreturned", unreturned)
    rng = random.Random(f"oncurve functions tutor {seed}")
    found = []
    for row in rows(size, seed, "train"):
        argument, _, parts = row["said"].removeprefix("f(").partition("): ")
        question = (argument, tuple(parts.split(", ")))
        slips = [rng.random() < slip for _ in _operations(question)]
        found.append({**row, "completion": program(question, slips, returned=rng.random() >= unreturned)})
    return found


def tutor_score(demonstrations: Sequence[Row]) -> dict[str, float]:
    """As ``oncurve.tasks.base.tutor_score``: ``right`` are functions without a slip, ``boxed`` those that return."""
    returned = ["    return " in row["completion"] for row in demonstrations]
    right = [_body(row["completion"]) == _body(row["answer"]) for row in demonstrations]
    return {
        "right_and_boxed": fmean(r and b for r, b in zip(right, returned, strict=True)),
        "right": fmean(right),
        "boxed": fmean(returned),
    }


def _body(text: str) -> str:
    return text.rpartition("\n")[0]


def body_right(*, completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where every line but the last, the ``return``, is as in the tutor's own right program."""
    return [float(_body(text) == _body(right)) for text, right in zip(completions, answer, strict=True)]


def functions_steps(*, completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[StepRewards]:
    """A step for each line that is not empty: see ``oncurve.tasks.steps``.

    A line is right if it is the line of the right program at this place. Other ways to write the same are not known
    here; whether the program is right is for ``code`` to say."""
    found: list[StepRewards] = []
    for text, right in zip(completions, answer, strict=True):
        expected = right.split("\n")
        lines = [match for match in re.finditer(r"[^\n]*\n|[^\n]+\Z", text) if match[0].strip()]
        found.append(
            [
                (match.end(), float(i < len(expected) and match[0].rstrip() == expected[i]))
                for i, match in enumerate(lines)
            ]
        )
    return found


def check(seed: int) -> dict[str, int]:
    """Draw 500 held-out questions of each kind and 3000 to train on, and confirm that none is in two of them.

    Raises OncurveError naming a question that is; returns the number of questions looked at in each split."""
    splits = {name: rows(size, seed, name) for name, size in (("eval", 500), ("validation", 500), ("train", 3000))}
    return distinct_prompts({**splits, "showcase": list(TASK.showcase)})


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, number and piece of Python; see ``word_level_tokenizer``."""
    return word_level_tokenizer(PHRASES)


def build_model_config() -> LlamaConfig:
    """The small model that learns this task."""
    return small_llama_config(build_tokenizer())


TASK = Task(
    name="functions",
    rows=rows,
    demonstrations=demonstrations,
    options=("slip", "unreturned"),
    tutor_score=tutor_score,
    check=check,
    build_tokenizer=build_tokenizer,
    build_model_config=build_model_config,
    showcase=(_row(SHOWCASE, (2, -3, 1, 3, 4, 0)),),
    metrics=("oncurve.tasks.functions:body_right",),
    reward="code",
    steps="oncurve.tasks.functions:functions_steps",
)

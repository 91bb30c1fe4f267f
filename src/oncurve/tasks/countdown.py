r"""Three numbers and a target: which calculation uses each number once and comes to the target?

    7, 5, 3 to make 26     <think>
                           3 * 7 = 21
                           21 + 5 = 26
                           </think>
                           \boxed{(3 * 7) + 5}

The tutor calculates rightly, but most of the time at random, without a look at the target, and often forgets the box.
There may be several right answers, so ``solved`` is the reward, and not ``accuracy``.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, permutations
from statistics import fmean
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.rewards import completion_text, extract_answer
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
from oncurve.tasks.steps import StepRewards, judge_steps

PHRASES = (", ", " to make ", " + ", " - ", " * ", " = ", "(", ")", "\n", OPEN, CLOSE, "\\boxed{", "}")

NUMBERS = range(1, 21)
LARGEST = 99
"""Every result lies in 1..99."""
SHOWCASE = ((7, 5, 3), 26)

SLIP, UNBOXED = 0.7, 0.4
"""How often the tutor calculates without looking at the target, and how often the box is forgotten."""

_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NODES: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_LONGEST = 100
"""Characters of an answer that are looked at."""

Move = tuple[int, str, int, int]
"""``a``, sign, ``b`` and the result."""


def question(numbers: Sequence[int], target: int) -> str:
    """The prompt."""
    return f"{', '.join(map(str, numbers))} to make {target}"


def moves(numbers: Sequence[int]) -> Iterator[tuple[Move, tuple[int, ...]]]:
    """Every way to put two of the numbers together, and the numbers that are there then. ``a + b`` and ``b + a`` are
    both there; results are those of 1..99."""
    for i, j in permutations(range(len(numbers)), 2):
        left = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
        for sign, apply in _SIGNS.items():
            result = apply(numbers[i], numbers[j])
            if 1 <= result <= LARGEST:
                yield (numbers[i], sign, numbers[j], result), (*left, result)


@lru_cache(maxsize=100_000)
def reachable(numbers: tuple[int, ...]) -> frozenset[int]:
    """What all of the (sorted) numbers together can make."""
    if len(numbers) == 1:
        return frozenset(numbers)
    return frozenset().union(*(reachable(tuple(sorted(left))) for _, left in moves(numbers)))


def solutions(numbers: Sequence[int], target: int) -> list[tuple[Move, ...]]:
    """Every way from three numbers to the target, in a fixed order."""
    return [
        (first, second)
        for first, left in moves(numbers)
        for second, (result,) in moves(left)
        if result == target
    ]  # fmt: skip


def worked(first: Move, second: Move, boxed: bool = True) -> str:
    """Two lines, then the whole calculation."""
    lines = "".join(f"{a} {sign} {b} = {result}\n" for a, sign, b, result in (first, second))
    a, sign, b, result = first
    inner = f"({a} {sign} {b})"
    c, outer, d, _ = second
    whole = f"{inner} {outer} {d}" if c == result else f"{c} {outer} {inner}"
    return f"{OPEN}{lines}{CLOSE}" + (f"\\boxed{{{whole}}}" if boxed else whole)


@lru_cache(maxsize=1)
def _questions() -> dict[str, tuple[tuple[tuple[int, ...], int], ...]]:
    """Every question there is, by its split: sorted numbers and the target, which is none of the numbers."""
    found: dict[str, list[tuple[tuple[int, ...], int]]] = {"train": [], "validation": [], "eval": []}
    showcase = (tuple(sorted(SHOWCASE[0])), SHOWCASE[1])
    for numbers in combinations_with_replacement(NUMBERS, 3):
        for target in sorted(reachable(numbers) - set(numbers)):
            if (numbers, target) != showcase:
                found[split_of_text(question(numbers, target))].append((numbers, target))
    return {split: tuple(questions) for split, questions in found.items()}


def sizes() -> dict[str, int]:
    """The most rows that each split can give."""
    return {split: len(questions) for split, questions in _questions().items()}


def rows(size: int, seed: int, split: str) -> list[Row]:
    """``size`` different questions, whatever the order of their numbers.

    Raises OncurveError for an unknown split and for more questions than it has."""
    need_split(split)
    questions = _questions()[split]
    if size > len(questions):
        raise NotEnough(
            f"the countdown task has {len(questions)} different questions for {split}, and {size} were asked for; ask "
            "for fewer"
        )
    rng = random.Random(f"oncurve countdown {split} {seed}")
    return [_row(tuple(rng.sample(numbers, 3)), target) for numbers, target in rng.sample(questions, size)]


def _row(numbers: tuple[int, ...], target: int) -> Row:
    first, second = solutions(numbers, target)[0]
    answer = worked(first, second).partition("\\boxed{")[2][:-1]
    return {"prompt": question(numbers, target), "answer": answer, "numbers": numbers, "target": target}


def demonstrations(size: int, seed: int, slip: float = SLIP, unboxed: float = UNBOXED) -> list[Row]:
    """The tutor's examples about training questions: rows with a ``completion``.

    ``slip`` is the share of calculations made without looking at the target, ``unboxed`` the share without a box."""
    need_share("slip", slip)
    need_share("unboxed", unboxed)
    rng = random.Random(f"oncurve countdown tutor {seed}")
    found = []
    for row in rows(size, seed, "train"):
        first, second = rng.choice(solutions(row["numbers"], row["target"]))
        if rng.random() < slip:
            first, left = rng.choice(list(moves(row["numbers"])))
            second = rng.choice(list(moves(left)))[0]
        found.append({**row, "completion": worked(first, second, boxed=rng.random() >= unboxed)})
    return found


def is_solution(expression: str, numbers: Sequence[int], target: int) -> bool:
    """Does the expression use each number once and come to the target? Whole numbers, ``+ - *`` and parentheses are
    all it may hold. It is read, and never run."""
    if len(expression) > _LONGEST or not re.fullmatch(r"[0-9()+\-* ]+", expression):
        return False
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    used: list[int] = []
    value = _value(tree, used)
    return value == target and sorted(used) == sorted(numbers)


def _value(node: ast.expr, used: list[int]) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            used.append(number)
            return number
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _NODES:
            a, b = _value(left, used), _value(right, used)
            return None if a is None or b is None else _SIGNS[_NODES[type(sign)]](a, b)
        case _:
            return None


def solved(*, completions: Sequence[Any], numbers: Sequence[Any], target: Sequence[int], **_: Any) -> list[float]:
    """1.0 where the answer (see ``extract_answer``) uses each number once and comes to the target."""
    answers = [extract_answer(completion_text(completion)) for completion in completions]
    return [
        float(answer is not None and is_solution(answer, given, goal))
        for answer, given, goal in zip(answers, numbers, target, strict=True)
    ]


def solved_unboxed(
    *, completions: Sequence[str], numbers: Sequence[Any], target: Sequence[int], **_: Any
) -> list[float]:
    """1.0 where what stands after the thoughts is a solution, boxed or not."""
    answers = [
        text.rpartition("</think>")[2].strip().removeprefix("\\boxed{").removesuffix("}") for text in completions
    ]
    return [float(is_solution(*each)) for each in zip(answers, numbers, target, strict=True)]


def tutor_score(demonstrations: Sequence[Row]) -> dict[str, float]:
    """As ``oncurve.tasks.base.tutor_score``, for answers that are calculations."""
    columns = {name: [row[name] for row in demonstrations] for name in ("numbers", "target")}
    completions = [row["completion"] for row in demonstrations]
    return {
        "right_and_boxed": fmean(solved(completions=completions, **columns)),
        "right": fmean(solved_unboxed(completions=completions, **columns)),
        "boxed": fmean("\\boxed{" in text for text in completions),
    }


def countdown_steps(
    *, completions: Sequence[str], numbers: Sequence[Sequence[int]], target: Sequence[int], **_: Any
) -> list[StepRewards]:
    """A step for each line ``a + b = c`` and one for the answer: see ``oncurve.tasks.steps``.

    A line is right if it calculates rightly, with two of the numbers that are left, and leaves numbers from which the
    target can still be made. Where it cannot be made any more, the line that lost it alone is to blame. The answer is
    right if it is a solution, in a box."""
    return [
        judge_steps(
            text,
            lambda lines, given=given, goal=goal: _lines_right(lines, given, goal),
            lambda answer, given=given, goal=goal: (
                answer.startswith("\\boxed{") and answer.endswith("}") and is_solution(answer[7:-1], given, goal)
            ),
        )
        for text, given, goal in zip(completions, numbers, target, strict=True)
    ]


def _lines_right(lines: Sequence[str], numbers: Sequence[int], target: int) -> list[bool]:
    right: list[bool] = []
    left = list(numbers)
    within_reach = True
    for line in lines:
        move = re.fullmatch(r"([0-9]{1,4}) ([-+*]) ([0-9]{1,4}) = ([0-9]{1,8})", line)
        a, sign, b, result = (int(move[1]), move[2], int(move[3]), int(move[4])) if move else (-1, "+", -1, -1)
        after = list(left)
        there = a in after and (after.remove(a) or b in after)
        if not there:  # numbers that nobody has, or no calculation: nothing is used up
            right.append(False)
            continue
        after.remove(b)
        after.append(result)
        still = within_reach and target in reachable(tuple(sorted(after)))
        right.append(_SIGNS[sign](a, b) == result and (still or not within_reach))
        left, within_reach = after, still
    return right


def check(seed: int) -> dict[str, int]:
    """Draw 300 held-out questions of each kind and 3000 to train on, and confirm that none is in two of them, whatever
    the order of its numbers.

    Raises OncurveError naming a question that is; returns the number of questions looked at in each split."""
    splits = {name: rows(size, seed, name) for name, size in (("eval", 300), ("validation", 300), ("train", 3000))}
    splits["showcase"] = list(TASK.showcase)
    return distinct_prompts(
        {
            name: [{"prompt": question(sorted(row["numbers"]), row["target"])} for row in found]
            for name, found in splits.items()
        }
    )


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each number and phrase; see ``word_level_tokenizer``."""
    return word_level_tokenizer(PHRASES)


def build_model_config() -> LlamaConfig:
    """The small model that learns this task."""
    return small_llama_config(build_tokenizer())


TASK = Task(
    name="countdown",
    rows=rows,
    demonstrations=demonstrations,
    options=("slip", "unboxed"),
    tutor_score=tutor_score,
    check=check,
    build_tokenizer=build_tokenizer,
    build_model_config=build_model_config,
    showcase=(_row(*SHOWCASE),),
    metrics=("oncurve.tasks.countdown:solved_unboxed",),
    reward="oncurve.tasks.countdown:solved",
    steps="oncurve.tasks.countdown:countdown_steps",
)

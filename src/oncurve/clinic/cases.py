"""What the reward clinic gives a reward function to judge: completions made of a data set's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oncurve.data.prompts import Row

Shape = Callable[[Row], str]
"""From a row to a completion that has its answer."""

JUNK = "I do not know. Perhaps it rains, or it does not."
_SPRAYED = 20


def shapes(completion_column: str) -> dict[str, Shape]:
    """In what forms a completion may have the right answer, by a description. Not every row has what each needs."""
    return {
        f"the column `{completion_column}`": lambda row: _text(row[completion_column]),
        "think block, then \\boxed{answer}": lambda row: f"<think>\nLet me see.\n</think>\n\\boxed{{{row['answer']}}}",
        "think block, then answer block": (
            lambda row: f"<think>\nLet me see.\n</think>\n<answer>\n{row['answer']}\n</answer>"
        ),
        "#### answer": lambda row: f"#### {row['answer']}",
        "the answer in a code block": lambda row: f"```python\n{row['answer']}\n```",
        "the answer alone": lambda row: str(row["answer"]),
    }


def usable(shape: Shape, rows: Sequence[Row]) -> list[str] | None:
    """The completion of each row in that shape, or None if a row lacks what it needs."""
    try:
        found = [shape(row) for row in rows]
    except (KeyError, TypeError, IndexError):
        return None
    return found if all(text.strip() for text in found) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value[-1]["content"]


def shuffled(gold: Sequence[str], answers: Sequence[Any]) -> list[str]:
    """For each row a completion that is right for a row with another answer."""
    return [next(_others(gold, answers, at), JUNK) for at in range(len(gold))]


def sprayed(gold: Sequence[str], answers: Sequence[Any]) -> list[str]:
    """For each row the completions of up to twenty rows with other answers, and its own in the middle of them."""
    found = []
    for at, right in enumerate(gold):
        others = list(dict.fromkeys(_others(gold, answers, at)))[:_SPRAYED] or [JUNK]
        half = len(others) // 2
        found.append("\n".join([*others[:half], right, *others[half:]]))
    return found


def _others(gold: Sequence[str], answers: Sequence[Any], at: int) -> Iterator[str]:
    for other in (*range(at + 1, len(gold)), *range(at)):
        if answers[other] != answers[at] and gold[other] != gold[at]:
            yield gold[other]


def truncated(gold: Sequence[str]) -> list[str]:
    """The first half of each."""
    return [text[: len(text) // 2] for text in gold]


def echoed(prompts: Sequence[str | Sequence[Mapping[str, str]]]) -> list[str]:
    """Each prompt as its own answer."""
    return [raw if isinstance(raw, str) else raw[-1]["content"] for raw in prompts]


BOMBS: Mapping[str, str] = {
    "10^10^10": "\\boxed{10^{10^{10}}}",
    "9**9**9": "<answer>9**9**9</answer>",
    "a factorial": "\\boxed{100000000!}",
    "2,000 braces": "\\boxed{" + "{" * 2000 + "}" * 2000 + "}",
    "5,000 open boxes": "\\boxed{" * 5000,
    "20,000 tags": "<think>\n" + "\n</think>\n<answer>\n" * 20_000,
    "200 kB": "x" * 200_000,
    "code": "\\boxed{__import__('os').getpid()}",
    "control characters": "\x00\x1b[31m\u202e",
    "unicode digits": "\\boxed{\u0663\u09e9\uff13\u2163}",
}
"""Texts that have stalled, crashed or fooled scorers."""

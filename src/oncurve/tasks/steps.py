"""Rewards for single steps: where each step of a completion ends, and whether it is right.

A step checker is a function in the form of a reward (keywords only, one value for each completion). It returns for each
completion a list of ``(end, reward)``: ``end`` is the offset in characters, exclusive, at which a step ends in the text
of the completion; ends rise. 1.0 is a right step, 0.0 a wrong one. An empty list: there is no step, nothing is said.

A line of the thoughts is a step, with the newline that ends it, and so is the answer behind them. A step is judged for
itself: what rightly follows from an earlier slip is right, so that the slip alone is to blame for what it spoils.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

StepRewards = list[tuple[int, float]]

_OPEN, _CLOSE = "<think>", "</think>"


def judge_steps(
    text: str, judge: Callable[[Sequence[str]], Sequence[bool]], answer_right: Callable[[str], bool]
) -> StepRewards:
    """The steps of ``text``, in their order.

    Args:
        text: one completion.
        judge: for each line of the thoughts (without the tags, white space around it, and empty lines), is it right?
        answer_right: is this, what stands after ``</think>`` or all of a text without thoughts, the answer?
    """
    lines, ends, answer = _parts(text)
    steps = [(end, float(right)) for end, right in zip(ends, judge(lines), strict=True)]
    if answer:
        steps.append((len(text), float(answer_right(answer))))
    return steps


def step_ends(text: str) -> list[int]:
    """Where the steps of ``text`` end, as ``judge_steps`` has them: for `reward_model.steps`."""
    _, ends, answer = _parts(text)
    return [*ends, len(text)] if answer else ends


def _parts(text: str) -> tuple[list[str], list[int], str]:
    """The lines of the thoughts, where each ends, and the answer."""
    thoughts, _, answer = text.partition(_CLOSE) if _CLOSE in text else (text, "", "")
    if _OPEN not in text and _CLOSE not in text:
        thoughts, answer = "", text
    lines: list[str] = []
    ends: list[int] = []
    for match in re.finditer(r"[^\n]*\n|[^\n]+\Z", thoughts):
        line = match[0].strip()
        if not lines:
            line = line.removeprefix(_OPEN).strip()
        if line:
            lines.append(line)
            ends.append(match.end())
    return lines, ends, answer.strip()


def is_boxed(answer: str) -> Callable[[str], bool]:
    r"""Whether a text is ``\boxed{answer}`` and nothing else."""
    return lambda text: text == f"\\boxed{{{answer}}}"

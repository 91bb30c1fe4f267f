"""Step rewards: what a reward function says about each step of a completion (process supervision)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from oncurve.rewards.values import PerCompletion, item, shown

Unit = Literal["characters", "tokens"]


class Step(NamedTuple):
    """One step of a completion and its reward."""

    end: int
    """Where it ends, exclusive: the step's last character is ``text[end - 1]``, or its last token ``token_ids[end -
    1]``. At least 1."""
    reward: float | None
    """Before the function's weight; None = this step was not scored."""


@dataclass(frozen=True, slots=True)
class StepScores:
    """What one function said about the steps of P prompts with G completions each."""

    unit: Unit
    """What ``Step.end`` counts."""
    steps: PerCompletion[tuple[Step, ...]]
    """``[P][G]``: the steps of each completion in their order; empty = none were found (unscored)."""


def unit_of(function: Callable[..., Any]) -> Unit:
    """``tokens`` if the function carries the attribute ``step_ends = "tokens"``, else ``characters``.

    Raises ValueError for another value of the attribute.
    """
    unit = getattr(function, "step_ends", "characters")
    if unit not in ("characters", "tokens"):
        raise ValueError(f'its attribute step_ends is {unit!r}; it must be "characters" or "tokens"')
    return unit


def is_steps(value: Any) -> bool:
    """Whether a reward function gave steps for a completion, and not a number."""
    return isinstance(value, list | tuple)


def checked_steps(value: Any, size: int, unit: Unit) -> tuple[Step, ...]:
    """What a function returned for one completion of ``size`` characters or tokens, as steps.

    Raises:
        ValueError: naming the step: it is no pair, its end is no whole number in ``[1, size]`` or comes before the one
            before it, or its reward is no finite number.
    """
    found: list[Step] = []
    for number, pair in enumerate(value):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"step {number} is {shown(pair)}; give a pair (end, reward)")
        end, reward = (item(part) for part in pair)
        if isinstance(end, bool) or not isinstance(end, numbers.Integral) or not 1 <= int(end) <= size:
            raise ValueError(
                f"step {number} ends at {shown(end)}; give the number of {unit} up to its end, from 1 to {size}"
            )
        if found and int(end) < found[-1].end:
            raise ValueError(
                f"step {number} ends at {end}, before step {number - 1} ({found[-1].end}); give them in order"
            )
        found.append(Step(int(end), _reward(reward, number)))
    return tuple(found)


def mean_reward(steps: Sequence[Step]) -> float | None:
    """A completion's score where one number is wanted: the mean of its scored steps; None without any."""
    scored = [step.reward for step in steps if step.reward is not None]
    return math.fsum(scored) / len(scored) if scored else None


def joined_steps(
    first: Mapping[str, StepScores], second: Mapping[str, StepScores], sizes: Sequence[Sequence[int]]
) -> dict[str, StepScores]:
    """The steps of two batches by the same functions, one after the other. ``sizes``: completions per group of each. A
    function that scored steps in one of them alone has scored nothing in the other."""
    found: dict[str, StepScores] = {}
    for name in [*first, *(name for name in second if name not in first)]:
        both = (first.get(name), second.get(name))
        rows = tuple(
            row
            for scores, groups in zip(both, sizes, strict=True)
            for row in (scores.steps if scores else tuple(((),) * size for size in groups))
        )
        found[name] = StepScores(next(scores.unit for scores in both if scores), rows)
    return found


def _reward(reward: Any, number: int) -> float | None:
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, numbers.Real) or not math.isfinite(reward):
        raise ValueError(f"step {number} has the reward {shown(reward)}; give a finite number, or None for unscored")
    return float(reward)

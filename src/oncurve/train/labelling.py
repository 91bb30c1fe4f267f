"""From a policy's own samples to what a reward model learns from: pairs, right and wrong completions, or steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncurve.rewards import Step, StepScores
from oncurve.types import Group, OncurveError

Row = dict[str, Any]
Values = Sequence[Sequence[float | None]]
"""``[P][G]``: the measure of each completion."""
StepLabels = Sequence[Sequence[Sequence[tuple[int, float | None]]]]
"""``[P][G]``: of each completion its steps, as ``(end in characters, label)``."""


@dataclass
class Collected:
    """Rows in the form that `oncurve reward-model` reads."""

    rows: list[Row] = field(default_factory=list[Row])
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Reason -> completions left out for it; under "prompts without a pair", prompts."""
    labels: list[float] = field(default_factory=list[float])
    """All labels in ``rows``."""


def collect_pairs(found: Collected, groups: Sequence[Group], values: Values, column: str) -> None:
    """Of every prompt as many pairs as there are without using a completion twice: the best with the worst, the second
    best with the second worst, as long as one is better than the other. Ties go by the order of sampling."""
    for group, of_group in zip(groups, values, strict=True):
        usable = [(value, text) for text, value in _usable(found, group, of_group)]
        ranked = sorted(usable, key=lambda scored: -scored[0])  # stable
        pairs = 0
        for (better, chosen), (worse, rejected) in zip(ranked, reversed(ranked), strict=True):
            if better <= worse:
                break
            found.rows.append({column: _raw(group), "chosen": chosen, "rejected": rejected})
            pairs += 1
        found.dropped["prompts without a pair"] += not pairs


def collect_points(found: Collected, groups: Sequence[Group], values: Values, columns: tuple[str, str]) -> None:
    """Every completion with its label. Raises OncurveError for one that is not between 0 and 1."""
    for group, of_group in zip(groups, values, strict=True):
        for text, value in _usable(found, group, of_group):
            if not 0.0 <= value <= 1.0:
                raise OncurveError(
                    f"the measure gives a completion of prompt {group.prompt.id} {value:g}, and a label lies between 0 "
                    "and 1; use another measure, or pairs (--kind pairwise)"
                )
            found.rows.append({columns[0]: _raw(group), columns[1]: text, "label": value})
            found.labels.append(value)


def collect_steps(found: Collected, groups: Sequence[Group], labels: StepLabels, columns: tuple[str, str]) -> None:
    """Every completion with the labels of its steps. Raises OncurveError for one that is not between 0 and 1."""
    for group, of_group in zip(groups, labels, strict=True):
        seen: set[str] = set()
        for completion, steps in zip(group.completions, of_group, strict=True):
            reason = _unusable(completion.text, seen)
            if reason is None and not any(label is not None for _, label in steps):
                reason = "without steps"
            if reason is not None:
                found.dropped[reason] += 1
                continue
            known = [label for _, label in steps if label is not None]
            if not all(0.0 <= label <= 1.0 for label in known):
                raise OncurveError(
                    f"a step of a completion of prompt {group.prompt.id} is labelled {max(known, key=abs):g}, and a "
                    "label lies between 0 and 1; use another checker"
                )
            found.rows.append(
                {columns[0]: _raw(group), columns[1]: completion.text, "steps": [[end, label] for end, label in steps]}
            )
            found.labels.extend(known)


def checked_labels(
    scores: StepScores, groups: Sequence[Group], in_characters: Callable[[Sequence[int]], int]
) -> list[list[list[tuple[int, float | None]]]]:
    """What a step checker said, by characters. ``in_characters``: the length of the text of some tokens."""

    def end_of(step: Step, ids: Sequence[int]) -> int:
        return step.end if scores.unit == "characters" else in_characters(ids[: step.end])

    return [
        [
            [(end_of(step, completion.token_ids), step.reward) for step in steps]
            for steps, completion in zip(of_group, group.completions, strict=True)
        ]
        for of_group, group in zip(scores.steps, groups, strict=True)
    ]


def _usable(found: Collected, group: Group, values: Sequence[float | None]) -> list[tuple[str, float]]:
    seen: set[str] = set()
    usable: list[tuple[str, float]] = []
    for completion, value in zip(group.completions, values, strict=True):
        reason = _unusable(completion.text, seen) or ("unscored" if value is None else None)
        if reason is not None or value is None:
            found.dropped[reason or "unscored"] += 1
        else:
            usable.append((completion.text, value))
    return usable


def _unusable(text: str, seen: set[str]) -> str | None:
    """Why nothing new can be learned from a completion; remembers its text."""
    if not text.strip():
        return "empty"
    if text in seen:
        return "repeated"
    seen.add(text)
    return None


def _raw(group: Group) -> str | list[dict[str, str]]:
    raw = group.prompt.raw
    return raw if isinstance(raw, str) else [dict(message) for message in raw]

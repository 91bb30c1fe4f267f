"""Call the reward functions on a sampled batch, check what they return, and add it up."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from oncurve.rewards.calls import call_all
from oncurve.rewards.combine import Combination
from oncurve.rewards.functions import NamedReward, RewardError
from oncurve.rewards.pool.inner.load import process_state_kept
from oncurve.rewards.steps import Step, StepScores, Unit, checked_steps, is_steps, joined_steps, mean_reward, unit_of
from oncurve.rewards.values import MOST_FAILED, PerCompletion, as_list, item, shown
from oncurve.types import Group

__all__ = ["MOST_FAILED", "PerCompletion", "Scores", "joined", "score"]

# Deviations from a group's mean are squared, in float64, and advantages are float32.
_LARGEST = 1e30

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scores:
    """What the reward functions said about P prompts with G completions each."""

    totals: PerCompletion[float]
    """``[P][G]``: sum of weight * part over the functions that scored the completion; NaN where none did (unscored)."""
    parts: Mapping[str, PerCompletion[float | None]]
    """By function, ``[P][G]``: its score before weighting; None = unscored. Of a function that scores steps, the mean
    of those it scored."""
    counted: Mapping[str, PerCompletion[float | None]]
    """As ``parts``, after gates and bounds: what the total is the weighted sum of."""
    extras: Mapping[str, PerCompletion[Any]]
    """By column, ``[P][G]``: what the functions gave ``log_extra``."""
    metrics: Mapping[str, float]
    """By name: what they gave ``log_metric``, the mean if several times."""
    sums: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers that add up over batches: ``rewards/{name}/failed``, completions that a function left unscored because it
    raised or did not end; ``rewards/{name}/timeout``, those of them for which it did not end; ``rewards/{name}/gated``,
    those for which its gate took away what it gave;
    ``time/rewards/{name}``, seconds."""
    steps: Mapping[str, StepScores] = field(default_factory=dict[str, StepScores])
    """Of the functions that score steps, what they said about each."""


def score(
    groups: Sequence[Group],
    rewards: Sequence[NamedReward],
    *,
    trainer_state: Any = None,
    combination: Combination | None = None,
) -> Scores:
    """Score every completion of every group with every reward function.

    Each function is called once for the whole batch of B = P*G completions, with those of these keywords that it takes
    (TRL's contract), all lists of B values in the same order:

    * ``prompts``: the prompt as the data set gave it, text or a list of messages;
    * ``prompt_texts``: the prompt as the model read it, after the chat template (not in TRL);
    * ``completions``: the text, or for a prompt of messages a list of one assistant message;
    * ``completion_ids``: its token ids;
    * every other column of the data set by its name, repeated for each completion (None where a row lacks it);

    and ``trainer_state``; ``log_extra(column, values)``, which records a list of B values beside the completions; and
    ``log_metric(name, value)``, which records one number. Functions may be ``async``: these wait side by side, the
    others run one after another in the calling thread. The lists are each function's own; the values in them are shared
    with the data set and must not be changed.

    ``combination`` has gates and bounds. A part with weight 0 is recorded and does not count towards the total, nor
    towards being scored. The state of Python's ``random`` and the working directory are the same afterwards, whatever
    the functions did.

    A function that raises is called again with one completion at a time, or with one prompt's completions at a time if
    it has the attribute ``whole_group = True`` because it compares them. Those for which it raises again are unscored
    and counted; the first traceback is logged.

    Raises:
        RewardError: a function raised for more than ``MOST_FAILED`` of the completions; it raised an ``OncurveError``,
            which is about the data and not about a completion; or it returned something else than one finite number or
            None per completion. Nothing is scored then.
    """
    recorder = _Recorder([len(group.completions) for group in groups])
    if not recorder.rows:
        empty = recorder.fold([])
        parts = {reward.name: empty for reward in rewards}
        return Scores(totals=empty, parts=parts, counted=parts, extras={}, metrics={})
    with process_state_kept():
        results = call_all(groups, rewards, recorder.loggers, recorder.forget, trainer_state)
    steps: dict[str, StepScores] = {}
    columns: list[list[float | None]] = []
    for reward, result in zip(rewards, results, strict=True):
        values = _listed(result.values, reward, recorder.rows)
        if any(map(is_steps, values)):
            of_row = _steps(values, reward, groups)
            steps[reward.name] = StepScores(_unit(reward), recorder.fold(of_row))
            columns.append([mean_reward(row) for row in of_row])
        else:
            columns.append([_checked_value(value, reward, groups, row) for row, value in enumerate(values)])
    combination = combination or Combination()
    names = [reward.name for reward in rewards]
    raw = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * recorder.rows
    counted = [{name: combination.counted(name, row) for name in names} for row in raw]
    totals = [combination.total(_weighted(rewards, row, groups, number)) for number, row in enumerate(counted)]
    shut = {
        f"rewards/{name}/gated": float(
            sum(after[name] == 0.0 and bool(before[name]) for before, after in zip(raw, counted, strict=True))
        )
        for name in combination.gates
    }
    return Scores(
        totals=recorder.fold(totals),
        parts={name: recorder.fold([row[name] for row in raw]) for name in names},
        counted={name: recorder.fold([row[name] for row in counted]) for name in names},
        extras={column: recorder.fold(values) for column, (_, values) in recorder.extras.items()},
        metrics={name: math.fsum(values) / len(values) for name, values in recorder.means().items()},
        sums={name: value for result in results for name, value in result.sums.items()} | shut,
        steps=steps,
    )


def joined(first: Scores, second: Scores) -> Scores:
    """The scores of two batches by the same functions, one after the other. A number that both logged becomes its mean
    over the prompts, a column that one did not log is None there."""
    sizes = [tuple(map(len, scores.totals)) for scores in (first, second)]

    def column(name: str) -> PerCompletion[Any]:
        return tuple(
            row
            for scores, groups in zip((first, second), sizes, strict=True)
            for row in scores.extras.get(name, tuple((None,) * size for size in groups))
        )

    def mean(name: str) -> float:
        logged = [
            (scores.metrics[name], len(groups))
            for scores, groups in zip((first, second), sizes, strict=True)
            if name in scores.metrics
        ]
        return math.fsum(value * prompts for value, prompts in logged) / sum(prompts for _, prompts in logged)

    return Scores(
        totals=first.totals + second.totals,
        parts={name: part + second.parts[name] for name, part in first.parts.items()},
        counted={name: part + second.counted[name] for name, part in first.counted.items()},
        extras={name: column(name) for name in [*first.extras, *(n for n in second.extras if n not in first.extras)]},
        metrics={name: mean(name) for name in [*first.metrics, *(n for n in second.metrics if n not in first.metrics)]},
        sums={name: first.sums.get(name, 0.0) + second.sums.get(name, 0.0) for name in {**first.sums, **second.sums}},
        steps=joined_steps(first.steps, second.steps, sizes),
    )


class _Recorder:
    """Collects what the functions log in one call of ``score``, and folds lists of B values into ``[P][G]``."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.rows = sum(sizes)
        self.extras: dict[str, tuple[str, list[Any]]] = {}
        self.metrics: dict[str, list[tuple[str, float]]] = {}

    def fold(self, values: Sequence[T]) -> PerCompletion[T]:
        remaining = iter(values)
        return tuple(tuple(next(remaining) for _ in range(size)) for size in self.sizes)

    def means(self) -> dict[str, list[float]]:
        return {name: [value for _, value in logged] for name, logged in self.metrics.items()}

    def forget(self, reward: NamedReward) -> None:
        """What a function logged in a call that then failed."""
        self.extras = {column: kept for column, kept in self.extras.items() if kept[0] != reward.name}
        kept = {name: [x for x in logged if x[0] != reward.name] for name, logged in self.metrics.items()}
        self.metrics = {name: logged for name, logged in kept.items() if logged}

    def loggers(self, reward: NamedReward, rows: Collection[int]) -> dict[str, Any]:
        """For a call with those rows of the batch."""

        def log_extra(column: str, values: Any) -> None:
            _check_label("log_extra", column)
            listed = as_list(values)
            if listed is None or len(listed) != len(rows):
                given = type(values).__name__ if listed is None else f"{len(listed)} values"
                raise RewardError(
                    f"log_extra({column!r}, ...) got {given}; give a list of {len(rows)}, one per completion"
                )
            owner, logged = self.extras.setdefault(column, (reward.name, [None] * self.rows))
            if owner != reward.name:
                raise RewardError(f"log_extra({column!r}, ...): reward {owner!r} logs this column already")
            for row, value in zip(rows, listed, strict=True):
                logged[row] = item(value)

        def log_metric(name: str, value: Any) -> None:
            _check_label("log_metric", name)
            number = item(value)
            if not isinstance(number, numbers.Real):
                raise RewardError(f"log_metric({name!r}, {value!r}): give one number")
            self.metrics.setdefault(name, []).append((reward.name, float(number)))

        return {"log_extra": log_extra, "log_metric": log_metric}


def _check_label(logger: str, label: Any) -> None:
    if not isinstance(label, str) or not label or not label.isprintable():
        raise RewardError(f"{logger}({label!r}, ...): the name must be printable text")


def _listed(result: Any, reward: NamedReward, rows: int) -> list[Any]:
    values = as_list(result)
    if values is None:
        raise RewardError(
            f"reward {reward.title} returned {shown(result)}; return a list of {rows} numbers, one per completion"
        )
    if len(values) != rows:
        given = "1 value" if len(values) == 1 else f"{len(values)} values"
        raise RewardError(f"reward {reward.title} returned {given}; expected {rows}, one per completion")
    return values


def _unit(reward: NamedReward) -> Unit:
    try:
        return unit_of(reward.function)
    except ValueError as error:
        raise RewardError(f"reward {reward.name!r}: {error}") from error


def _steps(values: Sequence[Any], reward: NamedReward, groups: Sequence[Group]) -> list[tuple[Step, ...]]:
    """``[B]``: what a function that scores steps said about each completion."""
    found: list[tuple[Step, ...]] = []
    unit = _unit(reward)
    completions = [completion for group in groups for completion in group.completions]
    for row, (value, completion) in enumerate(zip(values, completions, strict=True)):
        if value is not None and not is_steps(value):
            raise RewardError(
                f"reward {reward.title} returned {shown(value)} for {_place(groups, row)} and steps for others; "
                "return a list of (end, reward), or None for unscored"
            )
        size = len(completion.token_ids if unit == "tokens" else completion.text)
        try:
            found.append(checked_steps(value or (), size, unit))
        except ValueError as error:
            raise RewardError(f"reward {reward.name!r}, {_place(groups, row)}: {error}") from error
    return found


def _checked_value(value: Any, reward: NamedReward, groups: Sequence[Group], row: int) -> float | None:
    if value is None:
        return None
    number = item(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise RewardError(
            f"reward {reward.title} returned {shown(value)} for {_place(groups, row)}; return a number, or None for "
            "unscored"
        )
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(
            f"reward {reward.title} returned {number} for {_place(groups, row)}; return a finite number, or None for "
            "unscored"
        )
    return number


def _weighted(
    rewards: Sequence[NamedReward], counted: Mapping[str, float | None], groups: Sequence[Group], row: int
) -> list[float]:
    """Weight times score, of the functions that scored the completion and have a weight."""
    weighted = {
        reward.name: reward.weight * part
        for reward in rewards
        if reward.weight and (part := counted[reward.name]) is not None
    }
    if any(abs(value) > _LARGEST for value in weighted.values()):
        raise RewardError(
            f"the rewards, weight times score, are {weighted} for {_place(groups, row)}; nothing beyond {_LARGEST:g} "
            "can be compared with others"
        )
    return list(weighted.values())


def _place(groups: Sequence[Group], row: int) -> str:
    """A row of the batch in the user's words."""
    sample = row
    for group in groups:
        if sample < len(group.completions):
            return f"row {row} (prompt {group.prompt.id}, sample {sample})"
        sample -= len(group.completions)
    raise IndexError(row)

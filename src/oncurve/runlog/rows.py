"""The rows of a run log as Python values, and how they become columns and come back.

What goes in comes out, bit for bit, with these exceptions: log-probs are kept as float32; -0.0 comes back as 0.0; a NaN
reward, advantage or part means unscored and comes back as None; in ``extras`` NaN becomes None, infinities the words
``Infinity`` and ``-Infinity``, and what JSON cannot hold its ``str()``. A metric or estimate that is NaN is kept as
NULL (sqlite has no NaN) and comes back as NaN.

A row that holds anything else is a ``DamagedRow``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncurve.runlog.columns import Stored, number, number_from_sql, pack, text_to_sql


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One completion with all that is known about it. Sequences have one entry per token of the completion."""

    stage: str
    iteration: int
    prompt_id: int
    sample: int
    """Number of the completion in its group, from 0."""
    split: str
    """``train``, ``eval_greedy`` or ``eval_sampled``."""
    prompt: str
    """As the model read it."""
    completion: str
    token_ids: Sequence[int]
    sampler_logprobs: Sequence[float]
    """Nats per token, when it was drawn."""
    old_logprobs: Sequence[float] | None = None
    """None where the row was not trained on."""
    ref_logprobs: Sequence[float] | None = None
    reward: float | None = None
    """Weighted sum of the parts; None: unscored."""
    advantage: float | None = None
    """None in evaluations. Where tokens have advantages of their own, their mean."""
    parts: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """Reward function -> value before its weight; in evaluations metric functions too."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What reward functions wrote with ``log_extra``."""
    truncated: bool = False
    token_advantages: Sequence[float] | None = None
    """Under process supervision and with a critic; None: every token has ``advantage``."""
    token_values: Sequence[float] | None = None
    """What a critic expected before each token, in units of reward; None without one."""


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One held-out estimate with its 95% interval over ``n`` prompts."""

    stage: str
    iteration: int
    kind: str
    """``greedy`` or ``sampled``."""
    name: str
    """A reward or metric function's name (its mean), or ``pass@k``."""
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A completion's marks alone: what can be read for thousands of completions at once."""

    prompt_id: int
    sample: int
    reward: float | None
    advantage: float | None
    parts: Mapping[str, float | None]


COMPLETION_COLUMNS = (
    "split, stage, iteration, prompt_id, sample, prompt, completion, token_ids, sampler_logprobs, old_logprobs, "
    "ref_logprobs, reward, advantage, parts, extras, truncated, token_advantages, "
    "token_values"
)
EVAL_COLUMNS = "stage, iteration, kind, name, value, low, high, n"
OUTCOME_COLUMNS = "split, stage, iteration, prompt_id, sample, reward, advantage, parts"
METRIC_COLUMNS = "stage, iteration, step, name, value"


def completion_to_sql(row: CompletionRow) -> tuple[Any, ...]:
    """In the order of ``COMPLETION_COLUMNS``."""
    return (
        row.split,
        row.stage,
        row.iteration,
        row.prompt_id,
        row.sample,
        text_to_sql(row.prompt),
        text_to_sql(row.completion),
        pack("i", row.token_ids),
        pack("f", row.sampler_logprobs),
        None if row.old_logprobs is None else pack("f", row.old_logprobs),
        None if row.ref_logprobs is None else pack("f", row.ref_logprobs),
        number(row.reward),
        number(row.advantage),
        _json({name: number(value) for name, value in row.parts.items()}),
        _json(row.extras),
        int(row.truncated),
        None if row.token_advantages is None else pack("f", row.token_advantages),
        None if row.token_values is None else pack("f", row.token_values),
    )


def completion_from_sql(columns: tuple[Any, ...]) -> CompletionRow:
    row = Stored("completions", COMPLETION_COLUMNS, columns)
    ids = row.array("token_ids", "i")
    return CompletionRow(
        stage=row.name("stage"),
        iteration=row.integer("iteration"),
        prompt_id=row.integer("prompt_id"),
        sample=row.integer("sample"),
        split=row.name("split"),
        prompt=row.text("prompt"),
        completion=row.text("completion"),
        token_ids=ids,
        sampler_logprobs=row.array("sampler_logprobs", "f", len(ids)),
        old_logprobs=row.optional_array("old_logprobs", "f", len(ids)),
        ref_logprobs=row.optional_array("ref_logprobs", "f", len(ids)),
        reward=row.number("reward"),
        advantage=row.number("advantage"),
        parts=row.parts("parts"),
        extras=row.table("extras"),
        truncated=bool(row.integer("truncated")),
        token_advantages=row.optional_array("token_advantages", "f", len(ids)),
        token_values=row.optional_array("token_values", "f", len(ids)),
    )


def outcome_from_sql(columns: tuple[Any, ...]) -> Outcome:
    row = Stored("completions", OUTCOME_COLUMNS, columns)
    return Outcome(
        row.integer("prompt_id"),
        row.integer("sample"),
        row.number("reward"),
        row.number("advantage"),
        row.parts("parts"),
    )


def eval_to_sql(row: EvalRow) -> tuple[Any, ...]:
    values = (number(row.value), number(row.low), number(row.high))
    return (row.stage, row.iteration, row.kind, row.name, *values, row.n)


def eval_from_sql(columns: tuple[Any, ...]) -> EvalRow:
    row = Stored("evals", EVAL_COLUMNS, columns)
    value, low, high = (number_from_sql(row.number(column)) for column in ("value", "low", "high"))
    iteration, n = row.integer("iteration"), row.integer("n")
    return EvalRow(row.name("stage"), iteration, row.name("kind"), row.name("name"), value, low, high, n)


def metric_from_sql(columns: tuple[Any, ...]) -> tuple[int, int, float]:
    """``(iteration, step, value)``."""
    row = Stored("metrics", METRIC_COLUMNS, columns)
    return row.integer("iteration"), row.integer("step"), number_from_sql(row.number("value"))


def _json(value: Any) -> str:
    # ASCII escapes keep lone surrogates and make the column plain text for any tool.
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":"), default=str)


def finite(value: Any) -> Any:
    """``value`` without what JSON lacks: NaN becomes None, an infinity its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

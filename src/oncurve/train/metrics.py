"""What one iteration of training measures, under TRL's names where TRL has one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from torch import Tensor

from oncurve.config import Grpo
from oncurve.functional import capped_tokens, dropped_steps
from oncurve.train.rollouts import Rollouts
from oncurve.types import Group, OncurveError


def reward_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Under TRL's names; unscored completions are left out of every mean and counted."""
    rewards = rollouts.rewards
    scored = ~rewards.isnan()
    metrics = {
        "reward": float(rewards.nanmean()) if scored.any() else math.nan,
        "reward_std": _mean([_std(group) for group in rewards]),
        # Before any punishment of length or distance: what the functions tell apart, as dynamic sampling looks at it.
        "frac_reward_zero_std": _mean([float(_std(group) == 0.0) for group in rollouts.compared]),
        "unscored": float((~scored).sum()),
        "advantage/abs_mean": _mean_size(rollouts),
    }
    for name, values in rollouts.scores.parts.items():
        part = [value for row in values for value in row if value is not None]
        metrics[f"rewards/{name}/mean"] = _mean(part)
        metrics[f"rewards/{name}/std"] = statistics.stdev(part) if len(part) > 1 else math.nan
    return metrics


def _mean_size(rollouts: Rollouts) -> float:
    """Mean |advantage|: over completions, or where tokens have their own over all tokens that there are."""
    if rollouts.advantages.ndim == 2:
        return float(rollouts.advantages.abs().mean())
    return float(rollouts.advantages.abs().sum()) / sum(
        len(c.token_ids) for g in rollouts.groups for c in g.completions
    )


def step_metrics(config: Grpo, rollouts: Rollouts, lengths: Tensor) -> dict[str, float]:
    """What process supervision adds; nothing without it."""
    if rollouts.steps is None:
        return {}
    rewards = rollouts.steps.rewards
    counts = (~rewards.isnan()).sum(dim=2)
    return {
        "steps/mean_count": float(counts.double().mean()),
        "steps/none_ratio": float((counts == 0).double().mean()),
        "steps/dropped": float(dropped_steps(rewards, max_steps=config.step_cap).sum()),
        "steps/capped_ratio": float(capped_tokens(rollouts.advantages, cap=config.advantage_cap).sum() / lengths.sum()),
    }


def sampling_metrics(rollouts: Rollouts, kept: Tensor) -> dict[str, float]:
    return {
        "dynamic_sampling/rounds": float(rollouts.rounds),
        "dynamic_sampling/groups": float(len(kept)),
        "dynamic_sampling/kept": float(kept.sum()),
    }


def completion_metrics(groups: list[Group]) -> dict[str, float]:
    lengths = [len(c.token_ids) for group in groups for c in group.completions]
    ended = [len(c.token_ids) for group in groups for c in group.completions if not c.truncated]
    return {
        "num_tokens": float(sum(lengths)),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/mean_terminated_length": _mean(ended),
    }


def with_logged(metrics: dict[str, float], logged: Mapping[str, float]) -> dict[str, float]:
    """``metrics`` and what the reward functions gave to ``log_metric``, which must not take the place of a metric.

    Raises OncurveError naming the metric if it would.
    """
    taken = sorted(metrics.keys() & logged.keys())
    if taken:
        raise OncurveError(f"a reward function calls log_metric({taken[0]!r}, ...), a name of Oncurve's own; rename it")
    return {**metrics, **logged}


def _std(group: Tensor) -> float:
    scored = group[~group.isnan()]
    if len(scored) < 2 or scored.max() == scored.min():
        return 0.0
    return float(scored.std())


def _mean(values: list) -> float:
    return sum(values) / len(values) if values else math.nan

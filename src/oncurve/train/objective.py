"""From the terms of a recipe to functions: the one place where the name of a term becomes a formula.

Every table has the choices of one option of ``[grpo]``; what a choice means stands in ``oncurve.presets`` and in the
docstring of its function. Shapes: P prompts, G completions, K reward functions, B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.functional import (
    batch_normalised,
    centred_over_centred_std,
    centred_over_reward_std,
    cispo,
    clip_flags,
    clipped_surrogate,
    dual_clip,
    gmpo,
    group_centred,
    group_normalised,
    k1,
    k2,
    k3,
    k3_ratio,
    leave_one_out,
    length_weighted,
    masked_sequence_weights,
    masked_token_weights,
    on_policy_rows,
    per_reward_normalised,
    process_advantages,
    product_ratio,
    reinforce,
    sampler_ratio,
    sapo,
    sequence_ratio,
    sequence_token_ratio,
    signal_scaled,
    success_scaled,
    token_ratio,
    truncated_sequence_weights,
    truncated_token_weights,
    two_sided_clip,
)
from oncurve.train.supervision import StepRewards


@dataclass(frozen=True)
class Scored:
    """What an advantage may look at: one iteration's rewards."""

    rewards: Tensor
    """``[P, G]`` float64; NaN = unscored."""
    parts: Tensor
    """``[P, G, K]``: before weighting; NaN = unscored by that function."""
    weights: Tensor
    """``[K]``."""
    lengths: Tensor
    """``[P, G]`` int64: tokens of each completion."""
    steps: StepRewards | None = None
    """What `process` needs."""


@dataclass(frozen=True)
class Tokens:
    """What a policy loss may look at: one microbatch, token-aligned ``[B, T]``."""

    logprobs: Tensor
    """With gradient."""
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    """``[B, 1]``, or ``[B, T]`` under process supervision."""
    mask: Tensor
    """bool; True = trained on."""


ADVANTAGES: dict[str, Callable[[Grpo, Scored], Tensor]] = {
    "group_normalised": lambda c, x: group_normalised(x.rewards, ddof=c.advantage_ddof),
    "group_centred": lambda _, x: group_centred(x.rewards),
    "leave_one_out": lambda _, x: leave_one_out(x.rewards),
    "success_scaled": lambda _, x: success_scaled(x.rewards),
    "length_weighted": lambda _, x: length_weighted(x.rewards, x.lengths),
    "signal_scaled": lambda _, x: signal_scaled(x.rewards),
    "centred_over_reward_std": lambda c, x: centred_over_reward_std(x.rewards, ddof=c.advantage_ddof),
    "centred_over_centred_std": lambda c, x: centred_over_centred_std(x.rewards, ddof=c.advantage_ddof),
    "batch_normalised": lambda c, x: batch_normalised(x.rewards, ddof=c.advantage_ddof),
    "process": lambda c, x: _process(c, x),
    "per_reward_normalised": lambda c, x: per_reward_normalised(x.parts, x.weights, ddof=c.advantage_ddof),
}
"""``[P, G]`` of one iteration; ``process``: ``[P, G, T]``, completion-aligned. ``gae`` needs a critic: see ``ppo``."""

RATIOS: dict[str, Callable[[Tokens], Tensor]] = {
    "token": lambda x: token_ratio(x.logprobs, x.old_logprobs),
    "sequence": lambda x: sequence_ratio(x.logprobs, x.old_logprobs, x.mask),
    "sequence_token": lambda x: sequence_token_ratio(x.logprobs, x.old_logprobs, x.mask),
    "product": lambda x: product_ratio(x.logprobs, x.old_logprobs, x.mask),
}

SURROGATES: dict[str, Callable[[Grpo, Tokens, Tensor], Tensor]] = {
    "clip": lambda c, x, ratio: clipped_surrogate(ratio, x.advantages, clip_low=c.clip_low, clip_high=c.clip_high),
    "dual_clip": lambda c, x, ratio: dual_clip(
        ratio, x.advantages, clip_low=c.clip_low, clip_high=c.clip_high, cap=_cap(c)
    ),
    "two_sided": lambda c, x, ratio: two_sided_clip(
        ratio, x.advantages, clip_low=c.clip_low, clip_high=c.clip_high, cap=_cap(c)
    ),
    "cispo": lambda c, x, ratio: cispo(ratio, x.advantages, x.logprobs, cap=_cap(c)),
    "sapo": lambda _, x, ratio: sapo(ratio, x.advantages),
    "gmpo": lambda c, x, _: gmpo(
        x.logprobs, x.old_logprobs, x.advantages, x.mask, clip_low=c.clip_low, clip_high=c.clip_high
    ),
    "reinforce": lambda _, x, __: reinforce(x.logprobs, x.advantages),
}

CLIPPED: dict[str, Callable[[Grpo, Tokens, Tensor], tuple[Tensor, Tensor]]] = {
    "cispo": lambda c, _, ratio: (torch.zeros_like(ratio, dtype=torch.bool), ratio > _cap(c)),
    "gmpo": lambda c, x, _: clip_flags(
        # gmpo's bounds are on the log-ratio: shifted by one they are bounds of the kind that clip_flags knows
        1 + (x.logprobs - x.old_logprobs).detach(),
        x.advantages,
        clip_low=c.clip_low,
        clip_high=c.clip_high,
    ),
    **{
        name: lambda c, x, ratio: clip_flags(ratio, x.advantages, clip_low=c.clip_low, clip_high=c.clip_high)
        for name in ("clip", "dual_clip", "two_sided")
    },
}
"""Which tokens a surrogate bounded, ``(from below, from above)``. The others bound nothing."""

CORRECTIONS: dict[str, Callable[[Grpo, Tokens], Tensor]] = {
    "truncate_token": lambda c, x: truncated_token_weights(
        sampler_ratio(x.old_logprobs, x.sampler_logprobs), cap=c.correction_high
    ),
    "truncate_sequence": lambda c, x: truncated_sequence_weights(
        x.old_logprobs, x.sampler_logprobs, x.mask, cap=c.correction_high
    ),
    "mask_token": lambda c, x: masked_token_weights(
        sampler_ratio(x.old_logprobs, x.sampler_logprobs), low=c.correction_low, high=c.correction_high
    ),
    "mask_sequence": lambda c, x: masked_sequence_weights(
        x.old_logprobs, x.sampler_logprobs, x.mask, low=c.correction_low, high=c.correction_high
    ),
}

KL_IN_LOSS: dict[str, Callable[[Tokens, Tensor], Tensor]] = {
    "k1": lambda x, reference: k1(x.logprobs, reference),
    "k2": lambda x, reference: k2(x.logprobs, reference),
    "k3": lambda x, reference: k3(x.logprobs, reference),
    "k3_ratio": lambda x, reference: k3_ratio(x.logprobs, reference, x.old_logprobs),
}
"""``k1_in_reward`` is taken off the reward instead, before advantages."""


@dataclass(frozen=True)
class PolicyLoss:
    """The policy's part of the loss, ``[B, T]``, and what is measured on the way."""

    per_token: Tensor
    measures: dict[str, Tensor]
    """Metric name -> ``[B, T]``; their means over the trained tokens are logged."""


def advantages_of(config: Grpo, scored: Scored) -> Tensor:
    """``[P, G]`` float64 advantages, or ``[P, G, T]`` under process supervision, by ``grpo.advantage``."""
    return ADVANTAGES[config.advantage](config, scored)


def policy_loss(config: Grpo, x: Tokens) -> PolicyLoss:
    """Ratio, surrogate and corrections, by ``grpo.ratio``, ``grpo.surrogate`` and ``grpo.sampler_correction``."""
    ratio = RATIOS[config.ratio](x) if config.ratio != "none" else token_ratio(x.logprobs, x.old_logprobs)
    per_token = SURROGATES[config.surrogate](config, x, ratio)
    measures = {"ratio": ratio}
    if config.surrogate in CLIPPED:
        low, high = CLIPPED[config.surrogate](config, x, ratio)
        measures |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
    if config.sampler_correction != "none":
        weights = CORRECTIONS[config.sampler_correction](config, x)
        per_token = torch.where(weights == 0, 0.0, weights * per_token)  # 0 * inf is nan
        measures["sampling/importance_weight"] = weights
    if config.off_policy_bound is not None:
        keep = on_policy_rows(x.advantages, x.logprobs, x.sampler_logprobs, x.mask, bound=config.off_policy_bound)
        per_token = torch.where(keep[:, None], per_token, 0.0)
        measures["sampling/off_policy_dropped"] = (~keep)[:, None].expand_as(x.mask)
    return PolicyLoss(per_token, measures)


def kl_in_loss(config: Grpo, x: Tokens, ref_logprobs: Tensor) -> Tensor | None:
    """``[B, T]`` KL to the reference as ``grpo.kl`` estimates it; None if it is not in the loss."""
    return KL_IN_LOSS[config.kl](x, ref_logprobs) if config.kl in KL_IN_LOSS else None


def _process(config: Grpo, scored: Scored) -> Tensor:
    assert scored.steps is not None
    return process_advantages(
        scored.steps.rewards,
        scored.steps.ends,
        scored.lengths,
        width=int(scored.lengths.max()),
        ddof=config.advantage_ddof,
        max_steps=config.step_cap,
        cap=config.advantage_cap,
    )


def _cap(config: Grpo) -> float:
    assert config.ratio_cap is not None  # the recipe was refused otherwise
    return config.ratio_cap

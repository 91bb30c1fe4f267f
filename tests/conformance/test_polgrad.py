"""A second oracle: `polgrad` (PyPI, Apache-2.0), reference losses by other hands. Skipped where it is not installed.

What both have must agree in value and in gradient, on random batches with junk in the padding; and where a preset and
an entry of polgrad's registry speak of the same paper, so must the trainer's own objective. Where the two read a paper
differently, the difference stands here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.functional import (
    AggregationMode,
    aggregate,
    batch_normalised,
    centred_over_centred_std,
    cispo,
    clip_flags,
    clipped_surrogate,
    clipped_value_loss,
    denominator,
    dual_clip,
    gae,
    group_centred,
    group_normalised,
    k1,
    k2,
    k3,
    leave_one_out,
    masked_whiten,
    reinforce,
    sampler_ratio,
    sequence_ratio,
    sequence_token_ratio,
    token_ratio,
    token_rewards,
    truncated_sequence_weights,
    truncated_token_weights,
)
from oncurve.train.objective import Tokens, kl_in_loss, policy_loss

polgrad = pytest.importorskip("polgrad", reason="the oracle extra is not installed")
testing = pytest.importorskip("polgrad.testing")

CLOSE = 1e-9
BUDGET = 12
AGGREGATIONS: dict[str, AggregationMode] = {
    "TOKEN_MEAN": "token_mean",
    "SEQ_MEAN_TOKEN_MEAN": "sequence_mean",
    "TOKEN_SUM_NORM": "length_budget",
}
RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "TOKEN": lambda now, old, _: token_ratio(now, old),
    "SEQUENCE": sequence_ratio,
    "SEQUENCE_TOKEN": sequence_token_ratio,
}


def batches() -> Iterator[dict[str, Tensor]]:
    yield from testing.random_batches(24, ((4, 8), (2, 12), (1, 1)), seed=0)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def mean(per_token: Tensor, mask: Tensor, mode: AggregationMode) -> Tensor:
    return aggregate(per_token, mask, mode, denominator(mask, mode, budget=BUDGET))


def settings(**changes: Any) -> Any:
    chosen = {
        "ratio": polgrad.RatioKind.TOKEN,
        "surrogate": polgrad.SurrogateKind.PG_CLIP,
        "clip": polgrad.ClipConfig(eps_low=0.2, eps_high=0.28),
        "aggregation": polgrad.Aggregation.TOKEN_MEAN,
        "norm_len": BUDGET,
    }
    return polgrad.PolicyLossConfig(**(chosen | changes))


def check_loss(config: Any, ours: Callable[..., Tensor]) -> None:
    """``ours(logprobs, batch)`` per token, against polgrad's scalar: value and gradient."""
    mode = AGGREGATIONS[config.aggregation.name]
    for batch in batches():
        mask = batch["response_mask"]
        logprobs = batch["logprobs"].clone().requires_grad_()
        theirs = polgrad.policy_loss(config, **(batch | {"logprobs": logprobs}))
        (their_slope,) = torch.autograd.grad(theirs.loss, logprobs)
        loss = mean(ours(logprobs, batch), mask, mode)
        close(loss, theirs.loss)
        close(torch.autograd.grad(loss, logprobs)[0], their_slope)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", RATIOS)
def test_clip(kind: str, aggregation: str) -> None:
    config = settings(ratio=polgrad.RatioKind[kind], aggregation=polgrad.Aggregation[aggregation])

    def ours(logprobs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        ratio = RATIOS[kind](logprobs, batch["old_logprobs"], batch["response_mask"])
        return clipped_surrogate(ratio, batch["advantages"][:, None], clip_low=0.2, clip_high=0.28)

    check_loss(config, ours)


def test_clip_flags() -> None:
    for batch in batches():
        theirs = polgrad.policy_loss(settings(), **batch)
        ratio = token_ratio(batch["logprobs"], batch["old_logprobs"])
        low, high = clip_flags(ratio, batch["advantages"][:, None], clip_low=0.2, clip_high=0.28)
        assert torch.equal(low & batch["response_mask"], theirs.clipped_low)
        assert torch.equal(high & batch["response_mask"], theirs.clipped_high)


def test_dual_clip() -> None:
    config = settings(clip=polgrad.ClipConfig(eps_low=0.2, eps_high=0.2, ratio_cap=3.0))

    def ours(logprobs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        ratio = token_ratio(logprobs, batch["old_logprobs"])
        return dual_clip(ratio, batch["advantages"][:, None], clip_low=0.2, clip_high=0.2, cap=3.0)

    check_loss(config, ours)


def test_cispo() -> None:
    """Their eps_high is what the cap is above 1."""
    config = settings(surrogate=polgrad.SurrogateKind.CISPO, clip=polgrad.ClipConfig(eps_low=None, eps_high=4.0))

    def ours(logprobs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        ratio = token_ratio(logprobs, batch["old_logprobs"])
        return cispo(ratio, batch["advantages"][:, None], logprobs, cap=5.0)

    check_loss(config, ours)


def test_reinforce() -> None:
    config = settings(surrogate=polgrad.SurrogateKind.REINFORCE, clip=None)
    check_loss(config, lambda logprobs, batch: reinforce(logprobs, batch["advantages"][:, None]))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_sampling(level: str) -> None:
    config = settings(is_correction=polgrad.ISCorrectionConfig(cap=2.0, level=level))

    def ours(logprobs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        old, sampler = batch["old_logprobs"], batch["rollout_logprobs"]
        ratio = token_ratio(logprobs, old)
        loss = clipped_surrogate(ratio, batch["advantages"][:, None], clip_low=0.2, clip_high=0.28)
        if level == "token":
            return loss * truncated_token_weights(sampler_ratio(old, sampler), cap=2.0)
        return loss * truncated_sequence_weights(old, sampler, batch["response_mask"], cap=2.0)

    check_loss(config, ours)


@pytest.mark.parametrize(("kind", "estimator"), [("K1", k1), ("K2", k2), ("K3", k3)])
def test_kl_in_the_loss(kind: str, estimator: Callable[[Tensor, Tensor], Tensor]) -> None:
    for batch in batches():
        mask = batch["response_mask"]
        logprobs = batch["logprobs"].clone().requires_grad_()
        theirs = polgrad.kl_loss(
            logprobs,
            batch["ref_logprobs"],
            polgrad.KLEstimator[kind],
            polgrad.Aggregation.SEQ_MEAN_TOKEN_MEAN,
            response_mask=mask,
        )
        ours = mean(estimator(logprobs, batch["ref_logprobs"]), mask, "sequence_mean")
        close(ours, theirs)
        close(torch.autograd.grad(ours, logprobs)[0], torch.autograd.grad(theirs, logprobs)[0])


def test_kl_in_the_reward() -> None:
    for batch in batches():
        mask = batch["response_mask"]
        last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
        scores = batch["advantages"]
        theirs = polgrad.kl_in_reward(
            torch.where(last, scores[:, None], 0.0),
            batch["old_logprobs"],
            batch["ref_logprobs"],
            polgrad.KLEstimator.K1,
            0.05,
            response_mask=mask,
        )
        close(token_rewards(scores, k1(batch["old_logprobs"], batch["ref_logprobs"]), mask, kl_coef=0.05), theirs)


# -- advantages and values --------------------------------------------------------------------------------------------

GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            lambda r: polgrad.grpo_advantages(r, GROUPS, polgrad.GroupNormConfig(eps=1e-4)),
            lambda r: group_normalised(r, ddof=1, eps=1e-4),
        ),
        (
            lambda r: polgrad.grpo_advantages(r, GROUPS, polgrad.GroupNormConfig(eps=1e-6, unbiased=False)),
            lambda r: group_normalised(r, ddof=0, eps=1e-6),
        ),
        (lambda r: polgrad.grpo_advantages(r, GROUPS, polgrad.GroupNormConfig(scale="none")), group_centred),
        (lambda r: polgrad.rloo_advantages(r, GROUPS), leave_one_out),
        (
            lambda r: polgrad.reinforce_pp_advantages(r, config=polgrad.ReinforcePPConfig(batch_norm=True)),
            lambda r: batch_normalised(r, ddof=1, eps=1e-8),
        ),
        (
            lambda r: polgrad.reinforce_pp_advantages(r, GROUPS, config=polgrad.ReinforcePPConfig(batch_norm=True)),
            lambda r: centred_over_centred_std(r, ddof=1, eps=1e-8),
        ),
    ],
    ids=["group", "group-ddof0", "centred", "leave-one-out", "batch", "centred-over-batch"],
)
def test_advantages(theirs: Callable[[Tensor], Tensor], ours: Callable[[Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        rewards = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        close(ours(rewards).flatten(), theirs(rewards.flatten()))


def test_gae_and_value_loss() -> None:
    for batch in batches():
        mask, rewards = batch["response_mask"], batch["old_logprobs"]
        values, old_values = batch["logprobs"].clone().requires_grad_(), batch["ref_logprobs"]
        config = polgrad.GAEConfig(gamma=0.99, lam=0.95)
        theirs = polgrad.gae(rewards, values.detach(), config=config, response_mask=mask)
        ours = gae(rewards, values, mask, gamma=0.99, lam=0.95)
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])
        their_loss = polgrad.value_loss(
            values, old_values, ours[1], mask, clip_eps=0.2, aggregation=polgrad.Aggregation.TOKEN_MEAN
        ).loss
        loss = mean(clipped_value_loss(values, old_values, ours[1], clip=0.2), mask, "token_mean")
        close(loss, their_loss)
        close(torch.autograd.grad(loss, values)[0], torch.autograd.grad(their_loss, values)[0])


@pytest.mark.parametrize("centre", [True, False])
def test_whitening(centre: bool) -> None:
    for batch in batches():
        if batch["response_mask"].sum() > 1:
            theirs = polgrad.whiten(batch["logprobs"], batch["response_mask"], shift_mean=centre)
            close(masked_whiten(batch["logprobs"], batch["response_mask"], centre=centre), theirs)


# -- whole objectives -------------------------------------------------------------------------------------------------


def of_preset(config: Grpo) -> Callable[..., Tensor]:
    """The trainer's own objective in polgrad's form."""

    def loss(
        *, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor, **given: Tensor
    ) -> Tensor:
        tokens = Tokens(
            logprobs, old_logprobs, given.get("rollout_logprobs", old_logprobs), advantages[:, None], response_mask
        )
        per_token = policy_loss(config, tokens).per_token
        kl = kl_in_loss(config, tokens, given["ref_logprobs"]) if "ref_logprobs" in given else None
        if kl is not None:
            per_token = per_token + config.kl_coef * kl
        return mean(per_token, response_mask, config.aggregation)

    return loss


@pytest.mark.parametrize(
    ("preset", "theirs", "changes"),
    [
        ("deepseekmath", "grpo", {}),
        ("dr-grpo", "dr_grpo", {}),
        ("dapo", "dapo", {}),
        ("gspo", "gspo", {}),
        # MiniMax does not give its cap: ours is ScaleRL's, theirs verl's
        ("cispo", "cispo", {"ratio_cap": 1.2}),
    ],
)
def test_presets(preset: str, theirs: str, changes: dict[str, Any]) -> None:
    config = Grpo(preset=preset, **changes)  # type: ignore[arg-type]
    reference = dataclasses.replace(polgrad.get_algorithm(theirs).loss, norm_len=BUDGET)
    testing.assert_conforms(of_preset(config), reference, loss_rtol=CLOSE, grad_rtol=CLOSE)


def test_the_kl_of_the_default_preset() -> None:
    """What `assert_conforms` leaves out."""
    config, reference = Grpo(), polgrad.get_algorithm("grpo").loss
    assert reference.kl.coef == config.kl_coef
    for batch in batches():
        close(of_preset(config)(**batch), polgrad.policy_loss(reference, **batch).loss)


def test_rloo_differs_by_the_length_of_a_sum() -> None:
    """Theirs sums over a completion's tokens and takes the mean over completions: a length budget of one token."""
    reference = polgrad.get_algorithm("rloo").loss
    for batch in batches():
        mask = batch["response_mask"]
        per_token = reinforce(batch["logprobs"], batch["advantages"][:, None])
        ours = aggregate(per_token, mask, "length_budget", denominator(mask, "length_budget", budget=1))
        close(ours, polgrad.policy_loss(reference, **batch).loss)

"""Cases N: log-probs, masks and precision. Cases T: gradients of a whole tiny policy."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.advantage_cases import DEBATE
from conformance.cases import Anything, Case, Within, f64, gradient, runner
from oncurve.functional import (
    AggregationMode,
    aggregate,
    clipped_surrogate,
    completion_lengths,
    completion_mask,
    denominator,
    group_centred,
    group_normalised,
    grpo_coefficients,
    k3,
    leave_one_out,
    product_ratio,
    reinforce,
    selected_logprobs,
    sequence_ratio,
    token_ratio,
    truncated,
    weighted_nll,
)


def logprobs_of(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Of every token, ``[V]``."""
    return selected_logprobs(logits.expand(len(logits), -1), torch.arange(len(logits)), temperature)[0]


@runner("N", "logits", inputs=("logits",))
def temperature(case: Case) -> Mapping[str, Any]:
    logits = f64(case["logits"])
    values: dict[str, Any] = {}
    for field in case.numbers:
        found = re.fullmatch(r"T(\d)(\d*)", field)
        if found:
            values[field] = logprobs_of(logits, float(f"{found[1]}.{found[2] or 0}"))
    hot, cold = logprobs_of(logits, 1.0), logprobs_of(logits, 0.6)
    return values | {"ratio_if_T_forgotten_token2": token_ratio(hot[None], cold[None])[0, 2]}


@runner("N", "bf16_logits")
def half_precision(case: Case) -> Mapping[str, Any]:
    """Logits in bfloat16 are taken as they are and worked on in float32; the loss of digits is theirs."""
    exact = f64(case.listed("logits {}"))
    half = exact.bfloat16()
    full, rounded = logprobs_of(exact), logprobs_of(half)
    assert rounded.dtype == torch.float32
    return {
        "bf16_logits": half.double(),
        "logp64": full,
        "logp_bf16_logits": Within(rounded, 1e-6),
        "ratio_error": Within(token_ratio(rounded.double()[None], full[None])[0], 1e-6),
        "logp_rounded_to_bf16": full.bfloat16().double(),
        "spacing_at_16_to_32": torch.finfo(torch.bfloat16).eps * 16,
        "ulp_logp_near_minus_0p6": torch.finfo(torch.bfloat16).eps / 2,
    }


@runner("N", "n", "sd_log_product", inputs=("n",))
def accumulated_noise(case: Case) -> Mapping[str, Any]:
    """A linear function of independent noise has the noise's sd times the length of its gradient."""
    sd = case.said("sd {}")

    def spread(make: Any, n: int) -> float:
        logprobs = torch.zeros(1, n, dtype=torch.float64, requires_grad=True)
        log_ratio = make(logprobs, logprobs.detach(), torch.ones(1, n, dtype=torch.bool))[0, 0].log()
        return sd * float(gradient(log_ratio, logprobs).norm())

    return {
        "sd_log_product": [spread(product_ratio, n) for n in case["n"]],
        "sd_log_geo": [spread(sequence_ratio, n) for n in case["n"]],
    }


@runner("N", "ids", "eos", inputs=("ids", "eos", "truncated_ids"))
def first_eos(case: Case) -> Mapping[str, Any]:
    def mask(ids: list[int]) -> Tensor:
        lengths = completion_lengths(torch.tensor([ids]), case["eos"])
        return completion_mask(torch.tensor([0]), lengths, len(ids))[0]

    values: dict[str, Any] = {"mask": mask(case["ids"])}
    if "truncated_ids" in case:
        values["truncated_mask"] = mask(case["truncated_ids"])
        values["truncated_flag"] = truncated(torch.tensor([case["truncated_ids"]]), case["eos"])[0]
    return values


@runner("N", "entropy")
def entropy(case: Case) -> Mapping[str, Any]:
    def of(logits: Tensor) -> Tensor:
        return selected_logprobs(logits[None], torch.tensor([0]))[1][0]

    values: dict[str, Any] = {"entropy": of(f64(case.listed()))}
    for field in case.numbers:
        uniform = re.fullmatch(r"uniform_(\d+)", field)
        if uniform:
            values[field] = of(torch.zeros(int(uniform[1]), dtype=torch.float64))
    return values | {"via_logsumexp": values["entropy"]}


@runner("N", "A", "logp", "cov", inputs=("A", "logp"))
def covariance(case: Case) -> Mapping[str, Any]:
    """Clip-Cov and KL-Cov (arXiv 2505.22617) have no function of their own: both factors are centred like a group."""
    cov = (group_centred(f64([case["A"]])) * group_centred(f64([case["logp"]])))[0]
    return {"cov": cov, "mean_cov": cov.mean(), "top1": cov.argmax()}


# -- T -----------------------------------------------------------------------------------------------------------------

SEQUENCES = [[0, 1], [2, 0], [1], [2, 2]]
POLICY = [[0.2, -0.1, 0.4], [0.0, 0.3, -0.2]]
REFERENCE = [[0.3, -0.3, 0.0], [-0.1, 0.5, -0.2]]
"""Logits of the policy ``theta[t]`` at every position, and of the reference that goes with it."""


def scored(theta: Tensor, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Log-probs ``[B, T]`` of ``sequences`` and their mask; nan in the padding."""
    width = max(map(len, sequences))
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in sequences])
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in sequences])
    logprobs = theta[:width].log_softmax(1)[torch.arange(width), tokens]
    return torch.where(mask, logprobs, math.nan), mask


def advantages_of(case: Case) -> Tensor:
    rewards = case.get("rewards", DEBATE)
    return group_normalised(f64([rewards]), ddof=0, eps=0.0).view(-1, 1)


AGGREGATIONS: dict[str, tuple[AggregationMode, int | None]] = {
    "seq": ("sequence_mean", None),
    "token": ("token_mean", None),
    "drgrpo": ("length_budget", 4),
    "drgrpo_budget4": ("length_budget", 4),
}


@runner("T", "theta", "sequences", "rewards", inputs=("theta", "sequences", "rewards"))
def first_step(case: Case) -> Mapping[str, Any]:
    theta = f64(case["theta"]).requires_grad_()
    logprobs, mask = scored(theta, case["sequences"])
    advantages = advantages_of(case)
    ratio = token_ratio(logprobs, logprobs)
    clipped = clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.2)
    losses, gradients = {}, {}
    for name, (mode, budget) in AGGREGATIONS.items():
        divide_by = denominator(mask, mode, budget=budget)
        loss = aggregate(clipped, mask, mode, divide_by)
        plain = aggregate(reinforce(logprobs, advantages), mask, mode, divide_by)
        losses[name] = loss.detach()
        gradients[name] = torch.autograd.grad(loss, theta, retain_graph=True)[0]
        same = torch.autograd.grad(plain, theta, retain_graph=True)[0]
        torch.testing.assert_close(gradients[name], same, rtol=0, atol=1e-12)
    return {"adv": advantages[:, 0], "loss_value_is": losses, "grad": gradients}


@runner("T", "GC")
def gradient_coefficient(case: Case) -> Mapping[str, Any]:
    beta = case.said("beta={}")
    theta = f64(case.get("theta", POLICY)).requires_grad_()
    sequences = case.get("sequences", SEQUENCES)
    logprobs, mask = scored(theta, sequences)
    reference, _ = scored(f64(case.get("ref", REFERENCE)), sequences)
    advantages = advantages_of(case)
    coefficients = grpo_coefficients(advantages, logprobs, reference, kl_coef=beta)
    clipped = clipped_surrogate(token_ratio(logprobs, logprobs), advantages, clip_low=0.2, clip_high=0.2)
    per_token = clipped + beta * k3(logprobs, reference)
    rows = denominator(mask, "sequence_mean")
    whole = torch.autograd.grad(aggregate(per_token, mask, "sequence_mean", rows), theta, retain_graph=True)[0]
    weighted = gradient(aggregate(weighted_nll(logprobs, coefficients), mask, "sequence_mean", rows), theta)
    torch.testing.assert_close(weighted, whole, rtol=0, atol=1e-12)
    return {"grad": whole, "GC": [values[kept] for values, kept in zip(coefficients, mask, strict=True)]}


@runner("T", "loss")
def any_order(case: Case) -> Mapping[str, Any]:
    """The case keeps its inputs to itself; its statement is checked on the policy of the others, off-policy."""
    theta, old_theta = f64(POLICY), f64(REFERENCE)
    rewards = f64([DEBATE])

    def loss(order: Sequence[int]) -> Tensor:
        sequences = [SEQUENCES[i] for i in order]
        logprobs, mask = scored(theta, sequences)
        old, _ = scored(old_theta, sequences)
        advantages = group_normalised(rewards[:, list(order)]).view(-1, 1)
        per_token = clipped_surrogate(token_ratio(logprobs, old), advantages, clip_low=0.2, clip_high=0.2)
        return aggregate(per_token, mask, "token_mean", denominator(mask, "token_mean"))

    first, *others = [loss(order) for order in itertools.permutations(range(4))]
    assert abs(float(first)) > 0.01
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-12)
    return {"loss": Anything("the old policy it was computed with is not given")}


@runner("T", "true", "table", inputs=())
def bandit(case: Case) -> Mapping[str, Any]:
    """Three arms with probabilities 0.5, 0.3, 0.2 and rewards 1, 0.2, 0: every group there can be, by its chance."""
    pi, arm_rewards = f64([0.5, 0.3, 0.2]), f64([1.0, 0.2, 0.0])
    estimators = {
        "drgrpo": group_centred,
        "rloo": leave_one_out,
        "grpo": lambda rewards: group_normalised(rewards, ddof=0, eps=0.0),
    }

    def expected(size: int, advantage: Any) -> Tensor:
        arms = torch.tensor(list(itertools.product(range(3), repeat=size)))
        chances = pi[arms].prod(dim=1)
        weights = advantage(arm_rewards[arms]) / size
        logits = pi.log().requires_grad_()
        objective = -weighted_nll(logits.log_softmax(0)[arms], weights).sum(dim=1)
        return gradient((chances * objective).sum(), logits)

    logits = pi.log().requires_grad_()
    true = gradient((logits.softmax(0) * arm_rewards).sum(), logits)
    table = {size: {n: expected(int(size), f) for n, f in estimators.items()} for size in case["table"]}
    for size in table:
        torch.testing.assert_close(table[size]["rloo"], true, rtol=0, atol=1e-12)
    cosine = {size: torch.cosine_similarity(row["grpo"], true, dim=0) for size, row in table.items()}
    return {"true": true, "table": table, "cos_grpo_true": cosine}

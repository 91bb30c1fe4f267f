"""Cases K: estimators of the KL, and the gradient that each follows, by enumeration of a categorical distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Anything, Case, Within, f64, gradient, runner
from oncurve.functional import k1, k2, k3, k3_ratio, weighted_nll

FINITE_DIFFERENCES = 1e-8
THREE_WAY = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
"""Policy and reference of the cases that do not say theirs."""


@runner("K", "logp", "ref", inputs=("logp", "ref"))
def values(case: Case) -> Mapping[str, Any]:
    policy, reference = f64([case["logp"]]), f64([case["ref"]])
    return {
        "k1": k1(policy, reference)[0],
        "k2": k2(policy, reference)[0],
        "k3": k3(policy, reference)[0],
        "wrong_direction_k3": k3(reference, policy)[0],
        "wrong_sign_k1": k1(reference, policy)[0],
    }


@runner("K", "plus1", "minus1")
def one_nat(_: Case) -> Mapping[str, Any]:
    zero = f64([[0.0]])

    def at(log_ratio: float) -> dict[str, Tensor]:
        policy = f64([[log_ratio]])
        return {"k3": k3(policy, zero)[0, 0], "reversed": k3(zero, policy)[0, 0]}

    return {"plus1": at(1.0), "minus1": at(-1.0)}


@runner("K", "naive", "expm1", "exact")
def near_zero(case: Case) -> Mapping[str, Any]:
    d = case.said("log-ratio {}")
    value = float(k3(torch.zeros(1, 1), torch.full((1, 1), d)))
    assert abs(value - case["exact"]) <= 1e-6 * case["exact"], value
    return {
        "exact": value,
        "naive": Anything("exp(d) - 1 - d in float32, which k3 is not"),
        "expm1": Anything("expm1(d) - d in float32 has lost a tenth of the value; k3 has a series there"),
    }


def distributions(case: Case) -> tuple[Tensor, Tensor]:
    policy, reference = (case["pi"], case["ref"]) if "pi" in case else THREE_WAY
    return f64(policy), f64(reference)


@runner("K", "pi", "ref", "E_k1", inputs=("pi", "ref"))
def expectations(case: Case) -> Mapping[str, Any]:
    pi, ref = distributions(case)
    policy, reference = pi.log(), ref.log()

    def moments(name: str, estimate: Tensor) -> dict[str, Tensor]:
        mean = (pi * estimate).sum()
        return {f"E_{name}": mean, f"var_{name}": (pi * (estimate - mean).square()).sum()}

    reversed_k3 = (pi * k3(reference, policy)).sum()
    return {
        **moments("k1", k1(policy, reference)),
        **moments("k2", k2(policy, reference)),
        **moments("k3", k3(policy, reference)),
        "KL_pi_ref": (pi * k3(policy, reference)).sum(),
        "KL_ref_pi": (ref * k3(reference, policy)).sum(),
        "E_reversed_k3": reversed_k3,
        "chi2_minus_KL": ((pi - ref).square() / ref).sum() - (pi * k1(policy, reference)).sum(),
    }


def expected_gradient(case: Case, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """In the logits, of ``loss(logprobs, ref_logprobs)`` over tokens sampled from the policy: the draw is not
    differentiated, the loss is."""
    pi, ref = distributions(case)
    logits = pi.log().requires_grad_()
    return gradient((pi * loss(logits.log_softmax(0)[None], ref.log()[None])[0]).sum(), logits)


def exact_kl_gradient(case: Case, *, forward: bool) -> Tensor:
    pi, ref = distributions(case)
    logits = pi.log().requires_grad_()
    policy, reference = logits.log_softmax(0), ref.log()
    kl = (ref * (reference - policy)).sum() if forward else (policy.exp() * (policy - reference)).sum()
    return gradient(kl, logits)


@runner("K", "grad_k1")
def as_a_loss(case: Case) -> Mapping[str, Any]:
    return {
        "grad_k1": expected_gradient(case, k1),
        "grad_k2": expected_gradient(case, k2),
        "grad_k3": expected_gradient(case, k3),
        "grad_ratio_k3": expected_gradient(case, lambda now, ref: k3_ratio(now, ref, now.detach())),
        "true_grad_reverse_KL": Within(exact_kl_gradient(case, forward=False), FINITE_DIFFERENCES),
        "true_grad_forward_KL": Within(exact_kl_gradient(case, forward=True), FINITE_DIFFERENCES),
    }


@runner("K", "k1_in_reward")
def in_the_reward(case: Case) -> Mapping[str, Any]:
    """A penalty in the reward is a coefficient of the log-likelihood; minimising it turns the sign."""

    def penalised(estimate: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return expected_gradient(case, lambda now, ref: weighted_nll(now, -estimate(now.detach(), ref)))

    return {
        "k1_in_reward": penalised(k1),
        "k3_in_reward": penalised(k3),
        "true": Within(exact_kl_gradient(case, forward=False), FINITE_DIFFERENCES),
    }

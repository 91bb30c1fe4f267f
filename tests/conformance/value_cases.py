"""Cases P: the value side of PPO. Cases O: shaping. Cases R: reward models, the unified view, counts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Anything, Case, decimal, f64, gradient, runner
from oncurve.config import Grpo
from oncurve.functional import (
    bradley_terry,
    clipped_value_loss,
    dpo_coefficient,
    gae,
    masked_whiten,
    nll,
    repetition_penalty,
    returns_to_go,
    soft_overlong,
    token_rewards,
    weighted_nll,
)
from oncurve.train.update import minibatches


def row(values: list[float]) -> tuple[Tensor, Tensor]:
    """``[1, T]`` and a mask that is True throughout."""
    return f64([values]), torch.ones(1, len(values), dtype=torch.bool)


@runner("P", "identities")
@runner("P", "g1_l1")
def advantages_of_a_critic(case: Case) -> Mapping[str, Any]:
    rewards, mask = row(case.listed("r={}"))
    expected, _ = row(case.listed("V={}"))
    values: dict[str, Any] = {}
    for field in case.numbers:
        found = re.fullmatch(r"(returns_)?g(\d+)_l(\d+)", field)
        if found:
            advantages, returns = gae(rewards, expected, mask, gamma=decimal(found[2]), lam=decimal(found[3]))
            values[field] = (returns if found[1] else advantages)[0]
    return values


@runner("P", "clipped_v")
def value_clip(case: Case) -> Mapping[str, Any]:
    clip = case.said("clip {}")
    value, old, target = (f64([[case.said(rf"(?<![\w_]){name}={{}}")]]) for name in ("V", "V_old", "R"))
    loss = clipped_value_loss(value, old, target, clip=clip)
    # The loss is the square of the clipped value's error here: which gives that value back.
    return {
        "loss": loss[0, 0],
        "clipped_v": (target + (value - target).sign() * -(2 * loss).sqrt())[0, 0],
        "unclipped": clipped_value_loss(value, old, target, clip=math.inf)[0, 0],
    }


@runner("P", "k1", "token_rewards", inputs=("k1",))
def kl_in_reward(case: Case) -> Mapping[str, Any]:
    kl, mask = row(case["k1"])
    rewards = token_rewards(f64([case.said("score {}")]), kl, mask, kl_coef=case.said("beta={}"))
    return {"token_rewards": rewards[0], "returns": returns_to_go(rewards, mask, gamma=case.said("gamma={}"))[0]}


@runner("P", "ddof0", "ddof1")
def whitening(case: Case) -> Mapping[str, Any]:
    values, mask = row(case.listed())
    return {
        "ddof1": masked_whiten(values, mask, ddof=1, eps=1e-8)[0],
        # "clamp" is a floor under the variance, which an eps of 0 leaves alone
        "ddof0": masked_whiten(values, mask, ddof=0, eps=0.0)[0],
    }


@runner("O", "v")
@runner("O", "small")
def overlong(case: Case) -> Mapping[str, Any]:
    def at(lengths: Mapping[str, float], max_length: int, buffer: int) -> dict[str, Tensor]:
        values = soft_overlong(torch.tensor([int(n) for n in lengths]), max_length=max_length, buffer=buffer)
        return dict(zip(lengths, values, strict=True))

    return {
        "v": at(case["v"], int(case.said("L_max={}")), int(case.said("cache={}"))),
        "small": at(case.get("small", {}), 100, 20),
    }


@runner("O", "value")
def repetition(case: Case) -> Mapping[str, Any]:
    repeated = re.search(r"\[(\d+)\]\*(\d+), n=(\d+), (-?\d+)", case["title"])
    assert repeated, f"case {case}: expected '[token]*times, n=.., penalty' in the title"
    token, times, n, penalty = map(int, repeated.groups())
    return {"value": repetition_penalty([[token] * times], n=n, max_penalty=float(penalty))[0]}


@runner("O", "words", inputs=("words",))
def language(_: Case) -> Mapping[str, Any]:
    """Names no value: the share depends on how words are cut and whether numbers count."""
    return {}


@runner("R", "grad_wrt_rc")
def bradley_terry_pairs(case: Case) -> Mapping[str, Any]:
    pairs = [[float(x) for x in pair] for pair in re.findall(r"\((-?[\d.]+),(-?[\d.]+)\)", case["title"])]
    chosen, rejected = f64(pairs)[:, 0].clone().requires_grad_(), f64(pairs)[:, 1]
    loss = bradley_terry(chosen, rejected)
    values: dict[str, Any] = {"v": loss.detach(), "grad_wrt_rc": gradient(loss.sum(), chosen)}
    first = chosen.detach()[:1], rejected[:1]
    for field in case.numbers:
        margin = re.fullmatch(r"margin(\d+)", field)
        if margin:
            values[field] = bradley_terry(*first, margin=decimal(margin[1]))[0]
    eta = case.said(r"centering {}")
    values["center"] = (bradley_terry(*first, centring=eta) - bradley_terry(*first))[0]
    return values


@runner("R", "SFT", "RFT", "online_RFT")
def unified_view(case: Case) -> Mapping[str, Any]:
    logprobs = f64([[-0.5], [-0.7]]).requires_grad_()
    correct = f64([[1.0], [0.0]])
    values: dict[str, Any] = {
        "SFT": -gradient(nll(logprobs).sum(), logprobs)[0, 0],
        "RFT": -gradient(weighted_nll(logprobs, correct).sum(), logprobs)[:, 0],
    }
    values["online_RFT"] = values["RFT"]
    for field in case.numbers:
        beta = re.fullmatch(r"DPO_beta(\d+)", field)
        if beta:  # log-ratios of 0.4 and -0.2
            values[field] = dpo_coefficient(f64([0.4]), f64([-0.2]), beta=decimal(beta[1]))[0]
    return values


@runner("R", "responses", "optimizer_steps")
def one_iteration(case: Case) -> Mapping[str, Any]:
    prompts, size = int(case.said("{} prompts")), int(case.said("x {}"))
    config = Grpo(prompts_per_iteration=prompts, group_size=size, epochs=int(case.said("{} epochs")))
    steps = list(minibatches(config, prompts * size, seed=0, iteration=1))
    assert all(len(step) == prompts * size for step in steps)
    rows = sorted({number for step in steps for number in step})
    return {"responses": len(rows), "advantages": len(rows), "optimizer_steps": len(steps)}


@runner("R", "new", "historical", inputs=("new",))
def replay(_: Case) -> Mapping[str, Any]:
    return dict.fromkeys(
        ("historical", "total", "alt_reading_10pct_of_new"),
        Anything("how much of an earlier iteration a reward model sees again: there is no such loop here yet"),
    )

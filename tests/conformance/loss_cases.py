"""Cases S: ratios, surrogates and corrections. Cases G: from tokens to one number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Anything, Case, Within, decimal, f64, gradient, runner
from oncurve.functional import (
    AggregationMode,
    aggregate,
    cispo,
    clip_flags,
    clipped_surrogate,
    denominator,
    dual_clip,
    on_policy_rows,
    product_ratio,
    sapo,
    sequence_ratio,
    sequence_token_ratio,
    token_ratio,
    weighted_nll,
)


def clipped(ratio: float, advantage: float, *, low: float, high: float) -> Tensor:
    return clipped_surrogate(f64([[ratio]]), f64([[advantage]]), clip_low=low, clip_high=high)[0, 0]


def everywhere(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


@runner("S", "table")
def ppo_clip(case: Case) -> Mapping[str, Any]:
    eps = case.said("eps={}")

    def row(given: Mapping[str, float]) -> dict[str, Any]:
        logprobs = f64([[math.log(given["ratio"])]]).requires_grad_()
        ratio = token_ratio(logprobs, torch.zeros_like(logprobs))
        loss = clipped_surrogate(ratio, f64([[given["A"]]]), clip_low=eps, clip_high=eps)
        slope = gradient(loss.sum(), logprobs)
        flags = clip_flags(ratio, f64([[given["A"]]]), clip_low=eps, clip_high=eps)
        assert bool(flags[0] | flags[1]) == (slope == 0).item()
        return {**given, "loss": loss[0, 0].detach(), "dloss_dlogp": slope[0, 0]}

    return {"table": [row(given) for given in case["table"]]}


@runner("S", "r125", "r130")
def clip_higher(case: Case) -> Mapping[str, Any]:
    low, high, advantage = case.said("eps_low={}"), case.said("eps_high={}"), case.said(r"A=\+?{}")
    values = {f"r{d}": clipped(decimal(d), advantage, low=low, high=high) for d in digits(case, "r")}
    return values | {"same_with_020": clipped(1.3, advantage, low=0.2, high=0.2)}


def digits(case: Case, letter: str) -> list[str]:
    """``r125`` -> ``125``, for every field of that form."""
    found = (re.fullmatch(rf"{letter}(\d+)", name) for name in case.numbers)
    return [match[1] for match in found if match]


@runner("S", "r4", "no_dual_r4")
def dual(case: Case) -> Mapping[str, Any]:
    cap, advantage = case.said("c={}"), f64([[case.said("A={}")]])
    eps = case.said("eps={}", default=0.2)
    values: dict[str, Any] = {}
    for each in digits(case, "r"):
        logprobs = f64([[math.log(float(each))]]).requires_grad_()
        ratio = token_ratio(logprobs, torch.zeros_like(logprobs))
        loss = dual_clip(ratio, advantage, clip_low=eps, clip_high=eps, cap=cap)
        assert (gradient(loss.sum(), logprobs) == 0).item() == (float(each) > cap)
        values |= {f"r{each}": loss[0, 0].detach()}
        values |= {f"no_dual_r{each}": clipped(float(each), float(advantage), low=eps, high=eps)}
    return values


@runner("S", "v", "r_small")
def wide_clip(case: Case) -> Mapping[str, Any]:
    """R1's bounds; ``r_small`` is the loss of a bad token at a ratio of 0.01, which no lower bound holds up."""
    eps, ratio, advantage = case.said("clip_eps={}"), case.said("r={}"), case.said(r"A=\+?{}")
    return {
        "v": clipped(ratio, advantage, low=eps, high=eps),
        "r_small": clipped(0.01, -advantage, low=eps, high=eps),
    }


@runner("S", "lengths", "full_product", "gspo", inputs=("lengths",))
def length_effect(case: Case) -> Mapping[str, Any]:
    per_token, band = case.said("token ratio {}"), 0.2
    drift = [torch.full((1, length), math.log(per_token), dtype=torch.float64) for length in case["lengths"]]
    product = [product_ratio(d, torch.zeros_like(d), everywhere(d))[0, 0] for d in drift]
    advantages = f64([[1.0]])
    flags = [clip_flags(r.view(1, 1), advantages, clip_low=band, clip_high=band)[1][0, 0] for r in product]
    return {
        "full_product": product,
        "gspo": [sequence_ratio(d, torch.zeros_like(d), everywhere(d))[0, 0] for d in drift],
        "product_clipped_02": flags,
        # log R grows by the same amount with every token.
        "log_product_threshold_len": math.log1p(band) / (product[1].log() / case["lengths"][1]),
    }


@runner("S", "s", "loss", "grad")
def geometric_mean(case: Case) -> Mapping[str, Any]:
    """Any log-ratios with that mean will do; the advantage is 1.5."""
    length, advantages = len(case["grad"]), f64([[1.5]])
    uneven = torch.linspace(-0.1, 0.1, length, dtype=torch.float64)
    logprobs = (math.log(case["s"]) + uneven)[None].requires_grad_()
    old, mask = torch.zeros_like(logprobs), torch.ones(1, length, dtype=torch.bool)
    values: dict[str, Any] = {}
    for name, make in (("grad", sequence_ratio), ("gspo_token_grad_same", sequence_token_ratio)):
        ratio = make(logprobs, old, mask)
        per_token = clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.2)
        loss = aggregate(per_token, mask, "sequence_mean", 1.0)
        values |= {"s": ratio[0, 0].detach(), "loss": loss.detach(), name: gradient(loss, logprobs)[0]}
    slopes = values["gspo_token_grad_same"]
    assert (slopes == slopes[0]).all()
    return values | {"gspo_token_grad_same": Within(slopes[0], 1e-8)}


@runner("S", "trl_min5")
def capped_weight(case: Case) -> Mapping[str, Any]:
    ratio = f64([case.listed("ratios {}")])

    def weights(cap: float) -> Tensor:
        logprobs = torch.zeros_like(ratio).requires_grad_()
        return -gradient(cispo(ratio, f64([[1.0]]), logprobs, cap=cap).sum(), logprobs)[0]

    return {
        "trl_min5": weights(5.0),
        "tinker_0_4": weights(4.0),
        "verl_02": Anything("verl clamps the weight from below as well: another object of the same name"),
    }


@runner("S", "tau1", "tau105")
def soft_gate(case: Case) -> Mapping[str, Any]:
    def gate(ratios: list[float], tau: float) -> tuple[Tensor, Tensor]:
        """Value and slope of f; the loss is -f A."""
        ratio = f64([ratios]).requires_grad_()
        loss = sapo(ratio, f64([[1.0]]), tau_positive=tau)
        bad = sapo(ratio, f64([[-1.0]]), tau_negative=tau)
        assert torch.equal(loss, -bad)
        return -loss[0].detach(), -gradient(loss.sum(), ratio)[0]

    values: dict[str, Any] = {f"tau{d}": gate([0.5, 1.0, 1.5], decimal(d))[0] for d in digits(case, "tau")}
    for name in case.numbers:
        if name.startswith("slope_at_"):
            at = float(name.removeprefix("slope_at_"))
            slopes = [gate([at], tau)[1][0] for tau in (1.0, 1.05)]
            values[name] = Within(slopes, 1e-8)
    return values


@runner("S", "cases")
def off_policy(case: Case) -> Mapping[str, Any]:
    def row(given: Mapping[str, float]) -> dict[str, Any]:
        # One token, so that the mean is the very number that the bound is compared with.
        old, now = f64([[0.0]]), f64([[-given["mean_kl"]]])
        keep = on_policy_rows(f64([[given["A"]]]), now, old, everywhere(old), bound=given["delta"])
        return {**given, "keep": keep[0]}

    return {"cases": [row(given) for given in case["cases"]]}


@runner("S", "pos_k2_l3")
def soft_sequence_weight(case: Case) -> Mapping[str, Any]:
    """VESPO (arXiv 2602.10693) has no function of its own: its loss is the weighted log-likelihood of the completion's
    ratio W, with the weight W^k e^(lambda (1 - W))."""
    values: dict[str, Any] = {}
    for name in case.numbers:
        found = re.fullmatch(r"(pos|neg)_k(\d+)_l(\d+)", name)
        if found:
            k, rate = float(found[2]), float(found[3])
            logprobs = f64([[math.log(w) / 2] * 2 for w in (0.5, 1.0, 2.0)]).requires_grad_()
            ratio = product_ratio(logprobs, torch.zeros_like(logprobs), everywhere(logprobs)).detach()
            loss = weighted_nll(logprobs, ratio**k * (rate * (1 - ratio)).exp())
            values[name] = -gradient(loss.sum(), logprobs)[:, 0]
    return values


# -- G -----------------------------------------------------------------------------------------------------------------


def rows_of(case: Case, default: list[list[float]]) -> tuple[Tensor, Tensor]:
    """The loss rows ``[1,3],[2,2],...`` of the title, padded, with their mask."""
    lists = re.findall(r"\[([-\d.,]+)\]", case["title"])
    rows = [[float(number) for number in each.split(",")] for each in lists] or default
    width = max(map(len, rows))
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    return f64([[*row, *[math.nan] * (width - len(row))] for row in rows]), mask


THREE_ROWS = [[1.0, 3.0], [2.0, 2.0, 2.0, 6.0], [4.0]]


def mean(per_token: Tensor, mask: Tensor, mode: AggregationMode, budget: int | None = None) -> Tensor:
    return aggregate(per_token, mask, mode, denominator(mask, mode, budget=budget))


@runner("G", "token_mean", "per_token_weight")
def aggregations(case: Case) -> Mapping[str, Any]:
    per_token, mask = rows_of(case, THREE_ROWS)
    budgets = {"seq_mean_token_sum": 1}  # a sum of tokens is a budget of one token
    for field in case.numbers:
        found = re.search(r"(?:budget|padded_width)(\d+)$", field)
        if found:
            budgets[field] = int(found[1])
    modes: dict[str, tuple[AggregationMode, int | None]] = {
        "seq_mean_token_mean": ("sequence_mean", None),
        "token_mean": ("token_mean", None),
        **{field: ("length_budget", budget) for field, budget in budgets.items()},
    }
    values: dict[str, Any] = {field: mean(per_token, mask, *mode) for field, mode in modes.items()}
    modes["dr_grpo"] = ("length_budget", next((b for f, b in budgets.items() if f.startswith("dr_grpo")), 8))
    leaf = per_token.clone().requires_grad_()
    weights = {field: gradient(mean(leaf, mask, *mode), leaf)[:, 0] for field, mode in modes.items()}
    return values | {"per_token_weight": weights}


@runner("G", "mean_of_micro_token_means")
def microbatches(case: Case) -> Mapping[str, Any]:
    """Rows {0} and {1, 2}: the sum over microbatches with the denominator of all of them is the whole."""
    per_token, mask = rows_of(case, THREE_ROWS)
    values: dict[str, Any] = {}
    for name, mode in (("token", "token_mean"), ("seq", "sequence_mean")):
        whole = denominator(mask, mode)
        cut = [slice(0, 1), slice(1, None)]
        together = sum(aggregate(per_token[rows], mask[rows], mode, whole) for rows in cut)
        torch.testing.assert_close(together, mean(per_token, mask, mode), rtol=0, atol=1e-12)
        values["full_token_mean" if name == "token" else "full_seq_mean"] = together
        values[f"mean_of_micro_{name}_means"] = sum(mean(per_token[rows], mask[rows], mode) for rows in cut) / 2
    return values


@runner("G", "grpo", "per_token_grpo")
def length_bias(case: Case) -> Mapping[str, Any]:
    advantage, size = case.said("A={}"), int(case.said("G={}"))
    lengths = [int(length) for length in re.findall(r"(\d+)(?= vs| tokens)", case["title"])]
    mask = torch.zeros(size, max(lengths), dtype=torch.bool)
    for row, length in enumerate([*lengths, *[1] * (size - len(lengths))]):
        mask[row, :length] = True
    # On-policy the gradient of a token's log-prob is minus its weight.
    advantages = torch.full((size, 1), advantage, dtype=torch.float64)

    def weights(mode: AggregationMode, budget: int | None = None) -> Tensor:
        logprobs = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
        return -gradient(mean(weighted_nll(logprobs, advantages), mask, mode, budget), logprobs)

    by_sequence = weights("sequence_mean")
    values: dict[str, Any] = {
        "grpo": by_sequence.sum(dim=1)[: len(lengths)],
        "per_token_grpo": by_sequence[: len(lengths), 0],
    }
    for field in case.numbers:
        found = re.fullmatch(r"dr_grpo_L(\d+)", field)
        if found:
            values[field] = weights("length_budget", int(found[1])).sum(dim=1)[: len(lengths)]
    return values

"""Cases A: advantages, the filter of dynamic sampling, pass@k."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Case, ddof_and_eps, f64, runner
from oncurve.functional import (
    batch_normalised,
    centred_over_centred_std,
    centred_over_reward_std,
    group_centred,
    group_normalised,
    informative_groups,
    leave_one_out,
    length_weighted,
    pass_at_k,
    process_advantages,
    success_scaled,
)

DEBATE = [1.0, 0.9, 0.0, 1.0]
"""The rewards of the example that several cases go by."""


def of_group(case: Case, rewards: Tensor) -> dict[str, Any]:
    """Whatever of one group ``[1, G]`` has a name: advantages by estimator, ddof and eps, the mean, the std."""
    centred = group_centred(rewards)
    values: dict[str, Any] = {
        "mean": (rewards - centred)[0, 0],
        "dr_grpo": centred[0],
        "rloo": leave_one_out(rewards)[0],
    }
    for field in case.numbers:
        choice = ddof_and_eps(field)
        if choice is None:
            continue
        ddof, eps = choice
        normal = group_normalised(rewards, ddof=ddof, eps=eps)
        values[field] = (centred / normal)[0, 0] if field.startswith("std") else normal[0]
    return values


@runner("A", inputs=("rewards",))
def group(case: Case) -> Mapping[str, Any]:
    rewards = case["rewards"] if "rewards" in case else case.listed()
    return of_group(case, f64([rewards]))


@runner("A", "rewards", "perm", inputs=("rewards", "perm"))
def invariances(case: Case) -> Mapping[str, Any]:
    rewards, order = f64([case["rewards"]]), case["perm"]
    advantages = group_normalised(rewards, ddof=0, eps=0.0)
    for changed, expected in (
        (rewards + 3.0, advantages),
        (rewards * 7.0, advantages),
        (-rewards, -advantages),
        (rewards[:, order], advantages[:, order]),
    ):
        torch.testing.assert_close(group_normalised(changed, ddof=0, eps=0.0), expected, rtol=0, atol=1e-12)
    return of_group(case, rewards)


@runner("A", "expected", "worst_float32_equal_group")
def zero_variance(case: Case) -> Mapping[str, Any]:
    rewards = f64([[0.1] * len(case["expected"])])
    worst = case["worst_float32_equal_group"]
    equal = torch.full((1, worst["G"]), worst["value"], dtype=torch.float32)

    def unguarded(eps: float) -> Tensor:
        return ((equal - equal.mean()) / (equal.std() + eps)).abs().max()

    for eps in (0.0, 1e-9, 1e-6, 1e-4):
        for ddof in (0, 1):
            assert not group_normalised(equal, ddof=ddof, eps=eps).any()
    mean = sum(rewards[0].tolist()) / rewards.shape[1]
    return {
        "expected": group_normalised(rewards, ddof=0, eps=0.0)[0],
        "float64_mean_of_three_0p1": mean,
        "float64_residual": rewards[0, 0] - mean,
        "naive_eps0": [(0.1 - mean) / abs(0.1 - mean)] * 3,
        "worst_float32_equal_group": worst
        | {name: unguarded(10.0 ** -int(name[-1])) for name in worst if name.startswith("max_abs_adv_eps")},
    }


@runner("A", "table")
def binary_rewards(case: Case) -> Mapping[str, Any]:
    def row(name: str) -> dict[str, Any]:
        size, correct = map(int, re.findall(r"\d+", name))
        rewards = f64([[1.0] * correct + [0.0] * (size - correct)])
        normal, centred = group_normalised(rewards, ddof=0, eps=0.0), group_centred(rewards)
        return {
            "mean_abs_grpo": normal.abs().mean(),
            "mean_abs_drgrpo": centred.abs().mean(),
            "std": (centred / normal)[0, 0],
        }

    return {"table": {name: row(name) for name in case["table"]}}


@runner("A", "g1", "g2", inputs=("g1", "g2"))
def batch(case: Case) -> Mapping[str, Any]:
    rewards = f64([case["g1"], case["g2"]])
    by_prefix = {
        "grpo": group_normalised,
        "trl_batch": centred_over_reward_std,
        "lite_ppo": centred_over_reward_std,
        "rfpp_baseline": centred_over_centred_std,
        "rfpp_global": batch_normalised,
    }
    values = {}
    for field in case.numbers.keys() - {"g1", "g2"}:
        function = next((each for prefix, each in by_prefix.items() if field.startswith(prefix)), None)
        choice = ddof_and_eps(field)
        if function and choice:
            values[field] = function(rewards, ddof=choice[0], eps=choice[1]).flatten()
    return values


@runner("A", "one_of_eight")
def success(case: Case) -> Mapping[str, Any]:
    def of(*rewards: float) -> Tensor:
        return success_scaled(f64([rewards]))[0]

    return {
        "one_of_eight": of(1, *[0] * 7)[:2],
        "half": of(1, 1, 0, 0),
        "all_fail": of(0, 0, 0, 0),
        "all_pass": of(1, 1, 1, 1),
    }


@runner("A", "rewards", "lengths", "baseline", inputs=("rewards", "lengths"))
def by_length(case: Case) -> Mapping[str, Any]:
    rewards, lengths = f64([case["rewards"]]), f64([case["lengths"]]).long()
    advantages = length_weighted(rewards, lengths)
    return {
        "adv": advantages[0],
        "baseline": (rewards - advantages)[0, 0],
        "group_mean_for_contrast": (rewards - group_centred(rewards))[0, 0],
    }


def padded(rows: list[list[float]], fill: float) -> list[list[float]]:
    width = max(map(len, rows))
    return [[*row, *[fill] * (width - len(row))] for row in rows]


@runner("A", "R", "end_index", "lengths", inputs=("R", "end_index", "lengths"))
def process(case: Case) -> Mapping[str, Any]:
    rewards = f64([padded(case["R"], math.nan)])
    ends = f64([padded(case["end_index"], 0)]).long()
    lengths = case["lengths"]
    pooled = f64([[reward for row in case["R"] for reward in row]])
    values = of_group(case, pooled)
    for ddof in (0, 1):
        advantages = process_advantages(
            rewards, ends, torch.tensor([lengths]), width=max(lengths) + 1, ddof=ddof, eps=0.0
        )
        values[f"A_ddof{ddof}"] = [row[:length] for row, length in zip(advantages[0], lengths, strict=True)]
        normal = group_normalised(pooled, ddof=ddof, eps=0.0)
        values |= {f"norm_steps_ddof{ddof}": normal[0], f"std{ddof}": (group_centred(pooled) / normal)[0, 0]}
    return values


@runner("A", "A")
def one_step(case: Case) -> Mapping[str, Any]:
    """One step at the last token: outcome supervision of the debate example."""
    width = len(case["A"][0])
    rewards = f64([[[reward] for reward in DEBATE]])
    lengths = torch.full((1, len(DEBATE)), width)
    advantages = process_advantages(rewards, lengths[..., None] - 1, lengths, width=width, ddof=0, eps=0.0)
    outcome = group_normalised(rewards[..., 0], ddof=0, eps=0.0)
    torch.testing.assert_close(advantages, outcome[..., None].expand_as(advantages), rtol=0, atol=1e-12)
    return {"A": advantages[0]}


@runner("A", "groups", "kept", inputs=("groups",))
def dynamic_sampling(case: Case) -> Mapping[str, Any]:
    def without_signal(name: str) -> float:
        """The chance that a group is dropped, from all counts of correct completions there may be."""
        p, size = (float(part.split("=")[1]) for part in name.split(","))
        n = int(size)
        groups = f64([[1.0] * correct + [0.0] * (n - correct) for correct in range(n + 1)])
        chances = f64([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
        return float(chances[~informative_groups(groups)].sum())

    return {
        "kept": informative_groups(f64(case["groups"])),
        "p_zero_signal": {name: without_signal(name) for name in case.get("p_zero_signal", {})},
    }


@runner("A", "check_k8")
def best_of_k(case: Case) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for field, given in case.numbers.items():
        counts = re.fullmatch(r"n(\d+)c(\d+)", field)
        if counts:
            n, c = map(int, counts.groups())
            values[field] = {k: pass_at_k(n, c, int(k)) for k in given}
            values |= {f"check_k{n}": pass_at_k(n, c, n)}
    return values

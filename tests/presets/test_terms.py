"""The words for the terms: complete, and with the values of an objective in their formulas."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from oncurve.config import Grpo, leaves
from oncurve.presets import (
    PRESETS,
    TERMS,
    Advantage,
    Aggregation,
    Correction,
    Kl,
    Ratio,
    Surrogate,
    Value,
    absent,
    formula,
    idle,
    objective,
    shown,
    terms_of,
)

CHOICES = [
    (term, name) for term, info in TERMS.items() for name in info.choices
]  # ("advantage", "group_normalised"), ...


def terms(**own: Value) -> dict[str, Value]:
    return {**PRESETS["deepseekmath"].terms, **own}


def test_every_term_is_an_option_and_every_choice_is_in_its_type():
    assert {f"grpo.{term}" for term in TERMS} <= leaves().keys()
    types = {"advantage": Advantage, "ratio": Ratio, "surrogate": Surrogate, "aggregation": Aggregation, "kl": Kl}
    for term, type_ in {**types, "sampler_correction": Correction}.items():
        assert tuple(TERMS[term].choices) == get_args(type_), term
        assert leaves()[f"grpo.{term}"].annotation == type_, term
    assert {term for term, info in TERMS.items() if info.choices} == {*types, "sampler_correction"}


@pytest.mark.parametrize(("term", "name"), CHOICES, ids="-".join)
def test_every_choice_says_what_it_is(term: str, name: str):
    choice = TERMS[term].choices[name]
    assert choice.meaning.endswith(".")
    assert choice.source or name == "none"
    named = set(re.findall(r"\{(\w+)\}", choice.formula)) - {"x"}
    assert named <= TERMS.keys(), f"{term} = {name} names no term"
    assert "{" not in formula(term, terms(**{term: name}))


def test_every_number_says_what_it_is():
    for term, info in TERMS.items():
        assert info.meaning.endswith("."), term
        assert "{" not in formula(term, terms()), term


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), (False, "false"), (3e-4, "0.0003"), (10.0, "10"), (1, "1"), ("k3", "k3")],
)
def test_values_are_shown_in_few_characters(value: Value, text: str):
    assert shown(value) == text


def test_the_objective_of_the_paper_in_five_lines():
    assert objective(terms()) == [
        "A_i = (r_i - mean(r)) / (std(r) + 1e-4), over the group;  std divides by n - 1",
        "ratio_t = policy / old",
        "s_t = -min(ratio A, clip(ratio, 1 - 0.2, 1 + 0.2) A)",
        "k_t = ref/policy - log(ref/policy) - 1",
        "loss = 1/B sum_i 1/n_i sum_t (s_t + 0.04 k_t)",
    ]


def test_an_objective_with_everything_in_it():
    own = terms(
        advantage="group_centred",
        surrogate="cispo",
        ratio_cap=5.0,
        aggregation="token_mean",
        kl="k1_in_reward",
        kl_coef=0.03,
        kl_target=0.1,
        sampler_correction="truncate_token",
        off_policy_bound=0.5,
        dynamic_sampling=3,
        overlong_fraction=0.25,
        entropy_coef=0.01,
    )
    assert objective(own) == [
        "only groups with max(r) > min(r);  rounds of sampling <= 3",
        "r_i <- r_i - min(1, max(0, (n_i - (L - b)) / b));  L = max_new_tokens, b = 0.25 L",
        "r_i <- r_i - 0.03 sum_t log(old / ref)",
        "A_i = r_i - mean(r), over the group",
        "ratio_t = policy / old",
        "s_t = -sg(min(ratio, 5)) A log policy",
        "w_t = min(old / sampler, 2)",
        "drop i if A < 0 and 1/n_i sum_t log(sampler / policy) > 0.5",
        "loss = 1/N sum_i sum_t (w_t s_t - 0.01 H_t)",
        "N = sum_i n_i",
        "H_t = -sum_v policy(v) log policy(v)",
        "kl_coef <- kl_coef (1 + clip(kl/0.1 - 1, -0.2, 0.2) n/10000), n completions",
    ]


def test_an_objective_without_a_ratio():
    assert objective(terms(ratio="none", surrogate="reinforce", kl_coef=0.0)) == [
        "A_i = (r_i - mean(r)) / (std(r) + 1e-4), over the group;  std divides by n - 1",
        "s_t = -A log policy",
        "loss = 1/B sum_i 1/n_i sum_t s_t",
    ]
    assert not any("ratio_t" in line for line in objective(terms(surrogate="gmpo")))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"advantage_cap", "step_cap", "ratio_cap", "correction_low", "correction_high", "allow_k1_in_loss"}),
        ({"advantage": "leave_one_out"}, {"advantage_ddof"}),
        ({"surrogate": "reinforce", "ratio": "none"}, {"clip_low", "clip_high"}),
        ({"surrogate": "gmpo"}, {"ratio"}),
        ({"kl_coef": 0.0}, {"kl", "kl_target"}),
        ({"sampler_correction": "truncate_token"}, {"correction_low"}),
    ],
)
def test_terms_that_change_nothing_have_a_reason(own: dict[str, Value], expected: set[str]):
    reasons = idle(terms(**own))
    assert expected <= reasons.keys()
    assert all(reasons.values())


def test_what_is_in_use_is_not_idle():
    assert idle(terms(advantage="process")).keys().isdisjoint({"advantage_ddof", "advantage_cap", "step_cap"})
    assert "correction_high" not in idle(terms(sampler_correction="truncate_token"))
    assert idle(terms(sampler_correction="mask_token")).keys().isdisjoint({"correction_low", "correction_high"})
    assert "ratio_cap" not in idle(terms(surrogate="dual_clip"))


def test_what_is_switched_off_is_absent():
    there = [term for term in TERMS if term not in absent(terms())]
    assert there == [
        *("advantage", "advantage_ddof", "ratio", "surrogate", "clip_low", "clip_high", "aggregation", "kl", "kl_coef")
    ]
    assert "entropy_coef" not in absent(terms(entropy_coef=0.1))


def test_the_terms_of_a_section():
    assert terms_of(Grpo(kl_coef=0.5)) == terms(kl_coef=0.5)

"""The terms of a policy objective: their names, what each means, and which of them matter beside which.

This is the one place where they stand in words. ``oncurve.functional`` computes them, ``oncurve.config`` has an option
for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oncurve.presets.choices import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KLS, RATIOS, SURROGATES, Choice

Value = str | bool | int | float | None
"""What a term may be."""


@dataclass(frozen=True)
class Term:
    """One option of ``[grpo]`` that belongs to the objective."""

    meaning: str
    """One sentence."""
    neutral: Value
    """What it is where a method says nothing of it."""
    optional: bool = False
    """At its neutral value it is not there at all."""
    formula: str = ""
    """Of a number; a term with choices has one for each."""
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    source: str = ""
    """Where a number comes from."""


TERMS: Mapping[str, Term] = {
    "advantage": Term("How much better than others a completion is.", neutral="group_normalised", choices=ADVANTAGES),
    "advantage_ddof": Term(
        "Standard deviations divide by n - 1 (1) or by n (0).", neutral=1, formula="std divides by n - {advantage_ddof}"
    ),
    "advantage_cap": Term(
        "Process supervision: bound of |A|, which otherwise grows with the number of steps.",
        neutral=None,
        optional=True,
        formula="A_t = clip(A_t, -{advantage_cap}, {advantage_cap})",
        source="of Oncurve",
    ),
    "step_cap": Term(
        "Process supervision: only so many first steps of a completion count.",
        neutral=None,
        optional=True,
        formula="steps 1 to {step_cap}",
        source="of Oncurve",
    ),
    "ratio": Term("Policy against old policy.", neutral="token", choices=RATIOS),
    "surrogate": Term("The loss per token from ratio and advantage.", neutral="clip", choices=SURROGATES),
    "clip_low": Term(
        "How far the ratio may fall where A < 0; in nats of the log-ratio with gmpo.",
        neutral=0.2,
        formula="ratio >= 1 - {clip_low}",
        source="PPO (1707.06347) eq. 7",
    ),
    "clip_high": Term(
        "How far the ratio may rise where A > 0; in nats of the log-ratio with gmpo.",
        neutral=0.2,
        formula="ratio <= 1 + {clip_high}",
        source="DAPO (2503.14476) eq. 10",
    ),
    "ratio_cap": Term(
        "dual_clip: bound of the loss in units of |A|; two_sided and cispo: bound of the ratio itself.",
        neutral=None,
        optional=True,
        formula="at most {ratio_cap}",
    ),
    "aggregation": Term("From tokens to one number.", neutral="sequence_mean", choices=AGGREGATIONS),
    "kl": Term("How the distance to the reference is estimated, and where it is put.", neutral="k3", choices=KLS),
    "kl_coef": Term(
        "Weight of the distance to the reference; 0 never builds the reference.",
        neutral=0.0,
        optional=True,
        source="DeepSeekMath (2402.03300) eq. 3",
    ),
    "kl_target": Term(
        "Adapts kl_coef after every iteration so that the kl comes to this, in nats per token.",
        neutral=None,
        optional=True,
        formula="kl_coef <- kl_coef (1 + clip(kl/{kl_target} - 1, -0.2, 0.2) n/10000), n completions",
        source="Ziegler et al. (1909.08593)",
    ),
    "allow_k1_in_loss": Term("Allows kl = k1, for showing what it does.", neutral=False, optional=True),
    "sampler_correction": Term(
        "Weight for the difference between the policy that samples and the old policy that is trained.",
        neutral="none",
        optional=True,
        choices=CORRECTIONS,
    ),
    "correction_low": Term(
        "Lower bound of the mask_ corrections.", neutral=0.5, formula="old / sampler >= {correction_low}"
    ),
    "correction_high": Term(
        "Upper bound of every correction.", neutral=2.0, formula="old / sampler <= {correction_high}"
    ),
    "off_policy_bound": Term(
        "Leaves out a completion with A < 0 that the policy has moved away from, in nats per token.",
        neutral=None,
        optional=True,
        formula="drop i if A < 0 and 1/n_i sum_t log(sampler / policy) > {off_policy_bound}",
        source="DeepSeek-V3.2 (2512.02556)",
    ),
    "dynamic_sampling": Term(
        "Groups without variance: 0 keeps them, 1 drops them from the update, n samples up to n times to replace them.",
        neutral=0,
        optional=True,
        formula="only groups with max(r) > min(r);  rounds of sampling <= {dynamic_sampling}",
        source="DAPO (2503.14476) eq. 11",
    ),
    "overlong_fraction": Term(
        "Soft punishment: the last share of max_new_tokens, over which the reward falls by up to 1.",
        neutral=0.0,
        optional=True,
        formula="r_i <- r_i - min(1, max(0, (n_i - (L - b)) / b));  L = max_new_tokens, b = {overlong_fraction} L",
        source="DAPO (2503.14476) eq. 13",
    ),
    "entropy_coef": Term(
        "Weight of the entropy, which the loss rewards.",
        neutral=0.0,
        optional=True,
        formula="- {entropy_coef} H_t;  H_t = -sum_v policy(v) log policy(v)",
        source="PPO (1707.06347) eq. 9",
    ),
}
"""Every term by its name, which is the name of its option in ``[grpo]``, in reading order."""

NEEDS_RATIO_CAP = frozenset({"dual_clip", "two_sided", "cispo"})
CLIPS = frozenset({"clip", "dual_clip", "two_sided", "gmpo"})
"""The surrogates that look at clip_low and clip_high."""
HAS_STD = frozenset(
    {
        "group_normalised",
        "centred_over_reward_std",
        "centred_over_centred_std",
        "batch_normalised",
        "per_reward_normalised",
        "process",
    }
)
"""The advantages that look at advantage_ddof."""


def idle(terms: Mapping[str, Value]) -> dict[str, str]:
    """The terms whose value changes nothing, each with the reason: ``{"clip_low": "surrogate cispo has no clip"}``."""
    surrogate, correction = terms["surrogate"], str(terms["sampler_correction"])
    reasons: dict[str, str] = {}
    if terms["advantage"] not in HAS_STD:
        reasons["advantage_ddof"] = f"{terms['advantage']} divides by no standard deviation"
    if terms["advantage"] != "process":
        reasons |= dict.fromkeys(("advantage_cap", "step_cap"), "for process supervision only")
    if surrogate == "gmpo":
        reasons["ratio"] = "gmpo makes its own from the log-ratios of the tokens"
    if surrogate not in CLIPS:
        reasons |= dict.fromkeys(("clip_low", "clip_high"), f"surrogate {surrogate} has no clip")
    if surrogate not in NEEDS_RATIO_CAP:
        reasons["ratio_cap"] = f"surrogate {surrogate} has no cap"
    if terms["kl_coef"] == 0:
        reasons |= dict.fromkeys(("kl", "kl_target"), "kl_coef is 0")
    if correction == "none":
        reasons |= dict.fromkeys(("correction_low", "correction_high"), "there is no sampler_correction")
    elif correction.startswith("truncate"):
        reasons["correction_low"] = f"{correction} has an upper bound only"
    if terms["kl"] != "k1":
        reasons["allow_k1_in_loss"] = "kl is not k1"
    return reasons


def absent(terms: Mapping[str, Value]) -> dict[str, str]:
    """The terms that are not there, each with the reason: switched off, or :func:`idle`."""
    switched = {n: "off" for n, term in TERMS.items() if term.optional and terms[n] == term.neutral}
    return switched | idle(terms)

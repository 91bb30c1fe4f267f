"""What follows from a preset and a few terms of one's own: the whole, what was overridden, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncurve.presets.formulas import shown
from oncurve.presets.published import DEFAULT, PRESETS
from oncurve.presets.terms import NEEDS_RATIO_CAP, TERMS, Value

NO_PULL = "k1 in the loss has no pull to the reference: its expected gradient is zero"


def completed(section: Mapping[str, Any]) -> dict[str, Any]:
    """``section`` (a ``[grpo]``) with every term that it does not give taken from its preset. A preset's ratio_cap is
    not taken over to a surrogate that has none. An unknown preset changes nothing: the check that follows names it."""
    chosen = section.get("preset", DEFAULT)
    if not isinstance(chosen, str) or chosen not in PRESETS:
        return dict(section)
    terms: dict[str, Any] = {**PRESETS[chosen].terms}
    if section.get("surrogate", terms["surrogate"]) not in NEEDS_RATIO_CAP:
        terms["ratio_cap"] = None
    return {"preset": chosen, **terms, **section}


def without_preset(section: Mapping[str, Any]) -> dict[str, Any]:
    """``section`` without its preset and the terms that are as the preset has them: what somebody chose. So another
    preset can be put in its place, also in a recipe that was written out whole."""
    chosen = section.get("preset", DEFAULT)
    theirs: Mapping[str, Value] = PRESETS[chosen].terms if isinstance(chosen, str) and chosen in PRESETS else {}
    return {
        name: value
        for name, value in section.items()
        if name != "preset" and not (name in theirs and value == theirs[name])
    }


def terms_of(grpo: object) -> dict[str, Value]:
    """The terms of a ``Grpo`` section, by name."""
    return {name: getattr(grpo, name) for name in TERMS}


def overridden(grpo: object) -> dict[str, tuple[Value, Value]]:
    """The terms of a ``Grpo`` section that are not its preset's: ``{name: (the preset's value, its own)}``."""
    own, theirs = terms_of(grpo), PRESETS[str(getattr(grpo, "preset", DEFAULT))].terms
    differing = {name: (theirs[name], own[name]) for name in TERMS if own[name] != theirs[name]}
    if own["ratio_cap"] is None and own["surrogate"] not in NEEDS_RATIO_CAP:
        differing.pop("ratio_cap", None)  # it went with the surrogate
    return differing


def refusal(chosen: str, terms: Mapping[str, Value]) -> str | None:
    """Why these terms make no objective, in one sentence that names the option, its value and what would be right; None
    if they make one."""
    checks = (_k1_in_loss, _ratio, _cap, _correction, _reward, _without_effect)
    return next((text for check in checks if (text := check(chosen, terms))), None)


def _k1_in_loss(_: str, terms: Mapping[str, Value]) -> str | None:
    if terms["kl"] != "k1" or terms["kl_coef"] == 0 or terms["allow_k1_in_loss"]:
        return None
    return (
        f"grpo.kl = k1: {NO_PULL}; set it to k3, k2, k3_ratio or k1_in_reward, or allow it with "
        "grpo.allow_k1_in_loss = true"
    )


def _ratio(_: str, terms: Mapping[str, Value]) -> str | None:
    ratio, surrogate = terms["ratio"], terms["surrogate"]
    if surrogate == "gmpo" and ratio != "token":
        return f"grpo.ratio = {ratio}: surrogate gmpo makes its own from the ratios of the tokens; set it to token"
    if surrogate == "reinforce" and ratio != "none":
        return f"grpo.ratio = {ratio}: surrogate reinforce uses no ratio; set it to none"
    if surrogate != "reinforce" and ratio == "none":
        return (
            f"grpo.ratio = none: surrogate {surrogate} needs a ratio; set it to token, or grpo.surrogate to reinforce"
        )
    return None


def _cap(_: str, terms: Mapping[str, Value]) -> str | None:
    surrogate, cap = terms["surrogate"], terms["ratio_cap"]
    if surrogate not in NEEDS_RATIO_CAP:
        if cap is None:
            return None
        return f"grpo.ratio_cap = {shown(cap)}: surrogate {surrogate} has no cap; leave it out"
    what, usual, least = {
        "dual_clip": ("the bound of its loss in units of |A|", "3", 1.0),
        "two_sided": ("the bound of its ratio", "4", 1.0 + _number(terms["clip_high"])),
        "cispo": ("the bound of its ratio", "5", 1.0),
    }[str(surrogate)]
    if cap is None:
        return f"grpo.ratio_cap is missing: surrogate {surrogate} needs it, {what}; {usual} is usual"
    if _number(cap) < least:
        reason = "1 + clip_high, where the clip is" if surrogate == "two_sided" else "1, which is no change of policy"
        return f"grpo.ratio_cap = {shown(cap)}: must be at least {shown(least)} ({reason}); {usual} is usual"
    return None


def _correction(_: str, terms: Mapping[str, Value]) -> str | None:
    kind, low, high = str(terms["sampler_correction"]), terms["correction_low"], terms["correction_high"]
    if kind == "none":
        return None
    if _number(high) < 1:
        return f"grpo.correction_high = {shown(high)}: must be at least 1, the weight where sampler and trainer agree"
    if kind.startswith("mask") and _number(low) > 1:
        return f"grpo.correction_low = {shown(low)}: must be at most 1, the weight where sampler and trainer agree"
    return None


def _reward(_: str, terms: Mapping[str, Value]) -> str | None:
    """What changes the reward of a completion must suit the advantage that is made of it."""
    advantage = terms["advantage"]
    if terms["kl"] == "k1_in_reward" and terms["kl_coef"] != 0:
        reason = {
            "process": "steps have rewards of their own, from which it cannot be taken",
            "per_reward_normalised": "every reward is normalised by itself, which would undo kl_coef",
            "success_scaled": "it makes rewards negative, and this advantage divides by their mean",
        }.get(str(advantage))
        if reason:
            return (
                f"grpo.kl = k1_in_reward with advantage {advantage}: {reason}; set it to k3_ratio, which is in the loss"
            )
    if terms["overlong_fraction"] != 0:
        reason = {
            "process": "steps have rewards of their own, from which the punishment cannot be taken",
            "per_reward_normalised": "every reward is normalised by itself, and the punishment is none of them",
            "success_scaled": "the punishment makes rewards negative, and this advantage divides by their mean",
        }.get(str(advantage))
        if reason:
            value = shown(terms["overlong_fraction"])
            return f"grpo.overlong_fraction = {value} with advantage {advantage}: {reason}; set it to 0"
    return None


def _without_effect(_: str, terms: Mapping[str, Value]) -> str | None:
    if terms["kl_target"] is not None and terms["kl_coef"] == 0:
        return (
            f"grpo.kl_target = {shown(terms['kl_target'])}: it multiplies kl_coef, and 0 stays 0; set grpo.kl_coef to "
            "begin with, for example 0.04"
        )
    for name in ("advantage_cap", "step_cap"):
        if terms[name] is not None and terms["advantage"] != "process":
            return f"grpo.{name} = {shown(terms[name])}: it is for advantage = process only; leave it out"
    return None


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)

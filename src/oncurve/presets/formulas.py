"""The formulas of a policy objective with its values in them, and the whole loss put together from them."""

from __future__ import annotations

from collections.abc import Mapping

from oncurve.presets.terms import HAS_STD, TERMS, Value, absent


def shown(value: Value) -> str:
    """A value in few characters: 0.0003, none, true."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def formula(name: str, terms: Mapping[str, Value], x: str = "s_t") -> str:
    """The formula of one term, with the values of all terms in it; ``x`` is what an aggregation sums."""
    term = TERMS[name]
    text = term.choices[str(terms[name])].formula if term.choices else term.formula
    for other, value in terms.items():
        text = text.replace(f"{{{other}}}", shown(value))
    return text.replace("{x}", x)


def objective(terms: Mapping[str, Value]) -> list[str]:
    """The whole loss, one line for each part of it, in the order in which it is computed."""
    there = [name for name in TERMS if name not in absent(terms)]
    in_reward = "kl" in there and terms["kl"] == "k1_in_reward"
    in_loss = "kl" in there and not in_reward
    # Reading order is that of the terms, but what changes the reward stands before the advantage is made of it.
    order = ["dynamic_sampling", "overlong_fraction", *(["kl"] if in_reward else []), "advantage", "step_cap"]
    order += ["advantage_cap", "ratio", "surrogate", "sampler_correction", "off_policy_bound"]
    order += ["kl"] if in_loss else []
    lines = [_line(name, terms) for name in order if name in there and (name, terms[name]) != ("ratio", "none")]
    x = "w_t s_t" if "sampler_correction" in there else "s_t"
    x += f" + {shown(terms['kl_coef'])} k_t" if in_loss else ""
    entropy, _, what_entropy = formula("entropy_coef", terms).partition(";  ")
    x += f" {entropy}" if "entropy_coef" in there else ""
    loss, _, what_n = formula("aggregation", terms, x if x == "s_t" else f"({x})").partition(";  ")
    lines += [loss, *([what_n] if what_n else []), *([what_entropy] if "entropy_coef" in there else [])]
    return [*lines, *([formula("kl_target", terms)] if "kl_target" in there else [])]


def _line(name: str, terms: Mapping[str, Value]) -> str:
    ddof = name == "advantage" and terms["advantage"] in HAS_STD
    return formula(name, terms) + (f";  {formula('advantage_ddof', terms)}" if ddof else "")

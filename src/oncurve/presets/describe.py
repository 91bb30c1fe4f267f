"""Presets and objectives as plain text: the table of all, one preset term by term, the objective of a run."""

from __future__ import annotations

import difflib
import textwrap

from oncurve.presets.formulas import formula, objective, shown
from oncurve.presets.preset import NOT_PART, Preset
from oncurve.presets.published import DEFAULT, PRESETS
from oncurve.presets.rules import overridden, terms_of
from oncurve.presets.terms import CLIPS, TERMS, absent, idle
from oncurve.types import OncurveError

_WIDTH = 100
NEEDS = {
    "critic": "a critic, which is trained beside the policy (options: [critic])",
    "step_rewards": "a reward function that scores steps (without one it is outcome supervision)",
}


def find(name: str) -> Preset:
    """The preset of that name. Raises OncurveError with the nearest name if there is none."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(PRESETS)}"
    raise OncurveError(f"no preset {name!r}; {hint}")


def table() -> list[str]:
    """Every preset: its title, its paper, and below that what is different from the default."""
    names, titles = max(map(len, PRESETS)), max(len(p.title) for p in PRESETS.values())
    lines: list[str] = []
    for p in PRESETS.values():
        lines.append(f"{p.name:<{names}}  {p.title:<{titles}}  arXiv {p.paper.arxiv}")
        lines += _wrapped(what_differs(p), " " * (names + 2))
    return lines


def what_differs(preset: Preset) -> str:
    """Its terms that are not the default's; for the default, its terms."""
    own, usual = preset.terms, PRESETS[DEFAULT].terms
    if preset.name == DEFAULT:
        return "the default: " + _listed(preset, [name for name in TERMS if name not in absent(own)])
    return _listed(preset, [name for name in TERMS if own[name] != usual[name] and name not in idle(own)])


def details(name: str) -> list[str]:
    """One preset: its paper, the loss put together, every term with its place in the paper, settings, deviations."""
    preset = find(name)
    paper = preset.paper
    lines = [
        f"{preset.name}: {preset.title}",
        preset.summary,
        f"{paper.title} (arXiv {paper.arxiv}{f'; {paper.note}' if paper.note else ''})",
    ]
    if preset.needs:
        lines.append(f"It needs {NEEDS[preset.needs]}.")
    lines += ["", "The loss", *(f"  {line}" for line in objective(preset.terms)), "", "Term by term"]
    for term in spoken_of(preset):
        lines.append(f"  {term} = {shown(preset.terms[term])}")
        text = formula(term, preset.terms, x="(...)")
        lines += _wrapped(text, "      ") if text else []
        lines += _wrapped(f"in the paper: {preset.where[term]}", "      ")
    lines += _wrapped("not part of it: " + ", ".join(t for t in TERMS if t not in spoken_of(preset)), "  ")
    lines += ["", "Published settings, for information", *(_settings(preset)), "", "Deviations"]
    for deviation in preset.deviations:
        lines += _wrapped(deviation, "  - ", "    ")
    return lines


def spoken_of(preset: Preset) -> list[str]:
    """The terms that are in the objective, and those of which the paper says that they are not."""
    return [t for t in TERMS if t not in absent(preset.terms) or not preset.where[t].startswith(NOT_PART)]


def describe(grpo: object) -> list[str]:
    """The objective of a ``Grpo`` section, for the start of a run: term by term, with what was overridden."""
    terms, changed = terms_of(grpo), overridden(grpo)
    preset = PRESETS[str(getattr(grpo, "preset", DEFAULT))]
    missing = absent(terms)
    heading = f"objective: preset {preset.name} (arXiv {preset.paper.arxiv})"
    if changed:
        heading += f", overridden: {', '.join(changed)}"
    lines = [heading]
    for term in TERMS:
        if term in missing and term not in changed:
            continue
        text = formula(term, terms, x="(...)") if term not in missing else f"({missing[term]})"
        mark = f"  [{preset.name} has {shown(changed[term][0])}]" if term in changed else ""
        lines.append(f"  {term:<18} {shown(terms[term]):<18} {text}".rstrip() + mark)
    return lines


def remarks(grpo: object) -> list[str]:
    """What of the objective of a ``Grpo`` section cannot have an effect with its other settings."""
    surrogate = terms_of(grpo)["surrogate"]
    steps = int(getattr(grpo, "epochs", 1)) * int(getattr(grpo, "minibatches", 1))
    if steps > 1 or surrogate not in CLIPS | {"cispo"}:
        return []
    return [
        f"with one optimizer step an iteration every ratio is 1, so that surrogate {surrogate} never clips; more "
        "grpo.minibatches or grpo.epochs use it"
    ]


def _listed(preset: Preset, names: list[str]) -> str:
    return ", ".join(f"{name} {shown(preset.terms[name])}" for name in names)


def _settings(preset: Preset) -> list[str]:
    return [line for what, value in preset.settings.items() for line in _wrapped(f"{what}: {value}", "  ", "    ")]


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest if rest is not None else first,
        break_long_words=False,
    )

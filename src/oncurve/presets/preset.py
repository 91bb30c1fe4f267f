"""What a preset is: a published objective as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oncurve.presets.terms import HAS_STD, TERMS, Value

PresetName = Literal[
    "deepseekmath",
    "deepseekmath-process",
    "r1-zero",
    "r1",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce-pp",
    "ppo",
    "scale-rl",
]
Needs = Literal["critic", "step_rewards"]


@dataclass(frozen=True)
class Paper:
    arxiv: str
    title: str
    note: str = ""

    @property
    def url(self) -> str:
        return f"https://arxiv.org/abs/{self.arxiv}"


@dataclass(frozen=True)
class Preset:
    """One published objective."""

    name: PresetName
    title: str
    """What it is called in prose."""
    summary: str
    """One or two sentences: what is particular about it."""
    paper: Paper
    terms: Mapping[str, Value]
    """A value for every term."""
    where: Mapping[str, str]
    """For every term the section or equation, or "not stated; ..." with whose value it is, or "not part of it"."""
    settings: Mapping[str, str]
    """What else was published: for information, no option is set by it."""
    deviations: tuple[str, ...]
    """Where this differs from the paper, and why."""
    needs: Needs | None = None


NOT_PART = "not part of it"
_DDOF = "not stated; n - 1 as in TRL, verl and OpenRLHF"
_CORRECTION = "not part of it; for use with sampler_correction: AReaL's lower bound and verl's upper one"
_UNUSED_CLIP = "not part of it; PPO's customary 0.2, should you choose a surrogate that clips"


def preset(
    name: PresetName,
    title: str,
    summary: str,
    paper: Paper,
    terms: Mapping[str, tuple[Value, str]],
    *,
    settings: Mapping[str, str],
    deviations: tuple[str, ...],
    needs: Needs | None = None,
) -> Preset:
    """``terms`` has only what the paper speaks of, each with its place; the others are neutral."""
    values = {term: terms[term][0] if term in terms else info.neutral for term, info in TERMS.items()}
    usual: dict[str, str] = dict.fromkeys(("correction_low", "correction_high"), _CORRECTION)
    usual |= dict.fromkeys(("clip_low", "clip_high"), _UNUSED_CLIP)
    usual |= {"advantage_ddof": _DDOF} if values["advantage"] in HAS_STD else {}
    where = {term: terms[term][1] if term in terms else usual.get(term, NOT_PART) for term in TERMS}
    return Preset(name, title, summary, paper, values, where, settings, deviations, needs)

"""How the scores of several functions become one reward: gates, bounds, and a weighted sum."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from oncurve.rewards.functions import RewardError

TOTAL = "total"
"""The key of ``rewards.clip`` for the sum."""
_CONDITION = re.compile(r"\s*(\S.*?)\s*(?:>=\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gate:
    """What must hold before a function counts."""

    by: str
    """The function whose score, raw, is looked at."""
    at_least: float


@dataclass(frozen=True, slots=True)
class Combination:
    """Gates and bounds by the name of the function they concern; see ``combination``."""

    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])
    clip: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def counted(self, name: str, scores: Mapping[str, float | None]) -> float | None:
        """What the function ``name`` counts for one completion, before its weight: its score within its bounds, 0 where
        its gate does not hold, None (unscored) where it or the gate's function scored nothing.

        Args:
            scores: of all functions for that completion, raw.
        """
        score = scores[name]
        if score is None:
            return None
        if name in self.clip:
            score = _within(score, self.clip[name])
        gate = self.gates.get(name)
        if gate is None:
            return score
        condition = scores[gate.by]
        if condition is None:
            return None
        return score if condition >= gate.at_least else 0.0

    def total(self, weighted: Sequence[float]) -> float:
        """The sum within its bounds; NaN of nothing."""
        if not weighted:
            return math.nan
        total = math.fsum(weighted)
        return _within(total, self.clip[TOTAL]) if TOTAL in self.clip else total


def combination(gates: Mapping[str, str], clip: Mapping[str, Sequence[float]], names: Collection[str]) -> Combination:
    """Read gates and bounds as a recipe has them.

    Args:
        gates: by function, the condition under which it counts: ``format`` (that function gives at least 1.0), or
            ``format >= 0.5``.
        clip: by function, or for "total", the lowest and the highest that counts.
        names: of the functions that there are.

    Raises:
        RewardError: a name that is none of them, a condition that cannot be read, bounds the wrong way round.
    """
    found: dict[str, Gate] = {}
    for name, condition in gates.items():
        _need(name, names, "rewards.gates")
        match = _CONDITION.fullmatch(condition)
        by, bound = (match[1], match[2]) if match else (condition, None)
        _need(by, names, f"rewards.gates.{name} = {condition!r}")
        found[name] = Gate(by, 1.0 if bound is None else float(bound))
    bounds: dict[str, tuple[float, float]] = {}
    for name, (low, high) in ((name, tuple(pair)) for name, pair in clip.items()):
        if name != TOTAL:
            _need(name, names, "rewards.clip", TOTAL)
        if not low < high:
            raise RewardError(f"rewards.clip.{name} = [{low:g}, {high:g}]: give the lower bound first")
        bounds[name] = (float(low), float(high))
    return Combination(found, bounds)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return max(bounds[0], min(bounds[1], value))


def _need(name: str, names: Collection[str], where: str, *more: str) -> None:
    if name not in names:
        known = [*names, *more]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise RewardError(f"{where}: there is no function {name!r}{hint}; rewards.functions has {', '.join(known)}")

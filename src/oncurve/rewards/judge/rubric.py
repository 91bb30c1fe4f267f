"""What a judge grades by: criteria with descriptions, weights and scales, from TOML."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.types import OncurveError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_MOST_CRITERIA = 50
_TAKEN = ("outcome", "said")
"""What is recorded beside the criteria."""


class RubricError(OncurveError):
    """A rubric that cannot be used; the text names the file, the key and what would be right."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that is graded."""

    name: str
    description: str
    weight: float
    low: int | float
    high: int | float

    @property
    def whole(self) -> bool:
        """Both ends are integers: whole numbers are asked for. A fraction in between is taken all the same."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria, what the judge is told beside them, and the name under which grades are recorded."""

    name: str
    instructions: str
    criteria: tuple[Criterion, ...]

    def total(self, scores: Mapping[str, float]) -> float:
        """The weighted mean of the scores, each from 0 at the low end of its scale to 1 at the high end."""
        weights = math.fsum(each.weight for each in self.criteria)
        shares = (each.weight * ((scores[each.name] - each.low) / (each.high - each.low)) for each in self.criteria)
        return min(1.0, max(0.0, math.fsum(shares) / weights))

    def plain(self) -> dict[str, Any]:
        """All of it that a judge is told, as JSON has it. Weights are not: they change no grade."""
        criteria = [[each.name, each.description, each.low, each.high] for each in self.criteria]
        return {"instructions": self.instructions, "criteria": criteria}

    def schema(self) -> dict[str, Any]:
        """The answer as a JSON schema."""
        return {
            "type": "object",
            "properties": {each.name: _schema(each) for each in self.criteria},
            "required": [each.name for each in self.criteria],
            "additionalProperties": False,
        }


def _schema(criterion: Criterion) -> dict[str, Any]:
    low, high = criterion.low, criterion.high
    if isinstance(low, int) and isinstance(high, int) and high - low <= 100:
        # Servers that guide the decoding all know lists of values; bounds, only some.
        return {"type": "integer", "enum": list(range(low, high + 1))}
    return {"type": "integer" if criterion.whole else "number", "minimum": low, "maximum": high}


def load_rubric(source: str | Path | Mapping[str, Any]) -> Rubric:
    """From a TOML file (relative to the working directory), or from a mapping with the same keys.

    Raises:
        RubricError: no such file, no TOML, an unknown or a missing key, or a value that cannot be.
    """
    if isinstance(source, Mapping):
        return _rubric(source, "the rubric")
    if not isinstance(source, str | Path) or not str(source):
        raise RubricError(f"rubric = {source!r:.80}: give the path of a TOML file with [[criteria]]")
    path = Path(source).expanduser()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RubricError(f"rubric {path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RubricError(f"rubric {path} is not TOML: {error}") from error
    return _rubric(tree, f"rubric {path}", default_name=path.stem)


def _rubric(tree: Mapping[str, Any], where: str, default_name: str = "judge") -> Rubric:
    _known(tree, ("name", "instructions", "criteria"), where)
    name = tree.get("name", re.sub(r"[^A-Za-z0-9_-]", "_", default_name))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RubricError(f"{where}: name = {name!r:.80}; give letters, digits, - and _, a letter first")
    instructions = tree.get("instructions", "")
    if not isinstance(instructions, str):
        raise RubricError(f"{where}: instructions = {instructions!r:.80}; give text")
    listed = tree.get("criteria")
    if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= _MOST_CRITERIA:
        raise RubricError(f"{where}: give 1 to {_MOST_CRITERIA} [[criteria]], each with name, description and scale")
    criteria = tuple(_criterion(each, f"{where}, criterion {number}") for number, each in enumerate(listed, 1))
    names = [each.name for each in criteria]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise RubricError(f"{where}: two criteria are called {twice!r}")
    if not math.fsum(each.weight for each in criteria) > 0.0:
        raise RubricError(f"{where}: every weight is 0; at least one must count")
    return Rubric(name, instructions.strip(), criteria)


def _criterion(tree: Any, where: str) -> Criterion:
    if not isinstance(tree, Mapping):
        raise RubricError(f"{where} is {tree!r:.80}; give a table with name, description, weight and scale")
    _known(tree, ("name", "description", "weight", "scale"), where)
    name = tree.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RubricError(f"{where}: name = {name!r:.80}; give letters, digits, - and _, a letter first")
    if name in _TAKEN:
        raise RubricError(f"{where}: name = {name!r} stands for something else in the record; give another")
    description = tree.get("description")
    if not isinstance(description, str) or not description.strip():
        raise RubricError(f"{where} ({name}): description = {description!r:.80}; say what is good and what is bad")
    weight = tree.get("weight", 1.0)
    if not _is_number(weight) or not 0.0 <= weight <= 1e6:
        raise RubricError(f"{where} ({name}): weight = {weight!r:.80}; give a number from 0 to 1e6")
    scale = tree.get("scale")
    if (
        not isinstance(scale, list | tuple)
        or len(scale) != 2
        or not all(_is_number(end) and abs(end) <= 1e6 for end in scale)
        or not scale[0] < scale[1]
    ):
        raise RubricError(f"{where} ({name}): scale = {scale!r:.80}; give its two ends, such as [0, 10]")
    return Criterion(name, description.strip(), float(weight), scale[0], scale[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _known(tree: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in tree:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), list(known), n=1)
            hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
            raise RubricError(f"{where}: unknown key {key!r:.80}{hint}; there are {', '.join(known)}")

"""Literal numbers, computed once and independently, and how a case finds the code that must give them again.

A case is a JSON object with a title, prose and numbers. Its runner is found by the first letter of its id and the
fields it has, so that another case of a known kind needs no code; a runner gives a value for every number of the case
that is not one of its inputs. Nothing is passed over: a case without a runner fails, and so does a number without a
value.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLOSE = 1e-9
"""Relative, and absolute under 1: both sides are float64."""

PROSE = {"title", "note", "pitfall", "rule"}


class NotCovered(AssertionError):
    """A case, or a number of one, that no code here computes."""


@dataclass(frozen=True)
class Case:
    id: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.id} ({self.fields.get('title', 'without a title')})"

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def get(self, field: str, default: Any = None) -> Any:
        return self.fields.get(field, default)

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields that name a value."""
        return {name: value for name, value in self.fields.items() if name not in PROSE and not isinstance(value, str)}

    def said(self, pattern: str, default: float | None = None) -> float:
        """A number from the title: some cases give their inputs there. ``{}`` stands for the number."""
        found = re.search(pattern.replace("{}", r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)"), self["title"])
        if found is None and default is None:
            raise NotCovered(f"case {self}: the title gives no number where {pattern!r} expects one")
        return default if found is None else float(found[1])  # type: ignore[return-value]

    def listed(self, pattern: str = r"{}") -> list[float]:
        """A list of numbers from the title; ``{}`` stands for ``[1, 2, 3]``."""
        found = re.search(pattern.replace("{}", r"\[([-+.,\de\s]+)\]"), self["title"])
        if found is None:
            raise NotCovered(f"case {self}: the title gives no list where {pattern!r} expects one")
        return [float(number) for number in found[1].split(",")]


def path() -> Path:
    """``$ONCURVE_CASES`` if set, else the copy beside this file."""
    return Path(os.environ.get("ONCURVE_CASES") or Path(__file__).with_name("cases.json"))


def cases() -> list[Case]:
    return [Case(name, fields) for name, fields in json.loads(path().read_text(encoding="utf-8")).items()]


# -- runners -----------------------------------------------------------------------------------------------------------

Compute = Callable[[Case], Mapping[str, Any]]


@dataclass(frozen=True)
class Runner:
    letter: str
    needs: frozenset[str]
    inputs: frozenset[str]
    compute: Compute


RUNNERS: list[Runner] = []


def runner(letter: str, *needs: str, inputs: tuple[str, ...] = ()) -> Callable[[Compute], Compute]:
    """Register a function for the cases of ``letter`` that have all fields of ``needs``.

    ``inputs``: those fields, and others, that are given and not computed.
    """

    def register(compute: Compute) -> Compute:
        RUNNERS.append(Runner(letter, frozenset(needs), frozenset(inputs), compute))
        return compute

    return register


def runner_of(case: Case) -> Runner:
    """The one that knows most of the case's fields."""
    fitting = [each for each in RUNNERS if case.id.startswith(each.letter) and each.needs <= case.fields.keys()]
    if not fitting:
        raise NotCovered(
            f"case {case} has no runner: none of letter {case.id[0]} takes the fields {', '.join(case.numbers)}"
        )
    return max(fitting, key=lambda each: len(each.needs))


@dataclass(frozen=True)
class Within:
    """A value with a bound of its own, for a literal that was found by finite differences or in float32."""

    value: Any
    bound: float


class Anything:
    """A number that describes what others do, and that nothing of ours should give: the reason stands beside it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def problems(case: Case) -> list[str]:
    """What is wrong with the values of ``case``; empty if all agree."""
    found = runner_of(case)
    computed = found.compute(case)
    missing = case.numbers.keys() - computed.keys() - found.inputs
    if missing:
        raise NotCovered(f"case {case}: nothing computes {', '.join(sorted(missing))}")
    return [
        problem for name in case.numbers if name in computed for problem in differing(name, case[name], computed[name])
    ]


def differing(name: str, expected: Any, got: Any, bound: float = CLOSE) -> Iterator[str]:
    """Where ``got`` is not ``expected``, leaf by leaf."""
    if isinstance(got, Anything):
        return
    if isinstance(got, Within):
        yield from differing(name, expected, got.value, got.bound)
        return
    if isinstance(got, Tensor):
        got = got.tolist()
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key in expected:
            if key not in got:
                raise NotCovered(f"nothing computes {name}.{key}")
            yield from differing(f"{name}.{key}", expected[key], got[key], bound)
    elif isinstance(expected, list) and isinstance(got, list | tuple):
        if len(expected) != len(got):
            yield f"{name} has {len(expected)} entries, computed {len(got)}"
            return
        for index, pair in enumerate(zip(expected, got, strict=True)):
            yield from differing(f"{name}[{index}]", *pair, bound)
    elif isinstance(expected, list | Mapping) or isinstance(got, list | Mapping):
        yield f"{name} is {expected!r}, computed {got!r}"
    elif not abs(float(expected) - float(got)) <= bound * max(1.0, abs(float(expected))):
        yield f"{name} is {expected!r}, computed {float(got)!r}"


# -- words of the cases ------------------------------------------------------------------------------------------------


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ddof_and_eps(field: str) -> tuple[int, float] | None:
    """``trl_ddof1_eps1e4`` -> (1, 1e-4); no eps is 0."""
    found = re.search(r"ddof([01])(?:_eps1e(\d+))?$", field)
    return None if found is None else (int(found[1]), 10.0 ** -int(found[2]) if found[2] else 0.0)


def decimal(digits: str) -> float:
    """``099`` -> 0.99, ``1`` -> 1.0: how field names write numbers."""
    return float(digits) if len(digits) == 1 else float(f"{digits[0]}.{digits[1:]}")


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at)[0]

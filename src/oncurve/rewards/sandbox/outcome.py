"""What came of a run, and whether a returned value is the right one: decided on our side of the border."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from oncurve.rewards.sandbox.inside import wire
from oncurve.rewards.sandbox.workers import Report

Status = Literal["ok", "exception", "timeout", "memory", "output", "killed", "infra_error"]
"""``ok``: it ran to its end, right or not. ``infra_error``: nobody can say, and the candidate is not to blame."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that was run."""

    status: Status
    stdout: bytes
    stderr: str
    """The last of what it wrote there."""
    cpu_seconds: float | None
    """Processor time with its share of the set-up; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make of a candidate's function: of a function ``name``, or of that method of its class ``Solution``."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was made. ``wire`` is what came back, unread: see ``same``."""

    status: Status
    wire: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Tested:
    """A test in code that was run: ``passed`` is whether it came to its end."""

    status: Status
    passed: bool
    error: str = ""


def status_of(report: Report, said: str) -> Status:
    """The status of a child that ended, from the worker's report; of a child that failed by itself what it ``said``
    tells running out of memory from another exception, both being its own failure."""
    if report.why in ("cpu", "wall"):
        return "timeout"
    if report.why == "output":
        return "output"
    if report.why == "threads" or report.exit < 0:
        return "killed"
    if report.exit == 0:
        return "ok"
    return "memory" if "MemoryError" in said[-500:] else "exception"


def same(expected: Any, got: Any) -> bool:
    """Is the value that came over the wire (see ``oncurve.rewards.sandbox.inside.wire``) the ``expected`` one?

    As Python's ``==``, but: a tuple equals a list of the same items, since JSON has no tuples; two floats, or a float
    and an integer, are equal within 1e-9 of their size (or 1e-12); NaN equals nothing. Nothing that a candidate chose
    is put into a set or dict before there is known to be no more of it than is expected.
    """
    if isinstance(got, list):
        try:
            return _same_container(expected, got)
        except (wire.WireError, RecursionError):
            return False
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, str) or isinstance(got, str):
        return isinstance(expected, str) and expected == got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return _same_number(expected, got)
    return False


def _same_number(expected: int | float, got: int | float) -> bool:
    if isinstance(expected, int) and isinstance(got, int):
        return expected == got
    try:
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12)
    except OverflowError:  # an integer beyond the floats
        return False


def _same_container(expected: Any, got: list[Any]) -> bool:
    tag, items = (got[0], got[1:]) if got and isinstance(got[0], str) else ("", [])
    match expected:
        case list() | tuple():
            return tag in ("l", "t") and len(items) == len(expected) and all(map(same, expected, items))
        case dict():
            return tag == "d" and len(items) == 2 * len(expected) and _same_dict(expected, items)
        case set() | frozenset():
            return tag in ("s", "z") and len(items) == len(expected) and _same_set(expected, items)
        case int() | float() | complex() | bytes():
            if tag not in ("i", "f", "b", "c"):
                return False
            value = wire.decode(got)
            if isinstance(expected, int | float) and isinstance(value, int | float):
                return _same_number(expected, value)
            return type(expected) is type(value) and expected == value
        case _:
            return False


def _same_set(expected: set[Any] | frozenset[Any], items: Sequence[Any]) -> bool:
    found = set()
    for item in items:
        value = wire.decode(item)
        if not _hashable(value) or value not in expected:
            return False
        found.add(value)
    return len(found) == len(expected)


def _same_dict(expected: dict[Any, Any], items: Sequence[Any]) -> bool:
    found = set()
    for wired_key, wired_value in zip(items[::2], items[1::2], strict=True):
        key = wire.decode(wired_key)
        if not _hashable(key) or key not in expected or not same(expected[key], wired_value):
            return False
        found.add(key)
    return len(found) == len(expected)


def _hashable(value: Any) -> bool:
    return not isinstance(value, list | dict | set)


def same_output(expected: str, got: bytes) -> bool:
    """Is this the expected standard output? Line by line and word by word: blanks at the ends of lines, how many blanks
    stand between words, and empty lines at the end do not count; ``ab`` is not ``a b``, and ``1.0`` is not ``1``."""
    try:
        text = got.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return _words(expected) == _words(text)


def _words(text: str) -> list[list[str]]:
    return [line.split() for line in text.rstrip().splitlines()]

"""Where the steps of a completion end: after a text such as a newline or a tag, or where a function says."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from oncurve.rewards.pool.inner import load
from oncurve.rewards.values import as_list, item, shown
from oncurve.types import OncurveError

Splitter = Callable[[str], list[int]]
"""From a text to the ends of its steps, in characters, exclusive, rising. No steps: an empty list."""


def step_splitter(steps: str, option: str = "reward_model.steps") -> Splitter:
    """What ``steps``, the value of ``option``, stands for.

    A text that ends a step, such as a newline or ``</step>``, belongs to it; what is left at the end is a step too.
    What is blank but for that text is no step, and goes to the one after it. ``path/to/file.py:function`` or
    ``oncurve.module:function`` is called with a completion's text, in this process, and returns the ends.

    Raises OncurveError if there is no such function; the splitter itself does so if that fails, or returns something
    else.

    >>> step_splitter(";")("a; b;;c ")
    [2, 5, 8]
    """
    if not names_function(steps):
        return lambda text: _after(text, steps)
    source, _, attribute = steps.rpartition(":")
    try:
        with load.process_state_kept():
            function = load.load(source, attribute, {})
    except load.LoadError as error:
        raise OncurveError(f"{option} = {steps!r}: {error}") from error
    except load.ImportFailed as error:
        raise OncurveError(f"{option} = {steps!r} failed on import: {error.__cause__!r}") from error

    def split(text: str) -> list[int]:
        try:
            found = function(text)
        except Exception as error:
            where = load.line_of(error)
            raise OncurveError(f"{option} = {steps!r} failed: {where}{type(error).__name__}: {error}") from error
        return _checked(found, text, f"{option} = {steps!r}")

    return split


def names_function(steps: str) -> bool:
    """Whether it is a function that says where steps end, and not a text that ends them."""
    source, colon, attribute = steps.rpartition(":")
    return bool(colon) and attribute.isidentifier() and (source.endswith(".py") or source.startswith("oncurve."))


def is_trusted(steps: str) -> bool:
    """Whether it may be called because a model's own file says so: it is no function, or one of Oncurve's."""
    return not names_function(steps) or steps.startswith("oncurve.")


def _after(text: str, mark: str) -> list[int]:
    ends: list[int] = []
    begin = 0
    while begin < len(text):
        found = text.find(mark, begin)
        end = len(text) if found < 0 else found + len(mark)
        if text[begin : end if found < 0 else found].strip():
            ends.append(end)
        begin = end
    return ends


def _checked(found: Any, text: str, name: str) -> list[int]:
    ends: Sequence[Any] | None = as_list(found)
    if ends is None:
        raise OncurveError(f"{name} returned {shown(found)}; return a list of the ends of the steps, in characters")
    checked: list[int] = []
    for number, given in enumerate(ends):
        end, least = item(given), checked[-1] + 1 if checked else 1
        if isinstance(end, bool) or not isinstance(end, numbers.Integral) or not least <= int(end) <= len(text):
            raise OncurveError(
                f"{name}: step {number} ends at {shown(given)}; give the number of characters up to its end, from "
                f"{least} to {len(text)}"
            )
        checked.append(int(end))
    return checked

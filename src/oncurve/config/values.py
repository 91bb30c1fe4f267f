"""What sections are made of: bounded numbers, and the section itself, which takes no key that it does not know."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]

MOST_ROWS = 1_000_000
"""All rows of a data set are held in memory, about a kilobyte each, and so are all completions of an iteration."""
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]

TASKS = ("letters", "chain", "countdown", "strings", "functions")
"""The generated tasks, for `task:NAME` and `embedded:NAME`."""
GENERATED = ("task:", "reasoning_gym:")
"""How a data set begins of which as many rows are made as wanted."""
EMBEDDED_CONTEXT = 128
"""Tokens of prompt and completion that an embedded model can hold."""


def count(items: list[Any], one: str) -> str:
    return f"{len(items)} {one}" if len(items) == 1 else f"{len(items)} {one}s"


def as_tuple(given: Any) -> Any:
    """A list, which is what a file has, where strict checking wants a tuple."""
    return tuple(cast(list[Any], given)) if isinstance(given, list) else given


class Section(BaseModel):
    """Unknown keys are refused, values are never changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

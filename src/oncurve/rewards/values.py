"""What reward functions give back, as Python's own values, and shown in a message."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")
PerCompletion = tuple[tuple[T, ...], ...]
"""``[P][G]``: one value for each completion of each prompt, in the order of the groups."""

MOST_FAILED = 0.2
"""The share of a batch that a function may leave unscored by failing; with more the run stops."""


def as_list(values: Any) -> list[Any] | None:
    """A list, a tuple, or a one-dimensional array or tensor (whatever has ``tolist``) as a list; else None."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return list(values) if isinstance(values, list | tuple) else None


def item(value: Any) -> Any:
    """A scalar of numpy or torch as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def shown(value: Any) -> str:
    """Short, with its type."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} (a {type(value).__name__})"

"""One comparison of what must be the same, and how far rounding may carry it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Bounds:
    """What rounding alone stays below, by kind of comparison."""

    gradient: float
    """Norm of the difference of two gradients, relative to the gradient's."""
    logprobs: float
    """Nats, on the worst token."""
    engine: float
    """The same against an engine, which records in float32 and may compute in it."""


# Above what is measured on models from two layers to SmolLM2-135M: 1e-6 to 1e-4 in float32, 0.08 (and 0.24 nats) in
# bfloat16. In float64 it is 4e-15, but the norms of most families work in float32 all the same, and round otherwise
# what has another scale.
_USUAL = {
    torch.float64: Bounds(1e-6, 1e-6, 1e-4),
    torch.float32: Bounds(1e-3, 1e-3, 1e-3),
    torch.float16: Bounds(0.02, 0.05, 0.05),
    torch.bfloat16: Bounds(0.2, 0.5, 0.5),
}


def bounds_for(dtype: torch.dtype, given: float | None) -> Bounds:
    return _USUAL[dtype] if given is None else Bounds(given, given, given)


@dataclass(frozen=True)
class Check:
    """One comparison."""

    name: str
    error: float | None
    """None: it could not be made; ``hint`` says why."""
    bound: float
    unit: str
    """``relative`` or ``nats``."""
    hint: str
    """What it means if the two differ."""
    counts: bool = True
    """False: about something that this recipe does not do."""

    @property
    def same(self) -> bool:
        return self.error is None or self.error <= self.bound  # nan is not the same

    @property
    def passed(self) -> bool:
        return self.same or not self.counts

    @property
    def verdict(self) -> str:
        if self.error is None:
            return f"not made: {self.hint}"
        if self.counts:
            return "same" if self.same else "DIFFERS"
        return "same, not used" if self.same else "differs, not used"

"""Memory that adapts: a forward pass that does not fit is halved, and the step is done again with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from oncurve.train.memory import is_out_of_memory

T = TypeVar("T")


class TokenBudget:
    """Padded tokens in one forward pass: what the recipe says, and less once memory has run out."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}

    def fit(
        self,
        option: str,
        wanted: int,
        longest: int,
        attempt: Callable[[int], T],
        *,
        undo: Callable[[], None],
        say: Callable[[str], None],
    ) -> T:
        """``attempt(budget)`` with the budget ``wanted``, or what has proved to fit; after running out of memory
        ``undo()`` and again with half of it, which then holds for the rest of the run and is said.

        ``longest`` is the longest row: a smaller budget would cut nothing, and the error is raised.
        """
        while True:
            budget = min(wanted, self._most.get(option, wanted))
            try:
                return attempt(budget)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or budget <= longest:
                    raise
            # Out here nobody holds on to the failed attempt's tensors any more.
            undo()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._most[option] = max(longest, budget // 2)
            say(
                f"out of memory with {budget} tokens in a forward pass ({option}): from here on {self._most[option]}, "
                "with the same result"
            )

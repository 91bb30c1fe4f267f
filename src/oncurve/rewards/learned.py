"""``reward_model:PATH`` in ``rewards.functions``: what is known of it before its model is loaded. No torch.

The model itself is loaded by ``oncurve.train.learned_rewards`` and takes this function's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncurve.types import OncurveError

LEARNED = "reward_model:"
"""Before the directory of a reward model."""


@dataclass(frozen=True, slots=True)
class ModelToLoad:
    """A reward function whose parameters are those of the one that takes its place."""

    path: str

    def __call__(
        self, *, prompts: list[Any], completions: list[Any], dtype: str = "float32", steps: str | None = None
    ) -> list[float | None]:
        """``dtype``: of the weights. ``steps``: what ends a step, as `reward_model.steps`; default: what the model was
        trained with. Raises OncurveError: only a run, ``oncurve eval`` and ``oncurve.train.learned_rewards`` load it.
        """
        if not completions:
            return []
        raise OncurveError(f"{LEARNED}{self.path} has not been loaded; it is by a run and by `oncurve eval`")

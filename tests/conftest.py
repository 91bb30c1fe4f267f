"""A whole run in about two seconds: the embedded letters model on a handful of questions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oncurve.config import Recipe
from oncurve.recipe import recipe_from_dict
from oncurve.terminal import Terminal

Tiny = Callable[..., Recipe]

TINY: dict[str, dict[str, Any]] = {
    "run": {"name": "tiny", "seed": 3, "threads": 1},
    "model": {"path": "embedded:letters"},
    "data": {"train": "task:letters", "size": 40, "eval_size": 6},
    "sampling": {"max_new_tokens": 12},
    "rewards": {"functions": ["accuracy", "format"], "weights": [1.0, 0.2]},
    "sft": {"steps": 12, "size": 64, "rows_per_step": 8, "learning_rate": 3e-3},
    "grpo": {"iterations": 4, "prompts_per_iteration": 3, "group_size": 4, "learning_rate": 1e-3, "kl_coef": 0.02},
    "eval": {"every": 2, "samples": 2, "pass_at": [1, 2]},
    "checkpoint": {"every": 1},
}


@pytest.fixture
def quiet() -> Terminal:
    return Terminal(quiet=True)


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """``tiny(grpo={"epochs": 2}, sft=None)``: the tiny recipe in a directory of its own, with sections changed."""
    torch.set_num_threads(1)

    def build(**sections: Any) -> Recipe:
        merged: dict[str, Any] = {name: dict(section) for name, section in TINY.items()}
        merged["run"]["dir"] = str(tmp_path / "runs")
        for name, changes in sections.items():
            if changes is None:
                del merged[name]
            else:
                merged[name] = merged.get(name, {}) | changes
        return recipe_from_dict(merged)

    return build

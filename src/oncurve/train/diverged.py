"""What is said of a policy that an update has made useless."""

from __future__ import annotations

from oncurve.config import Recipe
from oncurve.train.position import Position
from oncurve.types import OncurveError


def diverged(recipe: Recipe, position: Position, error: FloatingPointError) -> OncurveError:
    """``error``, met after ``position``, with the options that help."""
    stage = position.stage
    config = recipe.sft if stage == "sft" else recipe.grpo
    assert config is not None
    done = f"step {position.step}" if stage == "sft" else f"iteration {position.iteration}"
    precision = "" if recipe.model.dtype == "float32" else ", or model.dtype = float32"
    return OncurveError(
        f"{stage}, after {done}: {error}. What usually helps is a new run (--run.name NAME) with a lower "
        f"{stage}.learning_rate ({config.learning_rate:g}) or {stage}.max_grad_norm ({config.max_grad_norm:g})"
        f"{precision}"
    )

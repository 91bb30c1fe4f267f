"""Does the gradient depend on what it must not depend on? One step of the user's own recipe, taken in several ways.

A few prompts are answered by the policy, the answers are cut to different lengths and given made-up rewards that
differ, and the trainer's own step makes the gradient of them: as the recipe cuts the batch, row by row, in another
order, with more padding, packed. The same must come out every time. What differs is a fault, or rounding; a bound for
the precision of the weights tells the one from the other. Nothing is trained and nothing is written.
"""

from __future__ import annotations

from oncurve.config import Sft
from oncurve.train.conform.check import Check, bounds_for
from oncurve.train.conform.gradients import grpo_checks, sft_checks
from oncurve.train.conform.logprobs import logprob_checks
from oncurve.train.conform.made_up import sampled_rows
from oncurve.train.setup import Parts

__all__ = ["Check", "conform"]


def conform(parts: Parts, bound: float | None = None) -> list[Check]:
    """All checks on the policy, the prompts and the stages of ``parts``. ``bound`` takes the place of every bound.

    Raises OncurveError if nothing can be compared: the gradient of a step is zero or not finite.
    """
    grpo, sft = parts.recipe.grpo, parts.recipe.sft
    bounds = bounds_for(next(parts.lm.module.parameters()).dtype, bound)
    rows = sampled_rows(parts)
    checks = [] if grpo is None else grpo_checks(parts, grpo, rows, bounds.gradient)
    if sft is not None or grpo is None:
        checks += sft_checks(parts, sft or Sft(), rows, bounds.gradient)
    return checks + logprob_checks(parts, rows, bounds)

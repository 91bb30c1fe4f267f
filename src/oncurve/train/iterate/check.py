"""What is refused of a recipe before `oncurve iterate` begins."""

from __future__ import annotations

from oncurve.checks import rewards_of
from oncurve.config import Recipe
from oncurve.types import OncurveError


def check_iterate(recipe: Recipe) -> None:
    """Raises OncurveError, naming the option, for a recipe that cannot be iterated."""
    for section in ("iterate", "grpo", "reward_model"):
        if getattr(recipe, section) is None:
            raise OncurveError(f"the recipe has no [{section}] section, which `oncurve iterate` needs; add one")
    assert recipe.iterate is not None
    assert recipe.grpo is not None
    assert recipe.reward_model is not None
    if recipe.reward_model.kind != "pointwise":
        raise OncurveError(
            f'reward_model.kind is "{recipe.reward_model.kind}": `oncurve iterate` labels single completions, which is '
            'what "pointwise" learns from; set it to that'
        )
    if recipe.reward_model.data is not None:
        raise OncurveError(
            f"reward_model.data is {recipe.reward_model.data!r}, but `oncurve iterate` makes the rows itself, from "
            "what the policy samples; leave it out"
        )
    if recipe.grpo.advantage == "process":
        raise OncurveError(
            'grpo.advantage is "process", and the reward model of `oncurve iterate` judges whole completions; choose '
            "another"
        )
    _check_label(recipe, recipe.iterate.label)
    for option, value in (("rewards.gates", recipe.rewards.gates), ("rewards.clip", recipe.rewards.clip)):
        if value:
            raise OncurveError(
                f"{option} is about how functions are rewarded, and under `oncurve iterate` the reward model alone is; "
                "leave it out"
            )
    if not recipe.data.eval_size or not recipe.reward_model.held_out:
        option = "data.eval_size" if not recipe.data.eval_size else "reward_model.held_out"
        raise OncurveError(
            f"{option} is 0, but held-out prompts are what a reward model is judged on after each outer iteration; "
            "set it to 50 or more"
        )


def _check_label(recipe: Recipe, label: str) -> None:
    """The label is a function whose name is known; user's functions have theirs only once they are loaded."""
    names = [measure.name for measure in rewards_of(recipe)[0]]
    if label not in names:
        raise OncurveError(
            f"iterate.label is {label!r}, which is none of the recipe's functions ({', '.join(names)}); add it to "
            "rewards.metrics, or name one of these"
        )

"""Every option there is: one typed, frozen section per concern. No torch here.

A recipe is read, merged with flags and checked by ``oncurve.recipe``; this package only says what a recipe may hold.
The list of options is frozen by ``tests/architecture/config_surface.txt``.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator

from oncurve.config.sections import Checkpoint, Data, Eval, Model, Rewards, Run, Sampling, usual_pass_at
from oncurve.config.training import Critic, Grpo, Iterate, Optimisation, RewardTraining, Sft
from oncurve.config.values import EMBEDDED_CONTEXT, GENERATED, MOST_ROWS, TASKS, Section

__all__ = [
    "EMBEDDED_CONTEXT",
    "GENERATED",
    "MAY_CHANGE_ON_RESUME",
    "MOST_ROWS",
    "TASKS",
    "Checkpoint",
    "Critic",
    "Data",
    "Eval",
    "Grpo",
    "Iterate",
    "Model",
    "Optimisation",
    "Recipe",
    "RewardTraining",
    "Rewards",
    "Run",
    "Sampling",
    "Section",
    "Sft",
    "leaves",
    "usual_pass_at",
]


class Recipe(Section):
    """One run, whole. Stages present are run in order: `[sft]`, then `[grpo]`."""

    run: Run = Run()
    model: Model
    data: Data
    sampling: Sampling = Sampling()
    rewards: Rewards = Rewards()
    sft: Sft | None = None
    grpo: Grpo | None = None
    critic: Critic = Critic()
    reward_model: RewardTraining | None = None
    iterate: Iterate | None = None
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()

    def source(self, use: Literal["train", "eval", "sft", "reward_model"]) -> tuple[str, str]:
        """The option that says where the rows for ``use`` come from, and its value."""
        if use == "reward_model" and self.reward_model is not None and self.reward_model.data is not None:
            return "reward_model.data", self.reward_model.data
        if use == "eval" and self.data.eval is not None:
            return "data.eval", self.data.eval
        if use == "sft" and self.sft is not None and self.sft.data is not None:
            return "sft.data", self.sft.data
        return "data.train", self.data.train

    @property
    def held_out_apart(self) -> bool:
        """The held-out prompts come from somewhere else, and are not split off the training prompts."""
        return self.data.eval is not None or self.data.train.startswith("task:")

    @property
    def sources(self) -> list[str]:
        """Every data set that the recipe names."""
        return [source for source in (self.data.train, self.data.eval, self.sft and self.sft.data) if source]

    @property
    def eval_max_new_tokens(self) -> int:
        """`eval.max_new_tokens` with its default."""
        return self.eval.max_new_tokens or self.sampling.max_new_tokens

    @model_validator(mode="after")
    def _combined_as_a_whole(self) -> Self:
        if self.grpo is not None and self.grpo.advantage == "process" and (self.rewards.gates or self.rewards.clip):
            raise ValueError(
                "rewards.gates and rewards.clip are about whole completions; with grpo.advantage = process every step "
                "has its own reward, so leave them out"
            )
        return self

    @model_validator(mode="after")
    def _consistent_numbers(self) -> Self:
        if self.grpo is not None and self.grpo.minibatches > self.grpo.prompts_per_iteration:
            raise ValueError(
                f"grpo.minibatches ({self.grpo.minibatches}) is more than grpo.prompts_per_iteration "
                f"({self.grpo.prompts_per_iteration}); a minibatch needs at least one prompt's worth of completions"
            )
        if self.grpo is not None and self.grpo.prompts_per_iteration * self.grpo.group_size > MOST_ROWS:
            raise ValueError(
                f"grpo.prompts_per_iteration ({self.grpo.prompts_per_iteration}) x grpo.group_size "
                f"({self.grpo.group_size}) are more than {MOST_ROWS} completions in an iteration, which are all "
                "held in memory; lower one of them"
            )
        too_many = [k for k in self.eval.pass_at if self.eval.samples and k > self.eval.samples]
        if too_many:
            fitting = [k for k in self.eval.pass_at if k <= self.eval.samples] or [1]
            raise ValueError(
                f"eval.pass_at asks for k={too_many[0]} of only eval.samples={self.eval.samples} samples; raise "
                f"eval.samples, or set eval.pass_at to {fitting}"
            )
        return self


def leaves(section: type[BaseModel] = Recipe, prefix: str = "") -> dict[str, Any]:
    """Every option by its dotted name, with its pydantic field: the whole surface of the configuration."""
    found: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        inner = _section_of(info.annotation)
        if inner is not None:
            found |= leaves(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    return found


def _section_of(annotation: Any) -> type[Section] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


# Only these may differ when a run goes on: place, memory, speed, rounding. Anything else would make it another run.
MAY_CHANGE_ON_RESUME = frozenset(
    {
        "run.dir",
        "run.name",
        "run.threads",
        "run.device",
        "checkpoint.every",
        "checkpoint.keep_last",
        "sampling.max_rows",
        "model.gradient_checkpointing",
        "sft.microbatch_tokens",
        "sft.packing",
        "grpo.microbatch_tokens",
        "reward_model.microbatch_tokens",
        "iterate.iterations",
    }
)
# And there may be more `grpo.iterations`, if the learning rate does not depend on their number: ``train.directory``.

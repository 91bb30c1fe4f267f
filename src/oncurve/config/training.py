"""What is trained and how: fine-tuning, GRPO and its kin, the critic beside it, reward models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from oncurve.config.values import (
    MOST_ROWS,
    Beta,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rows,
    Section,
    as_tuple,
)
from oncurve.presets import (
    Advantage,
    Aggregation,
    Correction,
    Kl,
    PresetName,
    Ratio,
    Surrogate,
    completed,
    refusal,
    terms_of,
)


class Optimisation(Section):
    """What SFT and GRPO have in common: AdamW, warm-up and schedule."""

    learning_rate: Annotated[float, Field(ge=0.0, le=1e6)] = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    final_fraction: Fraction = 0.1
    """The share of the learning rate that is left at the end of a linear or cosine schedule."""
    weight_decay: NonNegativeFloat = 0.0
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(as_tuple)] = (0.9, 0.999)
    max_grad_norm: PositiveFloat = 1.0
    microbatch_tokens: PositiveInt = 8192
    """Padded tokens in one forward pass. Changes memory and speed, never the gradient."""


class Sft(Optimisation):
    """Supervised fine-tuning on prompt and completion; gives the reference that GRPO starts from."""

    data: str | None = None
    """As `data.train`; default: `data.train`, or the demonstrations of a `task:`."""
    size: Rows = 2000
    """How many demonstrations a generated data set makes."""
    steps: PositiveInt | None = None
    """Optimizer steps. Give this or `epochs`."""
    epochs: PositiveInt = 1
    """Passes over the demonstrations, when `steps` is not given."""
    rows_per_step: PositiveInt = 16
    packing: bool = False
    """Put demonstrations end to end in rows of `microbatch_tokens` instead of padding them; the same gradient."""


class Grpo(Optimisation):
    """Group Relative Policy Optimization and its kin: a preset, whose terms can be overridden one by one.

    What a recipe does not give comes from the preset; the defaults here are those of the default preset. What the terms
    and their choices mean stands in ``oncurve.presets``; ``oncurve presets NAME`` prints it.
    """

    preset: PresetName = "deepseekmath"
    """A published objective: the source of every term below that is not given. `oncurve presets` lists them."""
    advantage: Advantage = "group_normalised"
    """How much better than others a completion is."""
    advantage_ddof: Literal[0, 1] = 1
    """Standard deviations divide by n - 1 (1) or by n (0)."""
    advantage_cap: PositiveFloat | None = None
    """Process supervision: bound of the advantage's size."""
    step_cap: PositiveInt | None = None
    """Process supervision: only so many first steps of a completion count."""
    ratio: Ratio = "token"
    """Policy against old policy: of each token, of the completion, or none."""
    surrogate: Surrogate = "clip"
    """The loss per token from ratio and advantage."""
    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]; with `gmpo` the log-ratio to [-clip_low, clip_high]."""
    ratio_cap: PositiveFloat | None = None
    """What `dual_clip`, `two_sided` and `cispo` need: the bound of the loss (dual_clip) or of the ratio itself."""
    aggregation: Aggregation = "sequence_mean"
    """From tokens to one number. `length_budget` divides by `sampling.max_new_tokens`."""
    kl: Kl = "k3"
    """Estimator of the distance to the reference, in the loss, or `k1_in_reward`."""
    kl_coef: NonNegativeFloat = 0.04
    """0 never builds the reference."""
    kl_target: PositiveFloat | None = None
    """Adapts kl_coef so that the kl comes to this, in nats per token."""
    allow_k1_in_loss: bool = False
    """Allows `kl = "k1"`, which has no pull to the reference, for showing what it does."""
    sampler_correction: Correction = "none"
    """Importance weights between the engine's policy and the trainer's old one."""
    correction_low: NonNegativeFloat = 0.5
    correction_high: PositiveFloat = 2.0
    """The bounds of these weights. The `truncate_` ones have an upper one only."""
    off_policy_bound: PositiveFloat | None = None
    """Leaves out a completion with a negative advantage that the policy has moved this far from, in nats per token."""
    dynamic_sampling: NonNegativeInt = 0
    """Groups without variance: 0 keeps them, 1 drops them from the update, n samples up to n times to replace them."""
    overlong_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The last share of `sampling.max_new_tokens`, over which the reward falls by up to 1."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of the entropy, which the loss rewards."""
    iterations: PositiveInt = 100
    """Sampling rounds."""
    prompts_per_iteration: PositiveInt = 16
    group_size: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 8
    """Completions of a prompt. 1 only where they are not compared with one another: advantage `gae` or
    `batch_normalised`."""
    epochs: PositiveInt = 1
    """Passes over each sampled batch."""
    minibatches: PositiveInt = 1
    """Optimizer steps in one epoch."""
    train_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Train on this share of each group's completions, those with the largest |advantage| (1.0: all, as in the
    papers)."""

    @model_validator(mode="before")
    @classmethod
    def _from_the_preset(cls, given: Any) -> Any:
        return completed(cast(dict[str, Any], given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _terms_that_go_together(self) -> Self:
        reason = refusal(self.preset, terms_of(self))
        if reason is not None:
            raise ValueError(reason)
        if self.group_size == 1 and self.advantage not in ("gae", "batch_normalised"):
            raise ValueError(
                f"group_size is 1, and with advantage {self.advantage} a completion is compared with the others of its "
                "group: a group of one has no other, so that its advantage is undefined; set it to 2 or more"
            )
        if self.train_fraction < 1 and self.advantage == "gae":
            raise ValueError(
                f"train_fraction is {self.train_fraction:g}: with a critic every token has an advantage of its own, "
                "and no completion says least; set it to 1"
            )
        return self


class Critic(Section):
    """The critic of `grpo.advantage = "gae"`. Its optimizer is as the policy's, but for the learning rate."""

    kind: Literal["separate", "head"] = "separate"
    """`separate`: a model of its own that begins as the policy; `head`: a linear layer on what the policy computes."""
    learning_rate: Annotated[float, Field(ge=0.0, le=1e6)] = 1e-5
    gamma: Fraction = 1.0
    """Discount of one token."""
    gae_lambda: Fraction = 1.0
    """Of the policy's advantages: 1 trusts what was earned, 0 what the critic expects."""
    value_lambda: Fraction = 1.0
    """Of the returns that the critic learns."""
    value_clip: PositiveFloat = 0.2
    """How far a value may move from what it was before the iteration, in units of reward."""
    pretrain_iterations: NonNegativeInt = 0
    """First iterations in which the critic alone is trained."""


class RewardTraining(Optimisation):
    """A reward model, trained by `oncurve reward-model`."""

    kind: Literal["pairwise", "pointwise", "process"] = "pairwise"
    """`pairwise`: Bradley-Terry on chosen and rejected completions; `pointwise`: is a completion right; `process`: is
    each step of it."""
    path: str | None = None
    """The model it begins as, a language model or a reward model; default: `model.path`."""
    data: str | None = None
    """A .jsonl, .csv or .parquet file, or `hub:NAME`; default: `data.train`."""
    held_out: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 100
    """So many prompts, with all their rows, are kept for evaluation."""
    max_tokens: PositiveInt | None = None
    """Prompt and completion are cut at the end to so many tokens; default: the model's context."""
    steps: Annotated[str, Field(min_length=1)] = "\n"
    """`process`: the text that ends a step, or `path/to/file.py:function` from a text to the ends of its steps."""
    margin: NonNegativeFloat = 0.0
    """`pairwise`: how far the scores of a pair should lie apart, for rows without a column `margin`."""
    centring: NonNegativeFloat = 0.0
    """`pairwise`: pulls the scores of a pair towards 0; 0.01 is usual."""
    epochs: PositiveInt = 1
    rows_per_step: PositiveInt = 16


class Iterate(Section):
    """Iterative GRPO, run by `oncurve iterate`: `[grpo]` and `[reward_model]` in turns."""

    iterations: PositiveInt = 2
    """Outer iterations: in each the reference becomes the policy, and there are `grpo.iterations` rounds of GRPO."""
    label: str = "accuracy"
    """The function of `rewards.functions` or `rewards.metrics` whose score is a completion's label, from 0 to 1. The
    policy is rewarded by the reward model alone; all these functions are only measured."""
    prompts: Rows = 128
    """So many training prompts, `grpo.group_size` completions of each, are labelled for the reward model each time."""
    replay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """The share of earlier outer iterations' rows among those that the reward model is trained on."""
    refresh: bool = True
    """False: the reward model stays as it was after its first training."""

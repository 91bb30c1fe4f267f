"""Every option there is: one typed, frozen section per concern. No torch here.

A recipe is read, merged with flags and checked by ``oncurve.recipe``; this module only says what a recipe may hold.
The list of options is frozen by ``tests/architecture/config_surface.txt``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

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

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]

MOST_ROWS = 1_000_000
"""All rows of a data set are held in memory, about a kilobyte each, and so are all completions of an iteration."""
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]

TASKS = ("letters", "chain", "countdown", "strings", "functions")
"""The generated tasks, for `task:NAME` and `embedded:NAME`."""
GENERATED = ("task:", "reasoning_gym:")
"""How a data set begins of which as many rows are made as wanted."""
EMBEDDED_CONTEXT = 128
"""Tokens of prompt and completion that an embedded model can hold."""


def _count(items: list[Any], one: str) -> str:
    return f"{len(items)} {one}" if len(items) == 1 else f"{len(items)} {one}s"


def _as_tuple(given: Any) -> Any:
    """A list, which is what a file has, where strict checking wants a tuple."""
    return tuple(cast(list[Any], given)) if isinstance(given, list) else given


class Section(BaseModel):
    """Unknown keys are refused, values are never changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Run(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "run"
    """The run directory is `<dir>/<name>`."""
    dir: str = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Keys every random draw: weights of a new model, order of the data, sampling."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads; 0 leaves torch's own choice. Bit-identical resume holds for an unchanged number of threads."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Model(Section):
    path: str
    """A transformers directory or hub name, a `.gguf` file, `package:NAME` (a Python package that ships one .gguf), or
    `embedded:NAME` (a small new model for the generated task NAME)."""
    tokenizer: str | None = None
    """Where to load the tokenizer from, if not from `path`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    chat_template: str | None = None
    """A file with a Jinja chat template that replaces the tokenizer's own."""
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, much smaller."""

    @model_validator(mode="after")
    def _embedded_as_it_is(self) -> Self:
        for option in ("tokenizer", "dtype", "chat_template", "trust_remote_code"):
            value = getattr(self, option)
            if self.path.startswith("embedded:") and value != type(self).model_fields[option].default:
                raise ValueError(f"{option} = {value!r} would have no effect on {self.path}, a new model; leave it out")
        return self


class Data(Section):
    train: str
    """A .jsonl, .csv or .parquet file, `hub:NAME`, `reasoning_gym:NAME`, `verifiers:NAME`, or `task:NAME` (see
    `oncurve tasks`)."""
    eval: str | None = None
    """Where the held-out prompts come from; by default they are split off `train`."""
    eval_size: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 200
    """Held-out prompts. 0 evaluates nothing."""
    size: Rows = 1000
    """How many training prompts a generated data set makes."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the generator (`reasoning_gym:` and `task:`) or the hub reader."""
    prompt_column: str = "prompt"
    completion_column: str = "completion"
    """Where supervised fine-tuning finds the answer to imitate."""
    chat: bool = False
    """Put every plain prompt into the model's chat template, as one message of the user. Prompts that are messages
    always go through it."""
    system_prompt: str | None = None
    """Put before every prompt, which then becomes a chat."""
    suffix: str = ""
    """Text put after every prompt, for example what form the answer shall have."""
    max_prompt_tokens: PositiveInt | None = None
    """Default: what the model's context leaves beside the completion."""
    over_long: Literal["error", "drop"] = "error"


class Sampling(Section):
    max_new_tokens: PositiveInt = 256
    temperature: PositiveFloat = 1.0
    """Training samples from the whole distribution at this temperature: top_k, top_p and min_p exist for evaluation."""
    max_rows: PositiveInt = 256
    """Completions decoded side by side."""


class Rewards(Section):
    functions: Annotated[list[str], Field(min_length=1)] = ["accuracy"]
    """Names (`accuracy`, `format`), `path/to/file.py:function`, `package.module:function`; more in docs/rewards.md."""
    weights: list[float] | None = None
    """One per function; default 1.0 each."""
    metrics: list[str] = []
    """More functions of the same form: recorded, never rewarded."""
    options: dict[str, dict[str, Any]] = {}
    """Keywords for functions, by name: `[rewards.options.language]` and below it `target = "Han"`."""
    gates: dict[str, str] = {}
    """`accuracy = "format"`: accuracy counts only where format gives 1.0. `"format >= 0.5"` asks for less."""
    clip: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = {}
    """The lowest and the highest score that counts, by function, before its weight; `total`: of the sum."""
    sandbox: str = "strict"
    """What holds in the programs that `code` runs: `strict`, `landlock`, `remote:URL`, or `none`, which does not."""

    @field_validator("sandbox")
    @classmethod
    def _is_a_level(cls, given: str) -> str:
        if given not in ("strict", "landlock", "none") and not given.startswith(("remote:http://", "remote:https://")):
            raise ValueError(
                f"rewards.sandbox = {given!r}: give strict, landlock, remote:http://HOST/run_code, or none"
            )
        return given

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(
                f"rewards.weights has {_count(self.weights, 'number')} for {_count(self.functions, 'function')} in "
                "rewards.functions; give one for each"
            )
        if self.weights is not None and not any(self.weights):
            raise ValueError("weights are all 0: nothing would be rewarded")
        return self


class Optimisation(Section):
    """What SFT and GRPO have in common: AdamW, warm-up and schedule."""

    learning_rate: Annotated[float, Field(ge=0.0, le=1e6)] = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    final_fraction: Fraction = 0.1
    """The share of the learning rate that is left at the end of a linear or cosine schedule."""
    weight_decay: NonNegativeFloat = 0.0
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_as_tuple)] = (0.9, 0.999)
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


def usual_pass_at(samples: Any) -> list[int]:
    """`eval.pass_at` where it is not given: pass@1, and pass@4 or, with fewer `eval.samples`, pass@ all of them."""
    return sorted({1, samples}) if isinstance(samples, int) and 1 <= samples < 4 else [1, 4]


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


class Eval(Section):
    every: NonNegativeInt = 0
    """Greedy evaluation every so many iterations; 0: only before and after."""
    samples: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 4
    """Completions per prompt for pass@1 and pass@k by sampling, before and after; 0: greedy only."""
    pass_at: list[PositiveInt] = [1, 4]
    """The k of pass@k; with fewer than 4 `samples` the default shrinks."""
    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Fraction = 0.0
    max_new_tokens: PositiveInt | None = None
    """Default: `sampling.max_new_tokens`."""

    @model_validator(mode="before")
    @classmethod
    def _pass_at_as_many_as_there_are(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "pass_at" in given:
            return cast(Any, given)
        section = cast(dict[str, Any], given)
        return {**section, "pass_at": usual_pass_at(section.get("samples"))}


class Checkpoint(Section):
    every: PositiveInt = 10
    """GRPO iterations between checkpoints; in SFT, `every` x 10 optimizer steps."""
    keep_last: Annotated[int, Field(ge=2)] = 2


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
    }
)
# And there may be more `grpo.iterations`, if the learning rate does not depend on their number: ``train.directory``.

"""Every option there is: one typed, frozen section per concern. No torch here.

A recipe is read, merged with flags and checked by ``oncurve.recipe``; this module only says what a recipe may hold.
The list of options is frozen by ``tests/architecture/config_surface.txt``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


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
    `embedded:letters` / `embedded:chain` (a small new model)."""
    tokenizer: str | None = None
    """Where to load the tokenizer from, if not from `path`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    chat_template: str | None = None
    """A file with a Jinja chat template that replaces the tokenizer's own."""
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, much smaller."""


class Data(Section):
    train: str
    """A .jsonl, .csv or .parquet file, `hub:NAME`, `reasoning_gym:NAME`, or `task:letters` / `task:chain`."""
    eval: str | None = None
    """Where the held-out prompts come from; by default they are split off `train`."""
    eval_size: NonNegativeInt = 200
    """Held-out prompts. 0 evaluates nothing."""
    size: PositiveInt = 1000
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
    """Names (`accuracy`, `format`), `path/to/file.py:function`, or `package.module:function`."""
    weights: list[float] | None = None
    """One per function; default 1.0 each."""
    metrics: list[str] = []
    """More functions of the same form: recorded, never rewarded."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(
                f"weights has {len(self.weights)} numbers for {len(self.functions)} functions; give one for each"
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
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    max_grad_norm: PositiveFloat = 1.0
    microbatch_tokens: PositiveInt = 8192
    """Padded tokens in one forward pass. Changes memory and speed, never the gradient."""


class Sft(Optimisation):
    """Supervised fine-tuning on prompt and completion; gives the reference that GRPO starts from."""

    data: str | None = None
    """As `data.train`; default: `data.train`, or the demonstrations of a `task:`."""
    size: PositiveInt = 2000
    """How many demonstrations a generated data set makes."""
    steps: PositiveInt | None = None
    """Optimizer steps. Give this or `epochs`."""
    epochs: PositiveInt = 1
    """Passes over the demonstrations, when `steps` is not given."""
    rows_per_step: PositiveInt = 16
    packing: bool = False
    """Put demonstrations end to end in rows of `microbatch_tokens` instead of padding them; the same gradient."""


class Grpo(Optimisation):
    """Group Relative Policy Optimization as in DeepSeekMath (arXiv 2402.03300), outcome supervision."""

    iterations: PositiveInt = 100
    """Sampling rounds."""
    prompts_per_iteration: PositiveInt = 16
    group_size: Annotated[int, Field(ge=2)] = 8
    epochs: PositiveInt = 1
    """Passes over each sampled batch."""
    minibatches: PositiveInt = 1
    """Optimizer steps in one epoch."""
    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    kl_coef: NonNegativeFloat = 0.04
    """0 never builds the reference."""
    train_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Train on this share of each group's completions, those with the largest |advantage| (1.0: all, as in the
    paper)."""


class Eval(Section):
    every: NonNegativeInt = 0
    """Greedy evaluation every so many iterations; 0: only before and after."""
    samples: NonNegativeInt = 4
    """Completions per prompt for pass@1 and pass@k by sampling, before and after; 0: greedy only."""
    pass_at: list[PositiveInt] = [1, 4]
    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Fraction = 0.0
    max_new_tokens: PositiveInt | None = None
    """Default: `sampling.max_new_tokens`."""


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
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()

    @property
    def eval_max_new_tokens(self) -> int:
        """`eval.max_new_tokens` with its default."""
        return self.eval.max_new_tokens or self.sampling.max_new_tokens

    @model_validator(mode="after")
    def _consistent_numbers(self) -> Self:
        if self.grpo is not None and self.grpo.minibatches > self.grpo.prompts_per_iteration:
            raise ValueError(
                f"grpo.minibatches ({self.grpo.minibatches}) is more than grpo.prompts_per_iteration "
                f"({self.grpo.prompts_per_iteration}); a minibatch needs at least one prompt's worth of completions"
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
    }
)

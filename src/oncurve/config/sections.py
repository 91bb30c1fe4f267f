"""Where a run is, what it trains, on what data, how it samples, scores and evaluates."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from oncurve.config.values import MOST_ROWS, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Rows, Section, count


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
                f"rewards.weights has {count(self.weights, 'number')} for {count(self.functions, 'function')} in "
                "rewards.functions; give one for each"
            )
        if self.weights is not None and not any(self.weights):
            raise ValueError("weights are all 0: nothing would be rewarded")
        return self


def usual_pass_at(samples: Any) -> list[int]:
    """`eval.pass_at` where it is not given: pass@1, and pass@4 or, with fewer `eval.samples`, pass@ all of them."""
    return sorted({1, samples}) if isinstance(samples, int) and 1 <= samples < 4 else [1, 4]


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

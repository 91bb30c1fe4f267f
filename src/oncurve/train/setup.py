"""The only wiring: from a recipe to the concrete pieces that the loops use."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from oncurve.checks import check_enough, check_rewards, completion_limits, rewards_of
from oncurve.config import Recipe
from oncurve.data.demonstrations import DemonstrationSet, build_demonstrations
from oncurve.data.labelled import Labelled
from oncurve.data.order import apart
from oncurve.data.prompts import build_prompts, data_of
from oncurve.data.readers import Split, options_for, read_rows
from oncurve.engines.torch_engine import TorchEngine
from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.models.load import load_policy, load_tokenizer, recompute_activations
from oncurve.rewards import Combination, NamedReward, sandbox_for
from oncurve.tasks import NotEnough, need_options, task
from oncurve.terminal import Terminal
from oncurve.train.allocator import keep_freed_memory
from oncurve.train.checks import check_known
from oncurve.train.fitting import TokenBudget
from oncurve.train.learned_rewards import with_models
from oncurve.types import Demonstration, Engine, OncurveError, Prompt

Rows = list[dict[str, Any]]


class Stop:
    """Set by the first SIGINT or SIGTERM; the loops look at it where stopping loses nothing."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Catch the first signal; a second one has its usual effect. Outside the main thread nothing is caught."""

        def handle(number: int, _: FrameType | None) -> None:
            self.signal = number
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            # os.write, because a handler may run in the middle of a print
            os.write(2, b"\nfinishing this step, then saving; once more quits at once\n")

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # signals can only be set in the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class Parts:
    """Everything a stage needs, built once."""

    recipe: Recipe
    terminal: Terminal
    stop: Stop
    lm: CausalLM
    """The policy."""
    tokenizer: PreTrainedTokenizerBase
    engine: Engine
    train_prompts: list[Prompt]
    eval_prompts: list[Prompt]
    demonstrations: list[Demonstration]
    rewards: list[NamedReward]
    measures: list[NamedReward]
    """Reward functions and ``rewards.metrics`` together, for evaluation."""
    sandbox: str | None = None
    """What holds in the programs that rewards run, in words; None if none runs any."""
    combination: Combination | None = None
    """Gates and bounds of the rewards."""
    tokens: TokenBudget = field(default_factory=TokenBudget)
    """What one forward pass may have."""
    earlier: int = 0
    """Iterations that runs before this one, of which it is the continuation, have had: its prompts and draws come after
    theirs."""

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)  # type: ignore[arg-type]


def prepare(recipe: Recipe, terminal: Terminal, stages: Sequence[str]) -> Parts:
    """Build the parts of ``recipe``. Everything that can be checked before training is checked here."""
    device = begin_process(recipe)
    # Functions first: they are the user's own, quick to check, and the model may take a minute to load.
    measures, combined = rewards_of(recipe)
    sandbox = sandbox_for([measure.function for measure in measures], recipe.rewards.sandbox)
    if sandbox is not None:
        terminal.say(f"programs run in the sandbox: {sandbox}")
    train_rows, eval_rows = _rows(recipe, "train"), _rows(recipe, "eval")
    sft_rows = _demonstration_rows(recipe) if recipe.sft is not None and "sft" in stages else []
    tokenizer, lm = load_model(recipe, device)
    train_prompts, eval_prompts = _prompts(recipe, train_rows, eval_rows, tokenizer, lm, terminal)
    train_source, eval_source = recipe.source("train"), recipe.source("eval")
    if "grpo" in stages or not stages:  # fine-tuning alone scores nothing
        measures = with_models(measures, device, [prompt.raw for prompt in (*train_prompts, *eval_prompts)])
        check_rewards(measures, *train_source, train_prompts, terminal.say)
        check_rewards(measures, *eval_source, eval_prompts, terminal.say)
    if "grpo" in stages:
        check_enough(recipe, len(train_prompts))
    demonstrations: list[Demonstration] = []
    if sft_rows and recipe.sft is not None and recipe.sft.packing and not lm.keeps_packed_rows_apart:
        raise OncurveError(
            f"sft.packing = true: in {type(lm.module).__name__} sequences that stand end to end would see one another; "
            "set it to false"
        )
    if sft_rows:
        with data_of(*recipe.source("sft")):
            found = build_demonstrations(sft_rows, tokenizer, recipe.data, context=lm.context, held_out=eval_prompts)
        demonstrations = found.demonstrations
        terminal.say(f"{len(demonstrations)} demonstrations for supervised fine-tuning{_left_out(found)}")
    prompts = {": ".join(train_source): [*train_prompts]}
    prompts.setdefault(": ".join(eval_source), []).extend(eval_prompts)
    check_known(lm, tokenizer, prompts, demonstrations)
    engine = make_engine(lm, tokenizer, recipe.sampling.max_rows)
    return Parts(
        recipe,
        terminal,
        Stop(),
        lm,
        tokenizer,
        engine,
        train_prompts,
        eval_prompts,
        demonstrations,
        measures[: len(recipe.rewards.functions)],
        measures,
        sandbox,
        combined,
    )


def begin_process(recipe: Recipe) -> torch.device:
    """What holds for the whole process: threads, no bars of transformers' own, seeds. Returns the device."""
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    transformers_logging.disable_progress_bar()
    set_seed(recipe.run.seed)  # for code of others that draws; nothing of ours uses a global generator
    return pick_device(recipe.run.device)


def pick_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise OncurveError("run.device is cuda, but torch sees no GPU; set it to cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def load_model(recipe: Recipe, device: torch.device) -> tuple[PreTrainedTokenizerBase, CausalLM]:
    """Tokenizer and policy of ``recipe.model``: a new small model for ``embedded:NAME``, a loaded one otherwise."""
    keep_freed_memory()
    kind, _, name = recipe.model.path.partition(":")
    if kind == "embedded":
        with data_of("model.path", recipe.model.path):
            embedded = task(name)
        tokenizer = embedded.build_tokenizer()
        set_seed(recipe.run.seed)
        module: PreTrainedModel = LlamaForCausalLM(embedded.build_model_config())
        module.eval()
    else:
        tokenizer = load_tokenizer(recipe.model)
        module = load_policy(recipe.model, tokenizer, recipe.run.seed)
    if recipe.model.gradient_checkpointing:
        recompute_activations(module)
    return tokenizer, causal_lm(module.to(device))  # type: ignore[arg-type]


def make_engine(lm: CausalLM, tokenizer: PreTrainedTokenizerBase, max_rows: int) -> Engine:
    """The engine that samples from ``lm`` itself."""
    return TorchEngine(
        lm,
        eos_ids=eos_ids(lm.module, tokenizer),
        decode=lambda ids: decode(tokenizer, ids),
        max_rows=max_rows,
    )


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of a completion: of its tokens, special ones left out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def eos_ids(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion: the tokenizer's, and those the model's generation settings add."""
    found = {int(tokenizer.eos_token_id)}  # type: ignore[arg-type]
    extra = getattr(module.generation_config, "eos_token_id", None)
    if extra is not None:
        found |= {int(i) for i in (extra if isinstance(extra, list) else [extra])}
    return sorted(found)


def weights_digest(module: torch.nn.Module) -> str:
    """sha256 of all weights, to be sure that a reference that was loaded again is the one that training began with."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def data_digest(items: Sequence[Prompt] | Sequence[Demonstration] | Sequence[Labelled]) -> str:
    """sha256 of what was read: says whether the data is still what it was."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode("utf-8", "replace"))
    return digest.hexdigest()


def _rows(recipe: Recipe, split: Split) -> Rows:
    """The rows of ``data.train`` or ``data.eval``; none for an eval that is to be split off the training rows."""
    data = recipe.data
    source = data.train if split == "train" else data.eval
    size = data.size if split == "train" else data.eval_size
    if source is None and data.train.startswith("task:"):
        source = data.train  # a generated task has a held-out split of its own
    if size == 0 or source is None:
        return []
    with data_of(*recipe.source(split)):
        if source.startswith("task:"):
            name, _, named_split = source.removeprefix("task:").partition(":")
            need_options(task(name), data.options)
            with size_named("data.size" if split == "train" else "data.eval_size"):
                return task(name).rows(size, recipe.run.seed, named_split or split)
        options = options_for(source, recipe.sources, data.options)
        return read_rows(source, size=size, seed=recipe.run.seed, options=options, split=split)


def _demonstration_rows(recipe: Recipe) -> Rows:
    assert recipe.sft is not None
    source, size, seed = recipe.sft.data or recipe.data.train, recipe.sft.size, recipe.run.seed
    with data_of(*recipe.source("sft")):
        if source.startswith("task:"):
            embedded = task(source.removeprefix("task:"))
            need_options(embedded, recipe.data.options)
            with size_named("sft.size"):
                return embedded.demonstrations(size, seed, **recipe.data.options)
        options = options_for(source, recipe.sources, recipe.data.options)
        return read_rows(source, size=size, seed=seed, options=options, split="train")


@contextmanager
def size_named(option: str) -> Iterator[None]:
    """Put the option that asked for more rows than a task has before what is said about it."""
    try:
        yield
    except NotEnough as error:
        raise OncurveError(f"{option}: {error}") from error


def _prompts(
    recipe: Recipe, train_rows: Rows, eval_rows: Rows, tokenizer: Any, lm: CausalLM, terminal: Terminal
) -> tuple[list[Prompt], list[Prompt]]:
    """(training prompts, held-out prompts); what the two have in common is left out of training."""

    def build(source: tuple[str, str], rows: Rows, limit: tuple[str, int]) -> list[Prompt]:
        option, tokens = limit
        with data_of(*source):
            found = build_prompts(
                rows, tokenizer, recipe.data, context=lm.context, max_new_tokens=tokens, limit_option=option
            )
        if found.dropped:
            terminal.say(f"{found.dropped} of {len(rows)} prompts were over-long and left out (data.over_long = drop)")
        return found.prompts

    in_training, in_evaluation = completion_limits(recipe)
    train = build(recipe.source("train"), train_rows, in_training)
    given = build(recipe.source("eval"), eval_rows, in_evaluation) if eval_rows else None
    kept, held_out = apart(train, given, recipe.data.eval_size, recipe.run.seed)
    leaked = len(train) - len(kept) - (0 if eval_rows else len(held_out))
    if leaked:
        terminal.say(f"{leaked} training prompts ask what a held-out prompt asks and are left out of training")
    return kept, held_out


def _left_out(found: DemonstrationSet) -> str:
    reasons = [f"{found.dropped} over-long", f"{found.held_out} about held-out prompts"]
    shown = [reason for reason in reasons if not reason.startswith("0 ")]
    return f" ({', '.join(shown)} left out)" if shown else ""


def run_directory(recipe: Recipe) -> Path:
    return Path(recipe.run.dir) / recipe.run.name

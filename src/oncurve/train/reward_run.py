"""``oncurve reward-model``: from a recipe to a saved reward model, with records, checkpoints and an evaluation before
and after."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oncurve.config import Model, Recipe, RewardTraining
from oncurve.data.labelled import Labelled, build_labelled, hold_out, left_out
from oncurve.data.prompts import data_of
from oncurve.data.readers import options_for, read_rows
from oncurve.models.load import recompute_activations
from oncurve.models.reward_model import Form, RewardModel, load_reward_model, new_reward_model, save_reward_model
from oncurve.models.source import is_reward_model
from oncurve.runlog import EvalRow, RunLog, RunLogError, replacing
from oncurve.terminal import Terminal
from oncurve.train.directory import check_run_directory, open_run
from oncurve.train.memory import is_out_of_memory, memory_explained, out_of_memory
from oncurve.train.position import START, Checkpoints
from oncurve.train.reward_evaluation import RewardEvaluation, evaluate_reward_model
from oncurve.train.reward_figure import reward_figure
from oncurve.train.reward_model import reward_model_steps, total_steps
from oncurve.train.setup import Stop, begin_process, data_digest, load_model, run_directory
from oncurve.train.step import make_optimizer
from oncurve.types import OncurveError, Stopped

STAGE = "reward_model"
_BEGIN = dataclasses.replace(START, stage=STAGE)


@dataclass(frozen=True)
class RewardResult:
    run_dir: Path
    model_dir: Path
    """A transformers directory for ``AutoModelForSequenceClassification``, and for ``reward_model:PATH``."""
    figure: Path | None
    before: dict[str, EvalRow]
    """By name; empty if nothing is held out."""
    after: dict[str, EvalRow]


def train_reward_model(recipe: Recipe, terminal: Terminal | None = None) -> RewardResult:
    """Train the ``[reward_model]`` of ``recipe``, or go on where an earlier call was interrupted.

    Raises:
        OncurveError: anything the user can mend; what is on disk stays.
        Stopped: SIGINT or SIGTERM; everything was saved first.
    """
    terminal = terminal or Terminal()
    config = needed(recipe)
    run_dir = run_directory(recipe)
    check_run_directory(recipe, run_dir)
    device = begin_process(recipe)
    with memory_explained(recipe, "loading"):
        model = start_model(recipe, config, device)
        train, held_out = labelled_rows(recipe, config, model, terminal)
    stop = Stop()
    with open_run(recipe, run_dir) as log, stop.on_signals():
        return _Training(recipe, config, model, train, held_out, log, run_dir, terminal, stop).go()


def needed(recipe: Recipe) -> RewardTraining:
    if recipe.reward_model is None:
        raise OncurveError("the recipe has no [reward_model] section, which `oncurve reward-model` trains; add one")
    return recipe.reward_model


def start_model(recipe: Recipe, config: RewardTraining, device: torch.device) -> RewardModel:
    """What training begins with: the language model of ``reward_model.path`` or else ``model.path`` with a head of
    zeros, or, if that is a reward model, this one."""
    path = config.path or recipe.model.path
    key = "model.path" if config.path is None else "reward_model.path"
    form = Form(
        config.kind, config.steps, config.max_tokens, recipe.data.chat, recipe.data.system_prompt, recipe.data.suffix
    )
    if is_reward_model(key, path):
        found = load_reward_model(path, key=key, dtype=recipe.model.dtype)
        if recipe.model.gradient_checkpointing:
            recompute_activations(found.module)
        return RewardModel(found.module.to(device), found.tokenizer, form)  # type: ignore[arg-type]
    if path != recipe.model.path:
        options = {"path": path, "dtype": recipe.model.dtype, "trust_remote_code": recipe.model.trust_remote_code}
        if path.startswith("embedded:"):
            options = {"path": path}
        recipe = recipe.model_copy(update={"model": Model.model_validate(options)})
    tokenizer, lm = load_model(recipe, device)
    return new_reward_model(lm.module, tokenizer, form)


def labelled_rows(
    recipe: Recipe, config: RewardTraining, model: RewardModel, terminal: Terminal
) -> tuple[list[Labelled], list[Labelled]]:
    """(to train on, held out), as far as something can be learned from them; what was dropped is said."""
    option, source = recipe.source("reward_model")
    with data_of(option, source):
        rows = read_labelled(recipe)
        found = build_labelled(rows, model.tokenizer, recipe.data, config.kind, limit=model.limit, margin=config.margin)
    if found.dropped:
        terminal.say(f"{source}: of {len(rows)} rows these were dropped: {left_out(found.dropped)}")
    train, held_out = hold_out(found.rows, config.held_out, recipe.run.seed)
    terminal.say(f"{len(train)} rows to train on, {len(held_out)} held out (about {config.held_out} prompts)")
    return train, held_out


def read_labelled(recipe: Recipe) -> list[dict[str, Any]]:
    """The rows for the reward model. Raises OncurveError for a source whose rows have no labels."""
    _, source = recipe.source("reward_model")
    if source.startswith(("task:", "reasoning_gym:")):
        raise OncurveError(f"{source} has questions and no labels; give a file with labelled rows")
    options = options_for(source, recipe.sources, recipe.data.options)
    return read_rows(source, size=1, seed=recipe.run.seed, options=options, split="train")


class _Training:
    def __init__(
        self,
        recipe: Recipe,
        config: RewardTraining,
        model: RewardModel,
        train: Sequence[Labelled],
        held_out: Sequence[Labelled],
        log: RunLog,
        run_dir: Path,
        terminal: Terminal,
        stop: Stop,
    ) -> None:
        self.recipe, self.config, self.model = recipe, config, model
        self.train, self.held_out = train, held_out
        self.log, self.run_dir, self.terminal, self.stop = log, run_dir, terminal, stop
        self.position = _BEGIN
        # Beside those of the stages that train the policy, which know nothing of this one.
        self.checkpoints = Checkpoints(run_dir / "checkpoints" / STAGE, recipe.checkpoint.keep_last, model)

    def go(self) -> RewardResult:
        optimizer = make_optimizer(self.model.module, self.config)
        found = self.checkpoints.find(self.terminal.say)
        self._check_data(resumed=found is not None)
        if found is not None:
            self.position = found
            self.checkpoints.restore(optimizer)
            self.terminal.say(f"resuming {self.run_dir} after reward model step {found.step}")
        self.log.rewind((STAGE,), STAGE, self.position.step, self.position.step)
        self.log.set_meta("status", "running")
        try:
            with self._diverged():
                figure = self._steps(optimizer)
        except BaseException as error:
            with contextlib.suppress(RunLogError):  # the disk may be full, which is then what is to be told
                self.log.set_meta("status", "stopped")
            if is_out_of_memory(error):
                raise out_of_memory(self.recipe, STAGE, error) from error
            raise
        self.log.set_meta("status", "finished")
        steps = total_steps(self.config, len(self.train))
        model_dir = self.run_dir / "models" / STAGE
        return RewardResult(self.run_dir, model_dir, figure, self._recorded(0), self._recorded(steps))

    def _steps(self, optimizer: torch.optim.Optimizer) -> Path | None:
        steps = total_steps(self.config, len(self.train))
        if self.position.step == 0:
            self._evaluate(0)
        training = reward_model_steps(
            self.model,
            self.train,
            self.config,
            optimizer,
            seed=self.recipe.run.seed,
            first_step=self.position.step,
            gradient_checkpointing=self.recipe.model.gradient_checkpointing,
        )
        with self.terminal.stage("reward model", steps, done=self.position.step) as bar:
            for done in training:
                with self.log.iteration():
                    self.log.metrics(STAGE, done.step, done.step, done.metrics)
                self.position = dataclasses.replace(self.position, step=done.step)
                bar.advance(1, loss=done.metrics["loss"], accuracy=done.metrics["accuracy"])
                if done.step % (10 * self.recipe.checkpoint.every) == 0 and done.step < steps:
                    self.checkpoints.save(self.position, done.step, optimizer)
                if self.stop.requested and done.step < steps:
                    self.checkpoints.save(self.position, done.step, optimizer)
                    assert self.stop.signal is not None
                    raise Stopped(self.stop.signal, f"stopped; the same command goes on from here ({self.run_dir})")
        evaluation = self._evaluate(steps)
        save_reward_model(self.model, self.run_dir / "models" / STAGE)
        self.position = dataclasses.replace(self.position, stage_done=True)
        self.checkpoints.save(self.position, steps + 1, None)
        return self._figure(evaluation)

    def _evaluate(self, step: int) -> RewardEvaluation | None:
        """Evaluate and record, unless that was done before an interruption."""
        if not self.held_out:
            return None
        found = evaluate_reward_model(
            self.model, self.held_out, seed=self.recipe.run.seed, token_budget=self.config.microbatch_tokens
        )
        if not self.log.has_evals(STAGE, step):
            self.log.evals(
                EvalRow(STAGE, step, "held_out", e.name, e.value, e.low, e.high, e.n) for e in found.estimates.values()
            )
        return found

    def _figure(self, evaluation: RewardEvaluation | None) -> Path | None:
        if evaluation is None:
            return None
        path = self.run_dir / "scores.svg"
        with replacing(path) as temporary:
            figure = reward_figure(evaluation.table, evaluation.points, self.config.kind == "pairwise")
            temporary.write_text(figure, encoding="utf-8")
        return path

    def _recorded(self, step: int) -> dict[str, EvalRow]:
        return {row.name: row for row in self.log.eval_rows() if row.stage == STAGE and row.iteration == step}

    def _check_data(self, *, resumed: bool) -> None:
        """A training that has begun goes on with the rows it began with."""
        digest = data_digest([*self.train, *self.held_out])
        if resumed and self.log.get_meta(f"digest/{STAGE}") not in (None, digest):
            option, _ = self.recipe.source("reward_model")
            raise OncurveError(
                f"{option} is not the data {self.run_dir} began with; put it back, or begin a new run with "
                "--run.name NAME"
            )
        self.log.set_meta(f"digest/{STAGE}", digest)

    @contextlib.contextmanager
    def _diverged(self) -> Iterator[None]:
        try:
            yield
        except FloatingPointError as error:
            raise OncurveError(
                f"reward_model, after step {self.position.step}: {error}. What usually helps is a new run "
                f"(--run.name NAME) with a lower reward_model.learning_rate ({self.config.learning_rate:g}) or "
                f"reward_model.max_grad_norm ({self.config.max_grad_norm:g})"
            ) from error


def show_reward_result(result: RewardResult, terminal: Terminal) -> None:
    """The estimates before and after as a table, and where things are."""
    if result.after:
        terminal.table(
            f"held-out rows about {next(iter(result.after.values())).n} prompts",
            ["measure", "before", "after", "95% interval"],
            [
                [name, _shown(result.before.get(name)), _shown(row), _interval(row)]
                for name, row in result.after.items()
            ],
        )
    terminal.say(f"model   {result.model_dir} (for AutoModelForSequenceClassification, and reward_model:PATH)")
    if result.figure is not None:
        terminal.say(f"figure  {result.figure}")


def _shown(row: EvalRow | None) -> str:
    return "-" if row is None else f"{row.value:.3f}"


def _interval(row: EvalRow) -> str:
    return "-" if math.isnan(row.low) else f"{row.low:.3f} to {row.high:.3f}"

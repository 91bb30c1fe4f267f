"""A run from its recipe to its model: begin or resume, the stages in order, records, checkpoints, the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oncurve
from oncurve.config import MAY_CHANGE_ON_RESUME, Recipe
from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.models.save import save_model
from oncurve.parallel.checkpoint import Loaded, load_newest, prune, save
from oncurve.parallel.optimizer_state import load_optimizer, optimizer_tensors
from oncurve.recipe import differences, dump_toml
from oncurve.rewards import RewardError
from oncurve.runlog import RunLog
from oncurve.terminal import Terminal
from oncurve.train.evaluate import Evaluation, evaluate_greedy, evaluate_sampled, main_measure
from oncurve.train.grpo import Iteration, grpo_iterations
from oncurve.train.records import estimate_rows, evaluation_rows, iteration_rows
from oncurve.train.setup import Parts, prepare, prompts_digest, run_directory, weights_digest
from oncurve.train.sft import sft_steps, total_steps
from oncurve.train.step import make_optimizer
from oncurve.types import OncurveError, Stopped

STAGES = ("sft", "grpo")


@dataclass(frozen=True)
class Position:
    """How far a run has come; what a checkpoint is a checkpoint of."""

    stage: str
    iteration: int
    """GRPO iterations done; 0 in SFT."""
    step: int
    """Optimizer steps done in this stage."""
    tokens: int
    """Completion tokens sampled for training since the run began."""
    seconds: float
    """Time spent so far, all interruptions left out."""
    stage_done: bool


START = Position("sft", 0, 0, 0, 0.0, stage_done=False)


@dataclass(frozen=True)
class Result:
    """Where a finished run's products are, and what it reached."""

    run_dir: Path
    model_dir: Path
    """A plain transformers directory."""
    before: dict[str, dict[str, Any]]
    """Held-out estimates before GRPO: ``{"greedy": {name: EvalRow}, "sampled": {...}}``; empty without evaluation."""
    after: dict[str, dict[str, Any]]
    seconds: float


def run(recipe: Recipe, *, stages: tuple[str, ...] = STAGES, terminal: Terminal | None = None) -> Result:
    """Run the stages of ``recipe`` that are asked for, or go on where an earlier call was interrupted.

    Raises:
        OncurveError: anything the user can mend; what is on disk stays.
        Stopped: SIGINT or SIGTERM; everything was saved first.
    """
    terminal = terminal or Terminal()
    stages = tuple(stage for stage in stages if getattr(recipe, stage) is not None)
    if not stages:
        raise OncurveError("the recipe has neither an [sft] nor a [grpo] section for this command; add one")
    run_dir = run_directory(recipe)
    refuse_another_recipe(recipe, run_dir)
    parts = prepare(recipe, terminal, stages)
    with _open_log(recipe, run_dir) as log, parts.stop.on_signals():
        return _Run(parts, log, run_dir, stages).go()


def refuse_another_recipe(recipe: Recipe, run_dir: Path) -> None:
    """A run directory goes on only with the recipe it began with, but for fields that change nothing but speed."""
    if not (run_dir / "run.sqlite").exists():
        return
    with RunLog.open(run_dir, readonly=True) as log:
        begun = Recipe.model_validate_json(log.get_meta("recipe") or "{}")
        untouched = not log.metric_names("sft") and not log.metric_names("grpo")
    begun_for_good = not untouched or any((run_dir / "checkpoints").glob("step-*"))
    changed = [(key, old, new) for key, old, new in differences(begun, recipe) if key not in MAY_CHANGE_ON_RESUME]
    if changed and begun_for_good:
        listed = "\n".join(f"  {key}: {old!r} there, {new!r} here" for key, old, new in changed)
        raise OncurveError(
            f"{run_dir} belongs to a run with another recipe:\n{listed}\n"
            "give this run a name of its own (--run.name NAME), or put these back to go on with that run"
        )


def _open_log(recipe: Recipe, run_dir: Path) -> RunLog:
    if not (run_dir / "run.sqlite").exists():
        return RunLog.create(run_dir, dump_toml(recipe), recipe.model_dump_json(), oncurve.__version__)
    log = RunLog.open(run_dir)
    log.set_recipe(dump_toml(recipe), recipe.model_dump_json())
    return log


class _Run:
    """The state of one call of ``run``: where we are, what was saved last."""

    def __init__(self, parts: Parts, log: RunLog, run_dir: Path, stages: tuple[str, ...]) -> None:
        self.parts, self.log, self.run_dir, self.stages = parts, log, run_dir, stages
        self.recipe, self.terminal = parts.recipe, parts.terminal
        self.checkpoints = run_dir / "checkpoints"
        self.began = time.perf_counter()
        self.loaded: Loaded | None = None
        self.position = START
        self.saved: Position | None = None

    def go(self) -> Result:
        self._resume()
        self._check_data()
        if "sft" in self.stages:
            self._sft()
        if "grpo" in self.stages:
            self._grpo()
        self.log.set_meta("status", "finished")
        last = self.recipe.grpo.iterations if self.recipe.grpo and "grpo" in self.stages else 0
        return Result(
            self.run_dir,
            self.run_dir / "models" / self.stages[-1],
            self._estimates(0),
            self._estimates(last),
            self._seconds(),
        )

    # -- where we are ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        self.loaded = load_newest(self.checkpoints, say=self.terminal.say)
        if self.loaded is not None:
            self.position = self.saved = Position(**self.loaded.state["position"])
            done = self.position
            self.terminal.say(
                f"resuming {self.run_dir} after {done.stage} "
                + (f"iteration {done.iteration}" if done.stage == "grpo" else f"step {done.step}")
            )
        self.log.rewind(STAGES, self.position.stage, self.position.iteration, self.position.step)
        if self.loaded is None and self.recipe.sft is None:
            self.position = dataclasses.replace(START, stage="grpo")
        self.log.set_meta("status", "running")

    def _check_data(self) -> None:
        for name, prompts in (("train", self.parts.train_prompts), ("eval", self.parts.eval_prompts)):
            digest, known = prompts_digest(prompts), self.log.get_meta(f"digest/{name}")
            if self.loaded is not None and known not in (None, digest):
                raise OncurveError(
                    f"the {name} prompts are not the ones {self.run_dir} began with (data.{name}); put the data back, "
                    "or begin a new run with --run.name NAME"
                )
            self.log.set_meta(f"digest/{name}", digest)

    def _seconds(self) -> float:
        earlier = self.loaded.state["position"]["seconds"] if self.loaded else 0.0
        return earlier + time.perf_counter() - self.began

    def _save(self, optimizer: Any) -> None:
        """Checkpoint the present position. The records of everything up to it are already committed."""
        if self.saved is not None and dataclasses.replace(self.position, seconds=0.0) == dataclasses.replace(
            self.saved, seconds=0.0
        ):
            return
        tensors: dict[str, Any] = {"policy": self.parts.lm.module.state_dict()}
        state: dict[str, Any] = {"oncurve": oncurve.__version__}
        if optimizer is not None:
            tensors["optimizer"], state["optimizer"] = optimizer_tensors(optimizer, self.parts.lm.module)
        self.position = dataclasses.replace(self.position, seconds=self._seconds())
        state["position"] = dataclasses.asdict(self.position)
        save(self.checkpoints, self._global_step(), tensors, state)
        prune(self.checkpoints, self.recipe.checkpoint.keep_last)
        self.saved = self.position

    def _global_step(self) -> int:
        """Steps of earlier stages count too, so that checkpoints are numbered in the order they were made."""
        before = 0
        if self.position.stage == "grpo" and self.recipe.sft is not None:
            before = int(self.log.get_meta("sft_steps") or 0) + 1
        return before + (self.position.iteration if self.position.stage == "grpo" else self.position.step)

    def _restore(self, optimizer: Any) -> None:
        assert self.loaded is not None
        self.parts.lm.module.load_state_dict(self.loaded.tensors["policy"])
        self.parts.engine.load_weights(self.parts.lm.module)
        if optimizer is not None and "optimizer" in self.loaded.tensors:
            load_optimizer(
                optimizer, self.parts.lm.module, self.loaded.tensors["optimizer"], self.loaded.state["optimizer"]
            )

    def _stop(self, optimizer: Any) -> None:
        self._save(optimizer)
        self.log.set_meta("status", "stopped")
        assert self.parts.stop.signal is not None
        raise Stopped(self.parts.stop.signal, f"stopped; the same command goes on from here ({self.run_dir})")

    # -- the stages -----------------------------------------------------------------------------------------------

    def _sft(self) -> None:
        config, position = self.recipe.sft, self.position
        assert config is not None
        if position.stage != "sft" or position.stage_done:
            return
        optimizer = make_optimizer(self.parts.lm.module, config)
        if self.loaded is not None:
            self._restore(optimizer)
        steps = total_steps(config, len(self.parts.demonstrations))
        self.log.set_meta("sft_steps", str(steps))
        with self.terminal.stage("supervised fine-tuning", steps, done=position.step) as bar:
            for done in sft_steps(self.parts, config, optimizer, position.step, steps):
                with self.log.iteration():
                    self.log.metrics("sft", 0, done.step, done.metrics)
                self.position = dataclasses.replace(self.position, step=done.step)
                bar.advance(1, loss=done.metrics["loss"])
                if done.step % (10 * self.recipe.checkpoint.every) == 0 and done.step < steps:
                    self._save(optimizer)
                if self.parts.stop.requested:
                    self._stop(optimizer)
        save_model(self.parts.lm.module, self.parts.tokenizer, self.run_dir / "models" / "sft")
        self.position = dataclasses.replace(self.position, stage_done=True)
        self._save(None)

    def _grpo(self) -> None:
        config = self.recipe.grpo
        assert config is not None
        within = self.loaded is not None and self.position.stage == "grpo"
        if not within:
            self._begin_grpo()
        reference = self._reference(within) if config.kl_coef > 0 else None
        optimizer = make_optimizer(self.parts.lm.module, config)
        if within:
            self._restore(optimizer)
        if not self.log.has_evals("grpo", 0):
            self._record_evaluations(0, self._evaluations(full=True))
        iterations = grpo_iterations(self.parts, config, reference, optimizer, self.position.iteration + 1)
        with self.terminal.stage("GRPO", config.iterations, done=self.position.iteration) as bar:
            while (done := self._next(iterations, optimizer)) is not None:
                last = done.iteration == config.iterations
                due = last or (self.recipe.eval.every and done.iteration % self.recipe.eval.every == 0)
                evaluations = self._evaluations(full=last) if due else []
                tokens = self.position.tokens + int(done.metrics["num_tokens"])
                with self.log.iteration():
                    self.log.metrics("grpo", done.iteration, done.step, done.metrics | {"num_tokens": float(tokens)})
                    self.log.completions(iteration_rows(done))
                    self._write(done.iteration, evaluations)
                self.position = dataclasses.replace(
                    self.position, iteration=done.iteration, step=done.step, tokens=tokens, stage_done=last
                )
                bar.advance(1, **_headline(done.metrics, evaluations, main_measure(self.parts)))
                if last or done.iteration % self.recipe.checkpoint.every == 0:
                    self._save(optimizer)
                if self.parts.stop.requested:
                    self._stop(optimizer)
        if self.position.iteration < config.iterations:
            self._stop(optimizer)
        save_model(self.parts.lm.module, self.parts.tokenizer, self.run_dir / "models" / "grpo")

    def _next(self, iterations: Iterator[Iteration], optimizer: Any) -> Iteration | None:
        """The next iteration's update, or None: all are done, or a stop was asked for before one."""
        try:
            return next(iterations, None)
        except RewardError:
            # Raised between sampling and the update: the weights are still those of the last recorded iteration.
            if self.position.iteration > 0:
                self._save(optimizer)
            raise
        except FloatingPointError as error:
            config = self.recipe.grpo
            assert config is not None
            raise OncurveError(
                f"iteration {self.position.iteration + 1}: {error}. The records end before it. What usually helps: a "
                f"lower grpo.learning_rate ({config.learning_rate:g}) or grpo.max_grad_norm "
                f"({config.max_grad_norm:g}), or model.dtype = float32"
            ) from error

    def _begin_grpo(self) -> None:
        """The policy as SFT left it, if there was an SFT."""
        if self.recipe.sft is not None:
            if not (self.position.stage == "sft" and self.position.stage_done):
                raise OncurveError(f"{self.run_dir}: the [sft] stage of this recipe has not been finished yet")
            if self.loaded is not None:
                self._restore(None)
        self.position = dataclasses.replace(self.position, stage="grpo", iteration=0, step=0, stage_done=False)

    def _reference(self, within: bool) -> CausalLM:
        """The model as it was when GRPO began: in memory, or on resuming loaded again and known by its digest."""
        module = self.parts.lm.module
        if within and self.recipe.sft is not None:
            source = self.run_dir / "models" / "sft"
            try:
                again = type(module).from_pretrained(source, dtype=module.dtype)
            except (OSError, ValueError) as error:
                raise OncurveError(f"the reference cannot be loaded from {source}: {error}") from error
            reference = causal_lm(again.eval().requires_grad_(False).to(self.parts.lm.device))  # type: ignore[arg-type]
        else:
            reference = self.parts.lm.frozen_copy()
        digest, known = weights_digest(reference.module), self.log.get_meta("digest/reference")
        if within and known not in (None, digest):
            raise OncurveError(
                f"the reference is not the model {self.run_dir} began with: {self.recipe.model.path} has changed "
                "since; put it back, or begin a new run with --run.name NAME"
            )
        self.log.set_meta("digest/reference", digest)
        return reference

    # -- evaluation -----------------------------------------------------------------------------------------------

    def _evaluations(self, full: bool) -> list[Evaluation]:
        if not self.parts.eval_prompts:
            return []
        found = [evaluate_greedy(self.parts)]
        if full and self.recipe.eval.samples:
            found.append(evaluate_sampled(self.parts))
        return found

    def _record_evaluations(self, iteration: int, evaluations: list[Evaluation]) -> None:
        with self.log.iteration():
            self._write(iteration, evaluations)

    def _write(self, iteration: int, evaluations: list[Evaluation]) -> None:
        for evaluation in evaluations:
            self.log.completions(evaluation_rows(evaluation, iteration))
            self.log.evals(estimate_rows(evaluation, iteration))

    def _estimates(self, iteration: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for row in self.log.eval_rows():
            if row.iteration == iteration:
                found.setdefault(row.kind, {})[row.name] = row
        return found


def _headline(metrics: dict[str, float], evaluations: list[Evaluation], main: str) -> dict[str, float]:
    shown = {"reward": metrics["reward"], "length": metrics["completions/mean_length"]}
    if "kl" in metrics:
        shown["kl"] = metrics["kl"]
    for evaluation in evaluations:
        if evaluation.kind == "greedy" and main in evaluation.estimates:
            shown[f"held-out {main}"] = evaluation.estimates[main].value
    return shown

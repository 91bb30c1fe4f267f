"""A run from its recipe to its model: begin or resume, the stages in order, records, checkpoints, the end."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError

from oncurve.config import Grpo, Recipe
from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.models.critic import Critic, critic_of
from oncurve.models.save import save_model
from oncurve.presets import describe, remarks
from oncurve.rewards import RewardError
from oncurve.runlog import RunLog, RunLogError
from oncurve.terminal import Terminal
from oncurve.train.constant_rewards import constant_rewards, few_updates, no_spread, no_steps
from oncurve.train.directory import check_run_directory, open_run
from oncurve.train.diverged import diverged
from oncurve.train.evaluate import Evaluation, evaluations, main_measure
from oncurve.train.grpo import Iteration, grpo_iterations
from oncurve.train.memory import is_out_of_memory, memory_explained, out_of_memory
from oncurve.train.outcome import Result, already_finished, headline, result_of
from oncurve.train.position import START, Checkpoints
from oncurve.train.ppo import ppo_iterations
from oncurve.train.records import estimate_rows, evaluation_rows, iteration_rows
from oncurve.train.setup import Parts, data_digest, prepare, run_directory, weights_digest
from oncurve.train.sft import sft_steps, total_steps
from oncurve.train.step import check_policy, make_optimizer
from oncurve.types import OncurveError, Stopped

STAGES = ("sft", "grpo")


def run(
    recipe: Recipe, *, stages: tuple[str, ...] = STAGES, terminal: Terminal | None = None, earlier: int = 0
) -> Result:
    """Run the stages of ``recipe`` that are asked for, or go on where an earlier call was interrupted.

    ``earlier``: the iterations of the runs of which this one is the continuation. Prompts and draws come after theirs.

    Raises:
        OncurveError: anything the user can mend; what is on disk stays.
        Stopped: SIGINT or SIGTERM; everything was saved first.
    """
    terminal = terminal or Terminal()
    stages = tuple(stage for stage in stages if getattr(recipe, stage) is not None)
    if not stages:
        raise OncurveError("the recipe has neither an [sft] nor a [grpo] section for this command; add one")
    run_dir = run_directory(recipe)
    check_run_directory(recipe, run_dir)
    done = already_finished(recipe, run_dir, stages)
    if done is not None:
        terminal.say(f"{run_dir} is already finished")
        return done
    with memory_explained(recipe, "loading"):
        parts = dataclasses.replace(prepare(recipe, terminal, stages), earlier=earlier)
    with open_run(recipe, run_dir) as log, parts.stop.on_signals():
        return _Run(parts, log, run_dir, stages).go()


class _Run:
    """One call of ``run``. Its state is the position in the run; everything else stays as it was built."""

    def __init__(self, parts: Parts, log: RunLog, run_dir: Path, stages: tuple[str, ...]) -> None:
        self.parts, self.log, self.run_dir, self.stages = parts, log, run_dir, stages
        self.recipe, self.terminal = parts.recipe, parts.terminal
        self.checkpoints = Checkpoints(run_dir / "checkpoints", parts.recipe.checkpoint.keep_last, parts.lm)
        self.position = START
        self.resumed = False
        """There was a checkpoint, and the policy has not gone past it."""

    def go(self) -> Result:
        with memory_explained(self.recipe, "loading"):
            self._find_position()
        self._check_data()
        self.log.set_meta("status", "running")
        if self.parts.sandbox is not None:
            self.log.set_meta("sandbox", self.parts.sandbox)
        try:
            if "sft" in self.stages:
                self._sft()
            if "grpo" in self.stages:
                self._grpo()
            seconds = self.checkpoints.seconds()
            self.log.set_meta("seconds", str(seconds))
            self.log.set_meta("status", "finished")
        except BaseException as error:
            with contextlib.suppress(RunLogError):  # the disk may be full, which is then what is to be told
                self.log.set_meta("status", "stopped")
            if isinstance(error, FloatingPointError):
                raise diverged(self.recipe, self.position, error) from error
            if is_out_of_memory(error):
                raise out_of_memory(self.recipe, self.position.stage, error) from error
            raise
        return result_of(self.recipe, self.log, self.stages, seconds)

    # -- where we are ---------------------------------------------------------------------------------------------

    def _find_position(self) -> None:
        """Go to the newest checkpoint; without one, to the start."""
        found = self.checkpoints.find(self.terminal.say)
        if found is not None:
            self.position, self.resumed = found, True
            where = f"iteration {found.iteration}" if found.stage == "grpo" else f"step {found.step}"
            done = found.iteration or found.step
            self.terminal.say(
                f"resuming {self.run_dir} " + (f"after {found.stage} {where}" if done else "from its start")
            )
        elif self.recipe.sft is None:
            self.position = dataclasses.replace(START, stage="grpo")

    def _rewind(self) -> None:
        """Take back every record after the newest checkpoint; the run is about to make them again. Not before all
        checks have passed: what a run that cannot go on has on disk, it keeps."""
        point = self.checkpoints.last or START
        self.log.rewind(STAGES, point.stage, point.iteration, point.step)
        if point.stage == "grpo" and point.iteration > 0:
            # It may have been the last one, and no longer be: a run that was made longer has the records of one that
            # was as long from the beginning.
            kept = self._evaluations_due(point.iteration)
            for kind in ("greedy", "sampled"):
                if kind not in kept:
                    self.log.drop_evaluation("grpo", point.iteration, kind)

    def _check_data(self) -> None:
        """A run that has begun goes on with the data it began with."""
        parts = self.parts
        digests = {"train": data_digest(parts.train_prompts), "eval": data_digest(parts.eval_prompts)}
        if parts.demonstrations:
            digests["sft"] = data_digest(parts.demonstrations)
        for name, digest in digests.items():
            known = self.log.get_meta(f"digest/{name}")
            if self.resumed and known not in (None, digest):
                option = "sft.data" if name == "sft" else f"data.{name}"
                raise OncurveError(
                    f"{option} is not the data {self.run_dir} began with; put it back, or begin a new run with "
                    "--run.name NAME"
                )
            self.log.set_meta(f"digest/{name}", digest)

    def _save(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Checkpoint the present position. Checkpoints are numbered through both stages, in the order they are made."""
        number = self.position.step
        if self.position.stage == "grpo":
            number = self.position.iteration
            if self.recipe.sft is not None:
                number += (self.log.get_number("sft_steps") or 0) + 1
        self.checkpoints.save(self.position, number, optimizer)

    def _stop(self, optimizer: torch.optim.Optimizer) -> None:
        self._save(optimizer)
        assert self.parts.stop.signal is not None
        raise Stopped(self.parts.stop.signal, f"stopped; the same command goes on from here ({self.run_dir})")

    # -- the stages -----------------------------------------------------------------------------------------------

    def _sft(self) -> None:
        config, position = self.recipe.sft, self.position
        assert config is not None
        if position.stage != "sft" or position.stage_done:
            return
        optimizer = make_optimizer(self.parts.lm.module, config)
        if self.resumed:
            self.checkpoints.restore(optimizer)
        self._rewind()
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
        check_policy(self.parts.lm, self.parts.demonstrations[0].prompt_ids)
        save_model(self.parts.lm.module, self.parts.tokenizer, self.run_dir / "models" / "sft")
        self.position = dataclasses.replace(self.position, stage_done=True)
        self._save(None)
        self.resumed = False  # the checkpoint that was found lies behind the policy now, and must not be put back

    def _grpo(self) -> None:
        config = self.recipe.grpo
        assert config is not None
        within = self.resumed and self.position.stage == "grpo"
        if not within:
            self._begin_grpo()
        reference = self._reference(within) if config.kl_coef > 0 else None
        for line in (*describe(config), *remarks(config)):
            self.terminal.say(line)
        optimizer = make_optimizer(self.parts.lm.module, config)
        critic = self._critic(config) if config.advantage == "gae" else None
        if within:
            self.checkpoints.restore(optimizer)
        self.parts.engine.load_weights(self.parts.lm.module)  # SFT or a checkpoint may have changed them since
        self._rewind()
        self._evaluate(optimizer)
        first = self.position.iteration + 1
        if critic is None:
            iterations = grpo_iterations(self.parts, config, reference, optimizer, first, self.position.kl_coef)
        else:
            options = self.recipe.critic
            iterations = ppo_iterations(
                self.parts, config, options, reference, optimizer, *critic, first, self.position.kl_coef
            )
        title = "GRPO" if critic is None else "PPO"
        with self.terminal.stage(title, config.iterations, done=self.position.iteration) as bar:
            while (done := self._next(iterations, optimizer)) is not None:
                last = done.iteration == config.iterations
                tokens = self.position.tokens + int(done.metrics["num_tokens"])
                with self.log.iteration():
                    self.log.metrics("grpo", done.iteration, done.step, done.metrics | {"num_tokens": float(tokens)})
                    self.log.completions(iteration_rows(done))
                self.position = dataclasses.replace(
                    self.position,
                    iteration=done.iteration,
                    step=done.step,
                    tokens=tokens,
                    stage_done=last,
                    kl_coef=done.kl_coef,
                )
                compared = (no_spread(done), no_steps(done), few_updates(self.log, done, config))
                warnings = (*(compared if critic is None else ()), constant_rewards(self.log, done))
                for warning in itertools.chain(*warnings):
                    self.terminal.say(warning)
                evaluated = self._evaluate(optimizer)
                bar.advance(1, **headline(done, config.prompts_per_iteration, evaluated, main_measure(self.parts)))
                if last or done.iteration % self.recipe.checkpoint.every == 0:
                    self._save(optimizer)
                if self.parts.stop.requested:
                    self._stop(optimizer)
        if self.position.iteration < config.iterations:
            self._stop(optimizer)
        check_policy(self.parts.lm, self.parts.train_prompts[0].token_ids)
        save_model(self.parts.lm.module, self.parts.tokenizer, self.run_dir / "models" / "grpo")

    def _critic(self, config: Grpo) -> tuple[Critic, torch.optim.Optimizer]:
        """A critic that begins as the policy is now, and its optimizer; both are part of every checkpoint."""
        options = self.recipe.critic
        critic = critic_of(self.parts.lm, own_trunk=options.kind == "separate")
        rate = {"learning_rate": options.learning_rate}
        optimizer = make_optimizer(critic.module, config.model_copy(update=rate))
        self.checkpoints.also(critic.module, optimizer)
        return critic, optimizer

    def _next(self, iterations: Iterator[Iteration], optimizer: torch.optim.Optimizer) -> Iteration | None:
        """The next iteration's update, or None: all are done, or a stop was asked for before one."""
        # Rewards are called before the update: the weights are still those of the last recorded iteration.
        with self._keeping(optimizer):
            return next(iterations, None)

    @contextlib.contextmanager
    def _keeping(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """If a reward function fails, save first what was done before it was called."""
        try:
            yield
        except RewardError:
            if self.position.iteration > 0:
                self._save(optimizer)
            raise

    def _begin_grpo(self) -> None:
        """The policy as SFT left it, if there was an SFT."""
        if self.recipe.sft is not None:
            if not (self.position.stage == "sft" and self.position.stage_done):
                raise OncurveError(f"{self.run_dir}: the [sft] stage of this recipe has not been finished yet")
            if self.resumed:
                self.checkpoints.restore(None)
        self.position = dataclasses.replace(self.position, stage="grpo", iteration=0, step=0, stage_done=False)

    def _reference(self, within: bool) -> CausalLM:
        """The model as it was when GRPO began: in memory, or on resuming loaded again and known by its digest."""
        module = self.parts.lm.module
        if within and self.recipe.sft is not None:
            source = self.run_dir / "models" / "sft"
            try:
                again = type(module).from_pretrained(source, dtype=module.dtype)
            except (OSError, ValueError, RuntimeError, SafetensorError) as error:
                raise OncurveError(
                    f"the reference cannot be loaded from {source}: {error}. Put that directory back, or begin a new "
                    "run with --run.name NAME"
                ) from error
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

    def _evaluations_due(self, iteration: int) -> tuple[str, ...]:
        """The kinds that are due after ``iteration``: both before and after GRPO, greedy alone in between."""
        assert self.recipe.grpo is not None
        if iteration in (0, self.recipe.grpo.iterations):
            return ("greedy", "sampled")
        every = self.recipe.eval.every
        return ("greedy",) if every > 0 and iteration % every == 0 else ()

    def _evaluate(self, optimizer: torch.optim.Optimizer) -> list[Evaluation]:
        """Evaluate the present policy and record it, if that is due here and was not done before an interruption."""
        iteration = self.position.iteration
        due = self._evaluations_due(iteration)
        if not due or not self.parts.eval_prompts or self.log.has_evals("grpo", iteration):
            return []
        with self._keeping(optimizer):
            found = evaluations(self.parts, sampled="sampled" in due)
        with self.log.iteration():
            for evaluation in found:
                self.log.completions(evaluation_rows(evaluation, iteration))
                self.log.evals(estimate_rows(evaluation, iteration))
        return found

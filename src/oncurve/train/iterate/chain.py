"""Iterative GRPO, Algorithm 1 of DeepSeekMath (arXiv 2402.03300), as a chain of ordinary runs, each in its directory:

    iterate/sft                fine-tuning, if the recipe has it
    iterate/00/samples         what this policy answers, labelled by a rule
    iterate/00/reward_model    the first reward model, trained on that
    iterate/NN/grpo            outer iteration NN: the policy before it is the reference, the reward model the reward
    iterate/NN/samples         what the policy answers now
    iterate/NN/reward_model    the reward model before it, trained on: new rows and replayed ones

A part that is done is not done again and one that was interrupted goes on by itself, so the whole goes on wherever it
was killed; and since every draw is a function of the seed and of its place, to the same bits.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.config import Iterate, Recipe
from oncurve.recipe import recipe_from_dict
from oncurve.rewards.learned import LEARNED
from oncurve.runlog import RunLog, RunLogError
from oncurve.terminal import Terminal
from oncurve.train.directory import check_run_directory, open_run
from oncurve.train.iterate.check import check_iterate
from oncurve.train.iterate.collect import HELD_OUT, ROWS, all_alike, collect, share_right, stored_rows, write_rows
from oncurve.train.iterate.measure import STAGE, estimate_rows, judge_policies, measures_of
from oncurve.train.iterate.replay import replay_size, replayed
from oncurve.train.reward_run import train_reward_model
from oncurve.train.run import run
from oncurve.train.setup import begin_process, run_directory
from oncurve.types import OncurveError

TRAINING = "training.jsonl"


@dataclass(frozen=True)
class IterateResult:
    run_dir: Path
    policy: Path
    reward_model: Path
    """Both are plain transformers directories."""
    metrics: dict[int, dict[str, float]]
    """By outer iteration, from 0."""


def iterate(recipe: Recipe, terminal: Terminal | None = None) -> IterateResult:
    """Run ``recipe``'s outer iterations, or go on where an earlier call was interrupted.

    Raises:
        OncurveError: anything the user can mend; what is on disk stays.
        Stopped: SIGINT or SIGTERM; everything was saved first.
    """
    terminal = terminal or Terminal()
    check_iterate(recipe)
    run_dir = run_directory(recipe)
    check_run_directory(recipe, run_dir)
    with open_run(recipe, run_dir) as log:
        log.set_meta("status", "running")
        try:
            result = _Chain(recipe, log, run_dir, terminal).go()
        except BaseException:
            with contextlib.suppress(RunLogError):  # the disk may be full, which is then what is to be told
                log.set_meta("status", "stopped")
            raise
        log.set_meta("status", "finished")
        return result


class _Chain:
    def __init__(self, recipe: Recipe, log: RunLog, run_dir: Path, terminal: Terminal) -> None:
        assert recipe.iterate is not None
        self.recipe, self.log, self.run_dir, self.terminal = recipe, log, run_dir, terminal
        self.options: Iterate = recipe.iterate
        self.parts = run_dir / "iterate"

    def go(self) -> IterateResult:
        self.parts.mkdir(exist_ok=True)
        policy = self._fine_tuned()
        self._collect(0, policy)
        judge = self._first_reward_model(policy)
        self._measure(0, None, judge)
        for number in range(1, self.options.iterations + 1):
            self.terminal.say(f"outer iteration {number} of {self.options.iterations}")
            policy = self._grpo(number, policy, judge)
            self._collect(number, policy)
            before, judge = judge, self._refreshed(number, judge)
            self._measure(number, before, judge)
        return IterateResult(self.run_dir, Path(policy), judge, self._metrics())

    # -- the parts ------------------------------------------------------------------------------------------------

    def _fine_tuned(self) -> str:
        """`model.path`, or the model that ``[sft]`` has made of it."""
        if self.recipe.sft is None:
            return self.recipe.model.path
        if not _finished(self.parts / "sft", "sft"):
            run(self._part("sft", grpo=None), stages=("sft",), terminal=self.terminal)
        return str(self.parts / "sft" / "models" / "sft")

    def _grpo(self, number: int, policy: str, judge: Path) -> str:
        """Train ``policy``, which is the reference too, with the reward model ``judge`` as its only reward."""
        directory, rewards = self._of(number), self.recipe.rewards
        if not _finished(directory / "grpo", "grpo"):
            assert self.recipe.grpo is not None
            changed = rewards.model_dump(exclude_none=True) | {
                "functions": [f"{LEARNED}{judge}"],
                "weights": [1.0],
                "metrics": [*rewards.functions, *rewards.metrics],
            }
            part = self._part(f"{number:02}/grpo", sft=None, policy=policy, rewards=changed)
            earlier = (number - 1) * self.recipe.grpo.iterations
            run(part, stages=("grpo",), terminal=self.terminal, earlier=earlier)
        return str(directory / "grpo" / "models" / "grpo")

    def _collect(self, number: int, policy: str) -> None:
        directory = self._of(number) / "samples"
        if not (directory / ROWS).exists():
            collect(
                self._part("samples", policy=policy, iterate=self.options.model_dump()),
                number,
                directory,
                self.terminal,
            )

    def _first_reward_model(self, policy: str) -> Path:
        rows = stored_rows(self._of(0) / "samples" / ROWS)
        if all_alike(rows):
            label = f"all have the label {rows[0]['label']:g}" if rows else "there is none"
            raise OncurveError(
                f"of {len(rows)} completions of the policy {label} ({self.options.label}): a reward model has nothing "
                "to learn from them. Fine-tune the policy until some are right, or raise iterate.prompts"
            )
        assert self.recipe.reward_model is not None
        return self._reward_model(0, rows, self.recipe.reward_model.path or policy)

    def _refreshed(self, number: int, judge: Path) -> Path:
        """The old reward model, trained on; or the old one itself, where nothing is to be learned or none is wanted."""
        if not self.options.refresh:
            return judge
        new = stored_rows(self._of(number) / "samples" / ROWS)
        if all_alike(new):
            what = f"all have the label {new[0]['label']:g}" if new else "there is none"
            self.terminal.say(
                f"the reward model stays as it is: of {len(new)} new completions {what}, and nothing tells a right one "
                "from a wrong one"
            )
            return judge
        wanted = replay_size(len(new), self.options.replay)
        history = {k: stored_rows(self._of(k) / "samples" / ROWS) for k in range(number)} if wanted else {}
        old = replayed(history, wanted, seed=self.recipe.run.seed, number=number)
        if len(old) < wanted:
            self.terminal.say(f"replay: {wanted} earlier rows are wanted and there are {len(old)}")
        return self._reward_model(number, [*new, *old], str(judge))

    def _reward_model(self, number: int, rows: list[dict[str, object]], begins_as: str) -> Path:
        directory = self._of(number)
        if not _finished(directory / "reward_model", "reward_model"):
            if not (directory / TRAINING).exists():
                write_rows(directory / TRAINING, rows)
            assert self.recipe.reward_model is not None
            changed = self.recipe.reward_model.model_dump(exclude_none=True) | {
                "path": begins_as,
                "data": str(directory / TRAINING),
                "held_out": 0,
            }
            part = self._part(f"{number:02}/reward_model", sft=None, grpo=None, reward_model=changed)
            train_reward_model(part, self.terminal)
        return directory / "reward_model" / "models" / "reward_model"

    def _measure(self, number: int, before: Path | None, after: Path) -> None:
        """Judge all policies so far by the reward model before and after, and record it, unless that was done."""
        if self.log.has_evals(STAGE, number):
            return
        device = begin_process(self.recipe)
        held_out = {k: stored_rows(self._of(k) / "samples" / HELD_OUT) for k in range(number + 1)}
        new = judge_policies(self.recipe, after, held_out, device)
        same = before is None or before == after
        old = {} if before is None else new if same else judge_policies(self.recipe, before, held_out, device)
        rows = stored_rows(self._of(number) / "samples" / ROWS)
        trained = [] if same and before is not None else stored_rows(self._of(number) / TRAINING)
        counts = {
            "rows/collected": float(len(rows)),
            "rows/right": share_right(rows),
            "rows/trained_on": float(len(trained)),
            "rows/replayed": float(sum(row["iteration"] < number for row in trained)),
        }
        with self.log.iteration():
            self.log.metrics(STAGE, number, number, measures_of(number, held_out[number], old, new) | counts)
            self.log.evals(estimate_rows(number, new))

    # -- helpers --------------------------------------------------------------------------------------------------

    def _of(self, number: int) -> Path:
        return self.parts / f"{number:02}"

    def _part(self, place: str, *, policy: str | None = None, **sections: object) -> Recipe:
        """The recipe of one part, in ``iterate/place``, beginning with ``policy``; ``sections`` take the place of the
        recipe's own."""
        tree: dict[str, Any] = {**self.recipe.model_dump(exclude_none=True), "iterate": None, **sections}
        where = self.parts / place
        tree["run"] = tree["run"] | {"dir": str(where.parent), "name": where.name}
        if policy is not None and policy != self.recipe.model.path:
            model = {key: value for key, value in tree["model"].items() if key not in ("tokenizer", "chat_template")}
            tree["model"] = model | {"path": policy}
        return recipe_from_dict({name: section for name, section in tree.items() if section is not None})

    def _metrics(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {number: {} for number in range(self.options.iterations + 1)}
        for name in self.log.metric_names(STAGE):
            for number, _, value in self.log.series(name, STAGE):
                if number in found:
                    found[number][name] = value
        return found


def _finished(run_dir: Path, stage: str) -> bool:
    if not (run_dir / "run.sqlite").is_file() or not (run_dir / "models" / stage / "config.json").is_file():
        return False
    with RunLog.open(run_dir, readonly=True) as log:
        return log.get_meta("status") == "finished"

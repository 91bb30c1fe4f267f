"""A reward that says the same of every completion teaches nothing. Told while there is still a day to be saved."""

from __future__ import annotations

import math
from collections.abc import Iterator

from oncurve.config import Grpo
from oncurve.runlog import RunLog
from oncurve.terminal import clean
from oncurve.train.grpo import Iteration

ITERATIONS = 20
IDLE_ITERATIONS = 5
_SAMPLES = 3
_CHARACTERS = 200


def constant_rewards(log: RunLog, done: Iteration) -> Iterator[str]:
    """A warning, with three samples, for every reward function that with ``done``, the last iteration in ``log``, has
    given one and the same value to every completion of 20 iterations. Once for each stretch, however long it gets."""
    for name in done.rollouts.scores.parts:
        recent = _levels(log, name, ITERATIONS + 1)
        value = recent[-1]
        if value is None or len(recent) < ITERATIONS or not _all_same(recent[-ITERATIONS:]):
            continue
        if len(recent) > ITERATIONS and _all_same(recent):
            continue  # told before
        says = "has scored no completion" if math.isnan(value) else f"has given {value:g} to every completion"
        yield (
            f"warning: reward {name!r} {says} of the last {ITERATIONS} iterations; it teaches nothing. Some of them:\n"
            f"{_samples(done)}"
        )


def no_spread(done: Iteration) -> Iterator[str]:
    """A warning, with three samples, if already the first iteration had nothing to learn from."""
    if done.iteration == 1 and done.metrics["frac_reward_zero_std"] == 1.0:
        # A punishment of length, or a KL in the reward, may still tell them apart.
        nothing = "nothing" if done.metrics["advantage/abs_mean"] == 0 else "no answer"
        yield (
            "warning: in the first iteration all completions of a prompt had the same reward, for every prompt: there "
            f"was {nothing} to learn from (mean reward {_mean_total(done):g}). Some of them:\n{_samples(done)}"
        )


def no_steps(done: Iteration) -> Iterator[str]:
    """A warning if process supervision has nothing but whole completions to look at."""
    if done.iteration == 1 and done.rollouts.steps is not None and not done.rollouts.scores.steps:
        yield (
            "warning: grpo.advantage = process, and no reward function scored steps: with one number for a completion "
            "this is outcome supervision. A function that scores steps returns a list of (end, reward) for each"
        )


def few_updates(log: RunLog, done: Iteration, config: Grpo) -> Iterator[str]:
    """A warning, with three samples, if each of the last 5 iterations in ``log``, of which ``done`` is the newest, made
    no update, or with dynamic sampling kept fewer than half of the groups it wanted. Once for each stretch."""
    recent = _kept(log, config, IDLE_ITERATIONS + 1)
    if len(recent) < IDLE_ITERATIONS:
        return
    last, before = recent[-IDLE_ITERATIONS:], recent[:-IDLE_ITERATIONS]
    if not any(last):
        if not before or any(before):
            yield (
                f"warning: the last {IDLE_ITERATIONS} iterations changed nothing, for in none of their groups did the "
                f"rewards differ: every update was skipped (mean reward {_mean_total(done):g}). The prompts are too "
                "hard or too easy for this model, or the reward says the same of everything. Look at the completions; "
                "what may help: other prompts, a larger grpo.group_size, fine-tuning first. Some of them:\n"
                f"{_samples(done)}"
            )
    elif max(last) < 0.5 and not (before and max(before) < 0.5):
        wanted = config.prompts_per_iteration
        yield (
            f"warning: in each of the last {IDLE_ITERATIONS} iterations fewer than half of the {wanted} groups that "
            f"grpo.prompts_per_iteration asks for had rewards that differ, the last one {last[-1] * wanted:.0f} of "
            f"{len(done.rollouts.groups)} sampled: the batches are small, and their gradient is noisy. What may help: "
            "prompts that are sometimes solved, more rounds (grpo.dynamic_sampling), a larger grpo.group_size"
        )


def _kept(log: RunLog, config: Grpo, last: int) -> list[float]:
    """For each of the ``last`` iterations the share of what it wanted to train on that it did train on: of its groups
    with dynamic sampling, else of its optimizer steps."""
    if config.dynamic_sampling:
        kept = log.series("dynamic_sampling/kept", "grpo", last)
        return [value / config.prompts_per_iteration for _, _, value in kept]
    steps = config.epochs * config.minibatches
    # Without dynamic sampling few steps are no sign of anything: a minibatch may be a single group.
    return [float(value < steps) for _, _, value in log.series("skipped_updates", "grpo", last)]


def _levels(log: RunLog, name: str, last: int) -> list[float | None]:
    """For each of the ``last`` iterations the value that all its completions got: NaN if none was scored, None if they
    differ."""
    means = log.series(f"rewards/{name}/mean", "grpo", last)
    spreads = log.series(f"rewards/{name}/std", "grpo", last)
    # The spread is NaN where fewer than two were scored.
    return [
        mean if spread == 0.0 or math.isnan(spread) else None
        for (_, _, mean), (_, _, spread) in zip(means, spreads, strict=True)
    ]


def _all_same(levels: list[float | None]) -> bool:
    first = levels[0]
    if first is None:
        return False
    if math.isnan(first):
        return all(level is not None and math.isnan(level) for level in levels)
    # The means of equal numbers differ by rounding, where not all iterations scored as many.
    return all(level is not None and math.isclose(level, first, rel_tol=1e-9) for level in levels)


def _mean_total(done: Iteration) -> float:
    """What the reward functions gave on average, before anything is taken off; NaN if nothing was scored."""
    scored = [total for row in done.rollouts.scores.totals for total in row if not math.isnan(total)]
    return math.fsum(scored) / len(scored) if scored else math.nan


def _samples(done: Iteration) -> str:
    """Three completions, a line each; of three prompts where there are as many."""
    groups = done.rollouts.groups[:_SAMPLES]
    texts = [group.completions[0].text for group in groups]
    if len(groups) < _SAMPLES:
        texts = [completion.text for group in groups for completion in group.completions][:_SAMPLES]
    return "\n".join(f"  {_short(text)}" for text in texts)


def _short(text: str) -> str:
    line = " ".join(clean(text).split())
    return line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}..."

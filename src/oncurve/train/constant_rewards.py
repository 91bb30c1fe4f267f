"""A reward that says the same of every completion teaches nothing. Told while there is still a day to be saved."""

from __future__ import annotations

import math
from collections.abc import Iterator

from oncurve.runlog import RunLog
from oncurve.terminal import clean
from oncurve.train.grpo import Iteration

ITERATIONS = 20
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
        yield (
            "warning: in the first iteration all completions of a prompt had the same reward, for every prompt: there "
            f"was nothing to learn from (mean reward {done.metrics['reward']:g}). Some of them:\n"
            f"{_samples(done)}"
        )


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

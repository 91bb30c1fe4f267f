"""Group Relative Policy Optimization, read top to bottom: one iteration is one turn of ``grpo_iterations``.

DeepSeekMath (arXiv 2402.03300), Algorithm 1 with outcome supervision and eq. 3-4:

    A_i = (r_i - mean(r)) / std(r)                                    the same for every token of completion i
    loss = - mean_i 1/|o_i| sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i) + kl_coef * k3_t

with rho = policy/old per token and k3 the KL estimator to the frozen reference, inside the loss. Shapes: P prompts,
G completions each, B = P*G rows (fewer with ``train_fraction``), T tokens.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.data.collate import collate, microbatches
from oncurve.data.order import prompts_for_iteration
from oncurve.functional import (
    aggregate,
    clip_flags,
    clipped_surrogate,
    denominator,
    group_normalised,
    k3,
    token_ratio,
)
from oncurve.models.causal_lm import CausalLM
from oncurve.models.token_logprobs import token_logprobs
from oncurve.recipe import completions_kept
from oncurve.rewards import Scores, score
from oncurve.train.setup import Parts
from oncurve.train.step import (
    TokenMeans,
    apply_gradients,
    backward,
    check_sampled,
    equal_parts,
    learning_rate,
    recomputing,
    shuffled,
)
from oncurve.types import Batch, Completion, Group, OncurveError, Prompt, SamplingParams

# Mean over a completion, then over completions: eq. 3 of the paper. One of 10 tokens weighs as much as one of 100.
AGGREGATION = "sequence_mean"


@dataclass(frozen=True)
class Rollouts:
    """One iteration's completions with all that is known about them. Lists are ``[P][G]``."""

    groups: list[Group]
    scores: Scores
    rewards: Tensor
    """``[P, G]``; NaN = unscored."""
    advantages: Tensor
    """``[P, G]``."""


@dataclass(frozen=True)
class Work:
    """What the update of one iteration reads. Rows are those that are trained on."""

    batch: Batch
    advantages: Tensor
    """``[B, 1]``: the same for every token of a completion."""
    old_logprobs: Tensor
    """``[B, T]``. With ``old_is_policy`` it is filled in by the training forward itself."""
    old_is_policy: bool
    ref_logprobs: Tensor | None
    """``[B, T]``; None without a KL term."""


@dataclass(frozen=True)
class Iteration:
    """What is left of one iteration for the records."""

    iteration: int
    step: int
    """Optimizer steps done since GRPO began."""
    rollouts: Rollouts
    trained_rows: list[int]
    """Which of the P*G rows were trained on, in the order of ``old_logprobs``."""
    old_logprobs: list[list[float]]
    ref_logprobs: list[list[float]] | None
    metrics: dict[str, float]


def grpo_iterations(
    parts: Parts,
    config: Grpo,
    reference: CausalLM | None,
    optimizer: torch.optim.Optimizer,
    first_iteration: int,
) -> Iterator[Iteration]:
    """Iterations ``first_iteration`` (1-based) to the last, yielding after each one's update.

    The generator stops before an update, with the weights untouched, once ``parts.stop`` is requested.
    """
    steps_per_iteration = config.epochs * config.minibatches
    total_steps = config.iterations * steps_per_iteration
    for iteration in range(first_iteration, config.iterations + 1):
        clock = Clock()
        # 1. Sample: G completions for each of P prompts, from the present policy.
        chosen = prompts_for_iteration(
            len(parts.train_prompts), config.prompts_per_iteration, parts.recipe.run.seed, iteration - 1
        )
        groups = parts.engine.sample(
            [parts.train_prompts[index] for index in chosen],
            config.group_size,
            SamplingParams(parts.recipe.sampling.max_new_tokens, parts.recipe.sampling.temperature),
            seed=parts.recipe.run.seed,
            iteration=iteration,
        )
        check_sampled(groups)
        clock.lap("sampling")
        if parts.stop.requested:
            return

        # 2. Score, and compare each completion with its own group: [P, G].
        scores = score(groups, parts.rewards, trainer_state={"iteration": iteration})
        rewards = torch.tensor(scores.totals, dtype=torch.float64)
        advantages = group_normalised(rewards)
        rollouts = Rollouts(groups, scores, rewards, advantages)
        clock.lap("rewards")

        # 3. One padded batch of the rows to train on: [B, T].
        rows = rows_to_train_on(advantages, config.train_fraction)
        flat = [(group.prompt, completion) for group in groups for completion in group.completions]
        trained = [flat[row] for row in rows]
        batch = collate(
            [(prompt.token_ids, c.token_ids) for prompt, c in trained], parts.pad_id, device=parts.lm.device
        )

        # 4. Log-probs of the policy that sampled and of the reference. With a single optimizer step the old policy is
        #    the policy itself: its log-probs come with the training forward and the ratio is exactly 1.
        free = steps_per_iteration == 1 and bool(advantages.any())
        work = Work(
            batch=batch,
            advantages=advantages.flatten()[rows].to(parts.lm.device, torch.float32)[:, None],
            old_logprobs=torch.zeros_like(batch.tokens, dtype=torch.float32)
            if free
            else frozen_logprobs(parts, config, parts.lm, batch),
            old_is_policy=free,
            ref_logprobs=None if reference is None else frozen_logprobs(parts, config, reference, batch),
        )
        clock.lap("logprobs")
        if parts.stop.requested:
            return

        # 5. Update: epochs x minibatches optimizer steps. A minibatch whose advantages are all zero makes no step, not
        #    even one of momentum.
        means = TokenMeans()
        steps: list[dict[str, float]] = []
        for index, minibatch in enumerate(minibatches(config, len(rows), parts.recipe.run.seed, iteration)):
            if not work.advantages[minibatch].any():
                continue
            loss = accumulate_gradient(parts, config, work, minibatch, means)
            if not steps:
                check_sampler(sampler_gap(trained, work, minibatch), parts.recipe.model.dtype)
            rate = learning_rate(config, (iteration - 1) * steps_per_iteration + index, total_steps)
            grad_norm = apply_gradients(parts.lm.module, optimizer, config, rate)
            steps.append({"loss": loss, "grad_norm": grad_norm, "learning_rate": rate})
        parts.engine.load_weights(parts.lm.module)
        clock.lap("update")

        metrics = (
            reward_metrics(rollouts)
            | completion_metrics(groups)
            | {name: sum(s[name] for s in steps) / len(steps) for name in (steps[0] if steps else {})}
            | means.means()
            | sampler_gap(trained, work, range(len(rows)))
            | {"skipped_updates": float(steps_per_iteration - len(steps))}
            | clock.metrics(tokens=sum(len(completion.token_ids) for _, completion in flat))
        )
        yield Iteration(
            iteration,
            iteration * steps_per_iteration,
            rollouts,
            rows,
            unpadded(work.old_logprobs, batch),
            None if work.ref_logprobs is None else unpadded(work.ref_logprobs, batch),
            with_logged(metrics, scores.metrics),
        )


def rows_to_train_on(advantages: Tensor, fraction: float) -> list[int]:
    """Row numbers (of P*G) to train on: of every group the ``ceil(fraction * G)`` with the largest |advantage|.

    1.0 is the paper. Less is a deviation in the manner of CPPO (arXiv 2503.22342): advantages are computed from the
    whole group first, then the completions that say least are left out of the update, KL term included.
    """
    group_size = advantages.shape[1]
    keep = completions_kept(group_size, fraction)
    best = advantages.abs().argsort(dim=1, descending=True, stable=True)[:, :keep].sort(dim=1).values
    return (best + torch.arange(len(advantages))[:, None] * group_size).flatten().tolist()


def minibatches(config: Grpo, rows: int, seed: int, iteration: int) -> Iterator[list[int]]:
    """``epochs`` passes over ``rows`` rows, each in an order of its own, cut into ``minibatches`` equal parts."""
    for epoch in range(config.epochs):
        yield from equal_parts(shuffled(rows, "minibatches", seed, iteration, epoch), config.minibatches)


@torch.no_grad()
def frozen_logprobs(parts: Parts, config: Grpo, lm: CausalLM, batch: Batch) -> Tensor:
    """``[B, T]`` log-probs of ``batch`` under ``lm``, without gradient."""
    result = torch.zeros_like(batch.tokens, dtype=torch.float32)
    for rows in microbatches(batch.lengths.tolist(), config.microbatch_tokens):
        micro = batch.take(rows)
        logprobs, _ = token_logprobs(lm, micro, parts.recipe.sampling.temperature)
        result[rows, : micro.tokens.shape[1]] = logprobs.float()
    return result


def accumulate_gradient(parts: Parts, config: Grpo, work: Work, minibatch: list[int], means: TokenMeans) -> float:
    """Add the gradient of one minibatch's loss to the parameters; returns the loss.

    The denominator is counted over the whole minibatch before it is cut, so the cut cannot change the gradient.
    """
    completions = denominator(work.batch.completion_mask[minibatch], AGGREGATION)
    total = 0.0
    with recomputing(parts.lm.module, parts.recipe.model.gradient_checkpointing):
        for chosen in microbatches(work.batch.lengths[minibatch].tolist(), config.microbatch_tokens):
            rows = [minibatch[index] for index in chosen]
            micro = work.batch.take(rows)
            mask, width = micro.completion_mask, micro.tokens.shape[1]
            advantages = work.advantages[rows]
            logprobs, entropy = token_logprobs(parts.lm, micro, parts.recipe.sampling.temperature)
            if work.old_is_policy:
                work.old_logprobs[rows, :width] = logprobs.detach().float()
            ratio = token_ratio(logprobs, work.old_logprobs[rows, :width])
            per_token = clipped_surrogate(ratio, advantages, clip_low=config.clip_low, clip_high=config.clip_high)
            values = {"entropy": entropy}
            if work.ref_logprobs is not None:
                values["kl"] = k3(logprobs, work.ref_logprobs[rows, :width])
                per_token = per_token + config.kl_coef * values["kl"]
            total += backward(aggregate(per_token, mask, AGGREGATION, completions))
            low, high = clip_flags(ratio, advantages, clip_low=config.clip_low, clip_high=config.clip_high)
            clipped = {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
            means.add(mask, ratio=ratio, **values, **clipped)
    return total


def unpadded(values: Tensor, batch: Batch) -> list[list[float]]:
    """Per row the values at the completion's tokens."""
    return [row[mask].tolist() for row, mask in zip(values, batch.completion_mask, strict=True)]


def sampler_gap(trained: list[tuple[Prompt, Completion]], work: Work, rows: Sequence[int]) -> dict[str, float]:
    """How far the engine's log-probs are from the trainer's on the same tokens, in nats."""
    index = list(rows)
    ours = work.old_logprobs[index][work.batch.completion_mask[index]]
    theirs = ours.new_tensor([value for row in index for value in trained[row][1].sampler_logprobs])
    gap = (ours - theirs).abs()
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }


def check_sampler(gap: dict[str, float], dtype: str) -> None:
    """Fail loudly if the engine does not sample from the policy that is trained: it may hold other weights, another
    temperature or another template. Rounding alone stays far below these bounds."""
    bound = 0.01 if dtype == "float32" else 0.2
    mean = gap["sampling/sampling_logp_difference/mean"]
    if not mean <= bound:
        raise OncurveError(
            f"the engine and the trainer disagree: mean |log-prob difference| on the sampled tokens is {mean:.4g} nats "
            f"(allowed with {dtype}: {bound}); the engine is not sampling from the present weights"
        )


def reward_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Under TRL's names; unscored completions are left out of every mean and counted."""
    rewards = rollouts.rewards
    scored = ~rewards.isnan()
    metrics = {
        "reward": float(rewards.nanmean()) if scored.any() else math.nan,
        "reward_std": _mean([_std(group) for group in rewards]),
        "frac_reward_zero_std": _mean([float(_std(group) == 0.0) for group in rewards]),
        "unscored": float((~scored).sum()),
        "advantage/abs_mean": float(rollouts.advantages.abs().mean()),
    }
    for name, values in rollouts.scores.parts.items():
        part = [value for row in values for value in row if value is not None]
        metrics[f"rewards/{name}/mean"] = _mean(part)
        metrics[f"rewards/{name}/std"] = statistics.stdev(part) if len(part) > 1 else math.nan
    return metrics


def with_logged(metrics: dict[str, float], logged: Mapping[str, float]) -> dict[str, float]:
    """``metrics`` and what the reward functions gave to ``log_metric``, which must not take the place of a metric.

    Raises OncurveError naming the metric if it would.
    """
    taken = sorted(metrics.keys() & logged.keys())
    if taken:
        raise OncurveError(f"a reward function calls log_metric({taken[0]!r}, ...), a name of Oncurve's own; rename it")
    return {**metrics, **logged}


def completion_metrics(groups: list[Group]) -> dict[str, float]:
    lengths = [len(c.token_ids) for group in groups for c in group.completions]
    ended = [len(c.token_ids) for group in groups for c in group.completions if not c.truncated]
    return {
        "num_tokens": float(sum(lengths)),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/mean_terminated_length": _mean(ended),
    }


def _std(group: Tensor) -> float:
    scored = group[~group.isnan()]
    if len(scored) < 2 or scored.max() == scored.min():
        return 0.0
    return float(scored.std())


def _mean(values: list) -> float:
    return sum(values) / len(values) if values else math.nan


class Clock:
    """Seconds of each phase of an iteration, as ``time/...`` metrics."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{phase}"] = now - self._last
        self._last = now

    def metrics(self, tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._began
        return self._laps | {"step_time": total, "perf/tokens_per_second": tokens / total}

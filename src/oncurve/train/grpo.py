"""Group Relative Policy Optimization, read top to bottom: one iteration is one turn of ``grpo_iterations``.

With the default preset it is DeepSeekMath (arXiv 2402.03300), Algorithm 1 with outcome supervision and eq. 3-4:

    A_i = (r_i - mean(r)) / std(r)                                    the same for every token of completion i
    loss = - mean_i 1/|o_i| sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i) + kl_coef * k3_t

with rho = policy/old per token and k3 the KL estimator to the frozen reference, inside the loss. Every term can be
another one: ``oncurve.presets`` says which there are, ``oncurve.train.objective`` turns their names into functions.
Shapes: P prompts, G completions each, B = P*G rows (fewer if some are left out of the update), T tokens.
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
from oncurve.data.order import further_prompts, prompts_for_iteration
from oncurve.functional import (
    adaptive_kl_coef,
    aggregate,
    denominator,
    group_token_counts,
    informative_groups,
    k1,
    place,
    soft_overlong,
)
from oncurve.models.causal_lm import CausalLM
from oncurve.models.shared_prefix import grouped_microbatches, prefixes, worth_sharing
from oncurve.models.token_logprobs import token_logprobs
from oncurve.recipe import completions_kept
from oncurve.rewards import Scores, joined, score
from oncurve.train.objective import Scored, Tokens, advantages_of, kl_in_loss, policy_loss
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

# Samples over which an adaptive kl_coef forgets (PPO-RLHF's 10,000, arXiv 1909.08593 section 2.2).
KL_HORIZON = 10_000


@dataclass(frozen=True)
class Rollouts:
    """One iteration's completions with all that is known about them. Lists are ``[P][G]``; with dynamic sampling P may
    be more than ``prompts_per_iteration``."""

    groups: list[Group]
    scores: Scores
    rewards: Tensor
    """``[P, G]`` float64: what the functions gave, less an overlong punishment and a KL in the reward; NaN =
    unscored."""
    advantages: Tensor
    """``[P, G]``."""
    rounds: int
    """Sampling rounds: 1, or more with dynamic sampling."""


@dataclass(frozen=True)
class Work:
    """What the update of one iteration reads. Rows are those that are trained on."""

    batch: Batch
    prompts: Tensor
    """``[B]`` int64: which prompt each row answers."""
    advantages: Tensor
    """``[B, 1]``: the same for every token of a completion."""
    sampler_logprobs: Tensor
    """``[B, T]``, as the engine saw them."""
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
    kl_coef: float
    """For the next iteration: the recipe's, or what an adaptive one has become."""
    metrics: dict[str, float]


def grpo_iterations(
    parts: Parts,
    config: Grpo,
    reference: CausalLM | None,
    optimizer: torch.optim.Optimizer,
    first_iteration: int,
    kl_coef: float | None = None,
) -> Iterator[Iteration]:
    """Iterations ``first_iteration`` (1-based) to the last, yielding after each one's update.

    ``kl_coef`` is where an adaptive coefficient stood; None: where the recipe begins. The generator stops before an
    update, with the weights untouched, once ``parts.stop`` is requested.
    """
    kl_coef = config.kl_coef if kl_coef is None else kl_coef
    steps_per_iteration = config.epochs * config.minibatches
    total_steps = config.iterations * steps_per_iteration
    for iteration in range(first_iteration, config.iterations + 1):
        clock = Clock()
        # 1. Sample G completions for each of P prompts from the present policy, and score them: [P, G].
        sampled = sample_and_score(parts, config, iteration, clock)
        if sampled is None:
            return
        groups, scores, rounds = sampled
        flat = [(group.prompt, completion) for group in groups for completion in group.completions]
        rewards = totals = torch.tensor(scores.totals, dtype=torch.float64)
        lengths = torch.tensor([[len(c.token_ids) for c in group.completions] for group in groups])
        if config.overlong_fraction:
            rewards = rewards + overlong(parts, config, lengths)
        if config.kl == "k1_in_reward" and reference is not None:
            rewards = rewards - kl_coef * kl_of_completions(parts, config, reference, flat).view_as(rewards)
            clock.lap("logprobs")

        # 2. Compare each completion with its own group: [P, G]. Choose the rows to train on.
        scored = Scored(rewards, stacked(scores, rewards), part_weights(parts), lengths)
        kept = kept_groups(config, totals)
        advantages = torch.where(kept[:, None], advantages_of(config, scored), 0.0)
        rollouts = Rollouts(groups, scores, rewards, advantages, rounds)
        # With no group kept, all rows are: the record has their log-probs, and zero advantages make no step.
        rows = rows_to_train_on(advantages, config.train_fraction, kept if kept.any() else ~kept)

        # 3. One padded batch of them, [B, T], with the log-probs of the policy that sampled and of the reference. With
        #    a single optimizer step the old policy is the policy itself: its log-probs come with the training forward
        #    and the ratio is exactly 1.
        free = steps_per_iteration == 1 and bool(advantages.any())
        work = make_work(parts, config, reference, flat, rows, advantages, old_is_policy=free)
        clock.lap("logprobs")
        if parts.stop.requested:
            return

        # 4. Update: epochs x minibatches optimizer steps. A minibatch whose advantages are all zero makes no step, not
        #    even one of momentum.
        means = TokenMeans()
        steps: list[dict[str, float]] = []
        for index, minibatch in enumerate(minibatches(config, len(rows), parts.recipe.run.seed, iteration)):
            if not work.advantages[minibatch].any():
                continue
            loss = accumulate_gradient(parts, config, work, minibatch, means, kl_coef)
            if not steps:
                check_sampler(sampler_gap(work, minibatch), parts.recipe.model.dtype)
            rate = learning_rate(config, (iteration - 1) * steps_per_iteration + index, total_steps)
            grad_norm = apply_gradients(parts.lm.module, optimizer, config, rate)
            steps.append({"loss": loss, "grad_norm": grad_norm, "learning_rate": rate})
        parts.engine.load_weights(parts.lm.module)
        clock.lap("update")

        next_kl_coef = kl_coef
        if config.kl_target is not None and "kl" in means.sums:
            kl = means.means()["kl"]
            n = min(len(rows), KL_HORIZON)
            next_kl_coef = adaptive_kl_coef(kl_coef, kl, target=config.kl_target, horizon=KL_HORIZON, n=n)
        metrics = (
            reward_metrics(rollouts)
            | completion_metrics(groups)
            | {name: sum(s[name] for s in steps) / len(steps) for name in (steps[0] if steps else {})}
            | means.means()
            | sampler_gap(work, range(len(rows)))
            | {"skipped_updates": float(steps_per_iteration - len(steps))}
            | ({"kl_coef": kl_coef} if config.kl_target is not None else {})
            | (sampling_metrics(rollouts, kept) if config.dynamic_sampling else {})
            | clock.metrics(tokens=sum(len(completion.token_ids) for _, completion in flat))
        )
        yield Iteration(
            iteration,
            iteration * steps_per_iteration,
            rollouts,
            rows,
            unpadded(work.old_logprobs, work.batch),
            None if work.ref_logprobs is None else unpadded(work.ref_logprobs, work.batch),
            next_kl_coef,
            with_logged(metrics, scores.metrics),
        )
        kl_coef = next_kl_coef


def sample_and_score(
    parts: Parts, config: Grpo, iteration: int, clock: Clock
) -> tuple[list[Group], Scores, int] | None:
    """Groups, their scores and the number of rounds it took; None if a stop was asked for.

    With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) there are further rounds, with prompts that this
    iteration has not had, until ``prompts_per_iteration`` groups have rewards that differ, or the rounds are used up.
    """
    seed, wanted = parts.recipe.run.seed, config.prompts_per_iteration
    params = SamplingParams(parts.recipe.sampling.max_new_tokens, parts.recipe.sampling.temperature)
    chosen = prompts_for_iteration(len(parts.train_prompts), wanted, seed, iteration - 1)
    groups: list[Group] = []
    scores: Scores | None = None
    used: list[int] = []
    rounds = 0
    while chosen and rounds < max(1, config.dynamic_sampling):
        prompts = [parts.train_prompts[index] for index in chosen]
        found = parts.engine.sample(prompts, config.group_size, params, seed=seed, iteration=iteration)
        check_sampled(found)
        clock.lap("sampling")
        if parts.stop.requested:
            return None
        more = score(found, parts.rewards, trainer_state={"iteration": iteration})
        clock.lap("rewards")
        groups, scores = groups + found, more if scores is None else joined(scores, more)
        used, rounds = used + chosen, rounds + 1
        missing = wanted - int(informative_groups(torch.tensor(scores.totals, dtype=torch.float64)).sum())
        chosen = further_prompts(len(parts.train_prompts), missing, seed, iteration - 1, used)
    assert scores is not None
    return groups, scores, rounds


def overlong(parts: Parts, config: Grpo, lengths: Tensor) -> Tensor:
    """``[P, G]`` soft punishment of completions that come near the token limit (DAPO eq. 13)."""
    limit = parts.recipe.sampling.max_new_tokens
    buffer = max(1, round(config.overlong_fraction * limit))
    return soft_overlong(lengths, max_length=limit, buffer=buffer).double()


def kl_of_completions(
    parts: Parts, config: Grpo, reference: CausalLM, flat: Sequence[tuple[Prompt, Completion]]
) -> Tensor:
    """``[P*G]`` sum over each completion of log policy - log reference: a KL in the reward concerns every completion,
    and each of them as one action (RLOO, arXiv 2402.14740, section 2)."""
    batch = collate([(prompt.token_ids, c.token_ids) for prompt, c in flat], parts.pad_id, device=parts.lm.device)
    policy, other = (frozen_logprobs(parts, config, lm, batch) for lm in (parts.lm, reference))
    return torch.where(batch.completion_mask, k1(policy, other), 0.0).sum(dim=1, dtype=torch.float64).cpu()


def stacked(scores: Scores, rewards: Tensor) -> Tensor:
    """``[P, G, K]`` float64: each function's score; NaN = unscored."""
    parts = [[[math.nan if v is None else v for v in row] for row in part] for part in scores.parts.values()]
    return torch.tensor(parts, dtype=rewards.dtype).permute(1, 2, 0)


def part_weights(parts: Parts) -> Tensor:
    return torch.tensor([reward.weight for reward in parts.rewards], dtype=torch.float64)


def kept_groups(config: Grpo, totals: Tensor) -> Tensor:
    """bool ``[P]``: all groups, or with dynamic sampling the first ``prompts_per_iteration`` whose completions the
    reward functions tell apart."""
    if not config.dynamic_sampling:
        return torch.ones(len(totals), dtype=torch.bool)
    informative = informative_groups(totals)
    return informative & (informative.cumsum(0) <= config.prompts_per_iteration)


def rows_to_train_on(advantages: Tensor, fraction: float, kept: Tensor | None = None) -> list[int]:
    """Row numbers (of P*G) to train on: of every kept group the ``ceil(fraction * G)`` with the largest |advantage|.

    1.0 is the paper. Less is a deviation in the manner of CPPO (arXiv 2503.22342): advantages are computed from the
    whole group first, then the completions that say least are left out of the update, KL term included.
    """
    group_size = advantages.shape[1]
    keep = completions_kept(group_size, fraction)
    best = advantages.abs().argsort(dim=1, descending=True, stable=True)[:, :keep].sort(dim=1).values
    return (
        (best + torch.arange(len(advantages))[:, None] * group_size)[slice(None) if kept is None else kept]
        .flatten()
        .tolist()
    )


def make_work(
    parts: Parts,
    config: Grpo,
    reference: CausalLM | None,
    flat: Sequence[tuple[Prompt, Completion]],
    rows: list[int],
    advantages: Tensor,
    *,
    old_is_policy: bool,
) -> Work:
    """The batch of ``rows`` out of the P*G completions ``flat``, and all that is known per token before the update."""
    trained, device = [flat[row] for row in rows], parts.lm.device
    batch = collate([(prompt.token_ids, c.token_ids) for prompt, c in trained], parts.pad_id, device=device)
    sampled = torch.tensor([value for _, c in trained for value in c.sampler_logprobs], device=device)
    return Work(
        batch=batch,
        prompts=torch.tensor([row // config.group_size for row in rows], device=device),
        advantages=advantages.flatten()[rows].to(device, torch.float32)[:, None],
        sampler_logprobs=place(sampled, batch.completion_mask),
        old_logprobs=torch.zeros_like(batch.tokens, dtype=torch.float32)
        if old_is_policy
        else frozen_logprobs(parts, config, parts.lm, batch),
        old_is_policy=old_is_policy,
        ref_logprobs=None if reference is None else frozen_logprobs(parts, config, reference, batch),
    )


def minibatches(config: Grpo, rows: int, seed: int, iteration: int) -> Iterator[list[int]]:
    """``epochs`` passes over ``rows`` rows, each in an order of its own, cut into ``minibatches`` equal parts."""
    for epoch in range(config.epochs):
        yield from equal_parts(shuffled(rows, "minibatches", seed, iteration, epoch), config.minibatches)


@torch.no_grad()
def frozen_logprobs(parts: Parts, config: Grpo, lm: CausalLM, batch: Batch) -> Tensor:
    """``[B, T]`` log-probs of ``batch`` under ``lm``, without gradient."""
    result = torch.zeros_like(batch.tokens, dtype=torch.float32)
    for rows in microbatches_of(lm, batch, config.microbatch_tokens):
        micro = batch.take(rows)
        logprobs, _ = token_logprobs(lm, micro, parts.recipe.sampling.temperature)
        result[rows, : micro.tokens.shape[1]] = logprobs.float()
    return result


def accumulate_gradient(
    parts: Parts, config: Grpo, work: Work, minibatch: list[int], means: TokenMeans, kl_coef: float
) -> float:
    """Add the gradient of one minibatch's loss to the parameters; returns the loss.

    What the loss is divided by is counted over the whole minibatch before it is cut, so the cut cannot change the
    gradient.
    """
    mode, prompts, whole = config.aggregation, work.prompts[minibatch], work.batch.completion_mask[minibatch]
    divide_by = denominator(whole, mode, groups=prompts, budget=parts.recipe.sampling.max_new_tokens)
    group_tokens = group_token_counts(whole, prompts)
    total = 0.0
    with recomputing(parts.lm.module, parts.recipe.model.gradient_checkpointing):
        for chosen in microbatches_of(parts.lm, work.batch.take(minibatch), config.microbatch_tokens):
            rows = [minibatch[index] for index in chosen]
            micro = work.batch.take(rows)
            mask, width = micro.completion_mask, micro.tokens.shape[1]
            logprobs, entropy = token_logprobs(
                parts.lm, micro, parts.recipe.sampling.temperature, entropy_gradient=config.entropy_coef > 0
            )
            if work.old_is_policy:
                work.old_logprobs[rows, :width] = logprobs.detach().to(work.old_logprobs.dtype)
            tokens = Tokens(
                logprobs,
                work.old_logprobs[rows, :width],
                work.sampler_logprobs[rows, :width],
                work.advantages[rows],
                mask,
            )
            policy = policy_loss(config, tokens)
            per_token = policy.per_token
            measures = {"entropy": entropy, **policy.measures}
            if work.ref_logprobs is not None:
                kl = kl_in_loss(config, tokens, work.ref_logprobs[rows, :width])
                measures["kl"] = k1(logprobs, work.ref_logprobs[rows, :width]) if kl is None else kl
                per_token = per_token if kl is None else per_token + kl_coef * kl
            if config.entropy_coef:
                per_token = per_token - config.entropy_coef * entropy
            total += backward(aggregate(per_token, mask, mode, divide_by, group_tokens=group_tokens[chosen]))
            means.add(mask, **measures)
    return total


def microbatches_of(lm: CausalLM, batch: Batch, token_budget: int) -> list[list[int]]:
    """Row numbers of ``batch`` for each forward pass; the rows of a prompt together where it is computed once."""
    if not worth_sharing(lm, batch):
        return microbatches(batch.lengths.tolist(), token_budget)
    found = prefixes(batch)
    return grouped_microbatches(found.of_row.tolist(), found.lengths.tolist(), batch.lengths.tolist(), token_budget)


def unpadded(values: Tensor, batch: Batch) -> list[list[float]]:
    """Per row the values at the completion's tokens."""
    return [row[mask].tolist() for row, mask in zip(values, batch.completion_mask, strict=True)]


def sampler_gap(work: Work, rows: Sequence[int]) -> dict[str, float]:
    """How far the engine's log-probs are from the trainer's on the same tokens, in nats."""
    index = list(rows)
    gap = (work.old_logprobs[index] - work.sampler_logprobs[index])[work.batch.completion_mask[index]].abs()
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


def sampling_metrics(rollouts: Rollouts, kept: Tensor) -> dict[str, float]:
    return {
        "dynamic_sampling/rounds": float(rollouts.rounds),
        "dynamic_sampling/groups": float(len(kept)),
        "dynamic_sampling/kept": float(kept.sum()),
    }


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
    """Seconds of each phase of an iteration, as ``time/...`` metrics. A phase may come several times."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{phase}"] = self._laps.get(f"time/{phase}", 0.0) + now - self._last
        self._last = now

    def metrics(self, tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._began
        return self._laps | {"step_time": total, "perf/tokens_per_second": tokens / total}

"""Group Relative Policy Optimization, read top to bottom: one iteration is one turn of ``grpo_iterations``.

With the default preset it is DeepSeekMath (arXiv 2402.03300), Algorithm 1 with outcome supervision and eq. 3-4:

    A_i = (r_i - mean(r)) / std(r)                                    the same for every token of completion i
    loss = - mean_i 1/|o_i| sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i) + kl_coef * k3_t

with rho = policy/old per token and k3 the KL estimator to the frozen reference, inside the loss. Every term can be
another one: ``oncurve.presets`` says which there are, ``oncurve.train.objective`` turns their names into functions.
Shapes: P prompts, G completions each, B = P*G rows (fewer if some are left out of the update), T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from oncurve.config import Grpo
from oncurve.models.causal_lm import CausalLM
from oncurve.train.clock import Clock
from oncurve.train.metrics import completion_metrics, reward_metrics, sampling_metrics, step_metrics, with_logged
from oncurve.train.objective import Scored, advantages_of
from oncurve.train.rollouts import (
    Rollouts,
    compared,
    kept_groups,
    overlong,
    part_weights,
    rows_to_train_on,
    sample_and_score,
    stacked,
)
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans, apply_gradients, learning_rate
from oncurve.train.supervision import step_rewards
from oncurve.train.update import (
    accumulate_gradient,
    check_sampler,
    kl_of_completions,
    make_work,
    minibatches,
    next_kl_coef,
    sampler_gap,
    unpadded,
)


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
        rewards = torch.tensor(scores.totals, dtype=torch.float64)
        lengths = torch.tensor([[len(c.token_ids) for c in group.completions] for group in groups])
        if config.overlong_fraction:
            rewards = rewards + overlong(parts, config, lengths)
        if config.kl == "k1_in_reward" and reference is not None:
            rewards = rewards - kl_coef * kl_of_completions(parts, config, reference, flat).view_as(rewards)
            clock.lap("logprobs")

        # 2. Compare each completion with its own group: [P, G], or with a reward for every step [P, G, T]. Choose the
        #    rows to train on.
        scored_steps = step_rewards(parts, config, groups, scores)
        scored = Scored(rewards, stacked(scores, rewards), part_weights(parts), lengths, scored_steps)
        differing = compared(scores, scored_steps)
        kept = kept_groups(config, differing)
        advantages = advantages_of(config, scored)
        advantages[~kept] = 0.0
        rollouts = Rollouts(groups, scores, rewards, advantages, differing, scored_steps, rounds)
        # With no group kept, all rows are: the record has their log-probs, and zero advantages make no step.
        rows = rows_to_train_on(advantages, config.train_fraction, kept if kept.any() else ~kept)

        # 3. One padded batch of them, [B, T], with the log-probs of the policy that sampled and of the reference. With
        #    a single minibatch the old policy is the policy itself in the first epoch: its log-probs come with the
        #    training forward and the ratio is exactly 1.
        free = config.minibatches == 1 and bool(advantages.any())
        work = make_work(parts, config, reference, flat, rows, advantages, old_is_policy=free)
        clock.lap("logprobs")
        if parts.stop.requested:
            return

        # 4. Update: epochs x minibatches optimizer steps. A minibatch whose advantages are all zero makes no step, not
        #    even one of momentum.
        means = TokenMeans()
        steps: list[dict[str, float]] = []
        cuts = minibatches(config, len(rows), parts.recipe.run.seed, parts.earlier + iteration)
        for index, minibatch in enumerate(cuts):
            if not work.advantages[minibatch].any():
                continue
            loss = accumulate_gradient(parts, config, work, minibatch, means, kl_coef)
            if not steps:
                check_sampler(sampler_gap(work, minibatch), parts.recipe.model.dtype)
            rate = learning_rate(config, (iteration - 1) * steps_per_iteration + index, total_steps)
            grad_norm = apply_gradients(parts.lm.module, optimizer, config, rate)
            steps.append({"loss": loss, "grad_norm": grad_norm, "learning_rate": rate})
            work = replace(work, old_is_policy=False)  # it was, until now
        parts.engine.load_weights(parts.lm.module)
        clock.lap("update")

        following = next_kl_coef(config, kl_coef, means, len(rows))
        metrics = (
            reward_metrics(rollouts)
            | completion_metrics(groups)
            | {name: sum(s[name] for s in steps) / len(steps) for name in (steps[0] if steps else {})}
            | means.means()
            | sampler_gap(work, range(len(rows)))
            | {"skipped_updates": float(steps_per_iteration - len(steps))}
            | ({"kl_coef": kl_coef} if config.kl_target is not None else {})
            | (sampling_metrics(rollouts, kept) if config.dynamic_sampling else {})
            | step_metrics(config, rollouts, lengths)
            | clock.metrics(tokens=sum(len(completion.token_ids) for _, completion in flat))
        )
        yield Iteration(
            iteration,
            iteration * steps_per_iteration,
            rollouts,
            rows,
            unpadded(work.old_logprobs, work.batch),
            None if work.ref_logprobs is None else unpadded(work.ref_logprobs, work.batch),
            following,
            with_logged({**metrics, **scores.sums}, scores.metrics),
        )
        kl_coef = following

"""PPO with a critic, read top to bottom: what GRPO's group replaces, on the same pipeline.

DeepSeekMath (arXiv 2402.03300), section 4.1.1, eq. 1-2; PPO (arXiv 1707.06347), eq. 7; GAE (arXiv 1506.02438), eq. 16:

    r_t = -kl_coef * log(old/reference)_t, and at the last token + the reward of the completion
    A_t = sum_l (gamma lambda)^l (r_(t+l) + gamma V_(t+l+1) - V_(t+l)),   whitened over all tokens of the iteration
    policy loss = - mean min(ratio A, clip(ratio) A),    critic loss = 0.5 mean max((V - R)^2, (clip(V) - R)^2)

Policy and critic have an optimizer each, so there is no weight between the two losses. Sampling, rewards, ratio,
surrogate, aggregation and records are those of GRPO; groups only share their prompt. Shapes: B rows, T tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Critic as CriticConfig
from oncurve.config import Grpo
from oncurve.functional import (
    aggregate,
    clipped_value_loss,
    denominator,
    explained_variance,
    gae,
    group_token_counts,
    k1,
    masked_whiten,
    token_rewards,
)
from oncurve.models.causal_lm import CausalLM
from oncurve.models.critic import Critic
from oncurve.train.clock import Clock
from oncurve.train.grpo import Iteration
from oncurve.train.metrics import completion_metrics, reward_metrics, sampling_metrics, with_logged
from oncurve.train.rollouts import Rollouts, compared, kept_groups, overlong, sample_and_score
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans, apply_gradients, backward, learning_rate
from oncurve.train.update import (
    Work,
    accumulate_gradient,
    check_sampler,
    make_work,
    microbatches_of,
    minibatches,
    next_kl_coef,
    sampler_gap,
    unpadded,
)


@dataclass(frozen=True)
class Returns:
    """What the critic said of one batch, and what it should have said; ``[B, T]``."""

    values: Tensor
    """Before the first update, in units of reward."""
    returns: Tensor
    """What it learns."""
    advantages: Tensor
    """Whitened."""


def ppo_iterations(
    parts: Parts,
    config: Grpo,
    options: CriticConfig,
    reference: CausalLM | None,
    optimizer: torch.optim.Optimizer,
    critic: Critic,
    critic_optimizer: torch.optim.Optimizer,
    first_iteration: int,
    kl_coef: float | None = None,
) -> Iterator[Iteration]:
    """Iterations ``first_iteration`` (1-based) to the last, yielding after each one's update.

    The generator stops before an update, with the weights untouched, once ``parts.stop`` is requested.
    """
    kl_coef = config.kl_coef if kl_coef is None else kl_coef
    steps_per_iteration = config.epochs * config.minibatches
    total_steps = config.iterations * steps_per_iteration
    for iteration in range(first_iteration, config.iterations + 1):
        clock = Clock()
        # 1. Sample and score, as GRPO does. A completion that no function scored has no return: it is left out.
        sampled = sample_and_score(parts, config, iteration, clock)
        if sampled is None:
            return
        groups, scores, rounds = sampled
        flat = [(group.prompt, completion) for group in groups for completion in group.completions]
        rewards = torch.tensor(scores.totals, dtype=torch.float64)
        lengths = torch.tensor([[len(c.token_ids) for c in group.completions] for group in groups])
        if config.overlong_fraction:
            rewards = rewards + overlong(parts, config, lengths)
        kept = kept_groups(config, compared(scores, None))
        trained = (kept[:, None] & ~rewards.isnan()).flatten()
        rows = trained.nonzero().flatten().tolist() or list(range(len(flat)))

        # 2. One padded batch [B, T] with the log-probs of the old policy and the reference, and the critic's values:
        #    from these the advantages. With no row to train on they are zero, and nothing is updated.
        work = make_work(
            parts, config, reference, flat, rows, torch.zeros(rewards.shape, dtype=torch.float64), old_is_policy=False
        )
        clock.lap("logprobs")
        of_rows = rewards.flatten()[rows].to(work.old_logprobs.device)
        earned = torch.where(of_rows.isnan(), 0.0, of_rows)
        found = returns_of(parts, config, options, critic, work, earned, kl_coef)
        if not trained.any():
            found = dataclasses.replace(found, advantages=torch.zeros_like(found.advantages))
        work = dataclasses.replace(work, advantages=found.advantages)
        clock.lap("values")
        if parts.stop.requested:
            return
        check_sampler(sampler_gap(work, range(len(rows))), parts.recipe.model.dtype)

        # 3. Update both. The critic alone in the first iterations, if it shall be pretrained; a minibatch whose
        #    advantages are all zero makes no step of the policy.
        means, value_means = TokenMeans(), TokenMeans()
        steps: list[dict[str, float]] = []
        critic_steps: list[dict[str, float]] = []
        cuts = minibatches(config, len(rows), parts.recipe.run.seed, parts.earlier + iteration)
        for index, minibatch in enumerate(cuts):
            if not trained.any():
                break
            step = (iteration - 1) * steps_per_iteration + index
            if iteration > options.pretrain_iterations and work.advantages[minibatch].any():
                loss = accumulate_gradient(parts, config, work, minibatch, means, kl_coef)
                rate = learning_rate(config, step, total_steps)
                norm = apply_gradients(parts.lm.module, optimizer, config, rate)
                steps.append({"loss": loss, "grad_norm": norm, "learning_rate": rate})
            loss = accumulate_value_gradient(parts, config, options, critic, work, found, minibatch, value_means)
            rate = learning_rate(config.model_copy(update={"learning_rate": options.learning_rate}), step, total_steps)
            norm = apply_gradients(critic.module, critic_optimizer, config, rate)
            critic_steps.append({"value/loss": loss, "value/grad_norm": norm})
        parts.engine.load_weights(parts.lm.module)
        clock.lap("update")

        following = next_kl_coef(config, kl_coef, means, len(rows))
        mask = work.batch.completion_mask
        rollouts = Rollouts(
            groups,
            scores,
            rewards,
            of_completions(found.advantages, mask, rows, lengths),
            compared(scores, None),
            None,
            rounds,
            nested(of_completions(found.values, mask, rows, lengths), lengths),
        )
        metrics = (
            reward_metrics(rollouts)
            | completion_metrics(groups)
            | averaged(steps)
            | averaged(critic_steps)
            | means.means()
            | value_means.means()
            | {"value/mean": float(found.values[mask].mean()), "value/return": float(found.returns[mask].mean())}
            | {"value/explained_variance": explained_variance(found.values, found.returns, mask)}
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
            following,
            with_logged(metrics, scores.metrics),
        )
        kl_coef = following


def returns_of(
    parts: Parts, config: Grpo, options: CriticConfig, critic: Critic, work: Work, rewards: Tensor, kl_coef: float
) -> Returns:
    """Values, advantages and returns of a batch whose completions earned ``rewards`` ``[B]``."""
    batch, mask = work.batch, work.batch.completion_mask
    values = torch.zeros_like(work.old_logprobs)
    with torch.no_grad():
        for rows in microbatches_of(critic.trunk, batch, config.microbatch_tokens):
            micro = batch.take(rows)
            values[rows, : micro.tokens.shape[1]] = critic.values(micro)
    in_reward = work.ref_logprobs if config.kl == "k1_in_reward" else None
    kl = torch.zeros_like(values) if in_reward is None else k1(work.old_logprobs, in_reward)
    per_token = token_rewards(rewards.to(values.dtype), kl, mask, kl_coef=kl_coef)
    advantages, _ = gae(per_token, values, mask, gamma=options.gamma, lam=options.gae_lambda)
    _, returns = gae(per_token, values, mask, gamma=options.gamma, lam=options.value_lambda)
    return Returns(values, returns, masked_whiten(advantages, mask))


def accumulate_value_gradient(
    parts: Parts,
    config: Grpo,
    options: CriticConfig,
    critic: Critic,
    work: Work,
    found: Returns,
    minibatch: list[int],
    means: TokenMeans,
) -> float:
    """Add the gradient of one minibatch's value loss to the critic's parameters; returns the loss. It is aggregated as
    the policy's is, so its gradient does not depend on how the minibatch is cut either."""
    mode, prompts, whole = config.aggregation, work.prompts[minibatch], work.batch.completion_mask[minibatch]
    divide_by = denominator(whole, mode, groups=prompts, budget=parts.recipe.sampling.max_new_tokens)
    group_tokens = group_token_counts(whole, prompts)
    total = 0.0
    for chosen in microbatches_of(critic.trunk, work.batch.take(minibatch), config.microbatch_tokens):
        rows = [minibatch[index] for index in chosen]
        micro = work.batch.take(rows)
        mask, width = micro.completion_mask, micro.tokens.shape[1]
        values, old = critic.values(micro), found.values[rows, :width]
        per_token = clipped_value_loss(values, old, found.returns[rows, :width], clip=options.value_clip)
        per_token = torch.where(mask, per_token, 0.0)
        total += backward(aggregate(per_token, mask, mode, divide_by, group_tokens=group_tokens[chosen]))
        means.add(mask, **{"value/clip_ratio": (values.detach() - old).abs() > options.value_clip})
    return total


def of_completions(values: Tensor, mask: Tensor, rows: list[int], lengths: Tensor) -> Tensor:
    """Token-aligned ``[B, T]`` of the rows trained on -> completion-aligned ``[P, G, T]`` float64; 0 for the others."""
    found = torch.zeros(*lengths.shape, int(lengths.max()), dtype=torch.float64)
    flat = found.view(-1, found.shape[2])
    for row, of_row, there in zip(rows, values.double().cpu(), mask.cpu(), strict=True):
        chosen = of_row[there]
        flat[row, : len(chosen)] = chosen
    return found


def nested(values: Tensor, lengths: Tensor) -> list[list[list[float]]]:
    """``[P, G, T]`` without what lies beyond each completion."""
    return [
        [row[: int(length)].tolist() for row, length in zip(group, of_group, strict=True)]
        for group, of_group in zip(values, lengths, strict=True)
    ]


def averaged(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each number over the optimizer steps of an iteration; nothing without a step."""
    return {name: sum(step[name] for step in steps) / len(steps) for name in (steps[0] if steps else {})}

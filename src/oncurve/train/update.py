"""The second half of an iteration: the batch that is trained on, and the gradient of one minibatch of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.data.collate import collate, microbatches
from oncurve.functional import adaptive_kl_coef, aggregate, denominator, group_token_counts, k1, place
from oncurve.models.causal_lm import CausalLM
from oncurve.models.shared_prefix import grouped_microbatches, prefixes, worth_sharing
from oncurve.models.token_logprobs import token_logprobs
from oncurve.train.objective import Tokens, kl_in_loss, policy_loss
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans, backward, equal_parts, recomputing, shuffled
from oncurve.types import Batch, Completion, OncurveError, Prompt

# Samples over which an adaptive kl_coef forgets (PPO-RLHF's 10,000, arXiv 1909.08593 section 2.2).
KL_HORIZON = 10_000


@dataclass(frozen=True)
class Work:
    """What the update of one iteration reads. Rows are those that are trained on."""

    batch: Batch
    prompts: Tensor
    """``[B]`` int64: which prompt each row answers."""
    advantages: Tensor
    """``[B, 1]``: the same for every token of a completion; under process supervision ``[B, T]``."""
    sampler_logprobs: Tensor
    """``[B, T]``, as the engine saw them."""
    old_logprobs: Tensor
    """``[B, T]``. With ``old_is_policy`` it is filled in by the training forward itself."""
    old_is_policy: bool
    ref_logprobs: Tensor | None
    """``[B, T]``; None without a KL term."""


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
        advantages=of_tokens(advantages.flatten(0, 1)[rows].to(device, torch.float32), batch),
        sampler_logprobs=place(sampled, batch.completion_mask),
        old_logprobs=torch.zeros_like(batch.tokens, dtype=torch.float32)
        if old_is_policy
        else frozen_logprobs(parts, config, parts.lm, batch),
        old_is_policy=old_is_policy,
        ref_logprobs=None if reference is None else frozen_logprobs(parts, config, reference, batch),
    )


def of_tokens(advantages: Tensor, batch: Batch) -> Tensor:
    """``[B]`` -> ``[B, 1]``, or completion-aligned ``[B, N]`` -> token-aligned ``[B, T]``."""
    if advantages.ndim == 1:
        return advantages[:, None]
    counts = batch.completion_mask.sum(dim=1)
    within = torch.arange(advantages.shape[1], device=counts.device) < counts[:, None]
    return place(advantages[within], batch.completion_mask)


def kl_of_completions(
    parts: Parts, config: Grpo, reference: CausalLM, flat: Sequence[tuple[Prompt, Completion]]
) -> Tensor:
    """``[P*G]`` sum over each completion of log policy - log reference: a KL in the reward concerns every completion,
    and each of them as one action (RLOO, arXiv 2402.14740, section 2)."""
    batch = collate([(prompt.token_ids, c.token_ids) for prompt, c in flat], parts.pad_id, device=parts.lm.device)
    policy, other = (frozen_logprobs(parts, config, lm, batch) for lm in (parts.lm, reference))
    return torch.where(batch.completion_mask, k1(policy, other), 0.0).sum(dim=1, dtype=torch.float64).cpu()


def minibatches(config: Grpo, rows: int, seed: int, iteration: int) -> Iterator[list[int]]:
    """``epochs`` passes over ``rows`` rows, each in an order of its own, cut into ``minibatches`` equal parts."""
    for epoch in range(config.epochs):
        yield from equal_parts(shuffled(rows, "minibatches", seed, iteration, epoch), config.minibatches)


@torch.no_grad()
def frozen_logprobs(parts: Parts, config: Grpo, lm: CausalLM, batch: Batch) -> Tensor:
    """``[B, T]`` log-probs of ``batch`` under ``lm``, without gradient."""
    result = torch.zeros_like(batch.tokens, dtype=torch.float32)

    def attempt(budget: int) -> None:
        for rows in microbatches_of(lm, batch, budget):
            micro = batch.take(rows)
            logprobs, _ = token_logprobs(lm, micro, parts.recipe.sampling.temperature)
            result[rows, : micro.tokens.shape[1]] = logprobs.float()

    longest, say = int(batch.lengths.max()), parts.terminal.say
    parts.tokens.fit("grpo.microbatch_tokens", config.microbatch_tokens, longest, attempt, undo=lambda: None, say=say)
    return result


def accumulate_gradient(
    parts: Parts, config: Grpo, work: Work, minibatch: list[int], means: TokenMeans, kl_coef: float
) -> float:
    """Leave the gradient of one minibatch's loss in the parameters, which must have none before; returns the loss.

    What the loss is divided by is counted over the whole minibatch before it is cut, so the cut cannot change the
    gradient: if memory runs out, it is cut smaller and begun anew.
    """

    def attempt(budget: int) -> tuple[float, TokenMeans]:
        found, cut = TokenMeans(), config.model_copy(update={"microbatch_tokens": budget})
        return _accumulated(parts, cut, work, minibatch, found, kl_coef), found

    loss, found = parts.tokens.fit(
        "grpo.microbatch_tokens",
        config.microbatch_tokens,
        int(work.batch.lengths[minibatch].max()),
        attempt,
        undo=parts.lm.module.zero_grad,
        say=parts.terminal.say,
    )
    means.include(found)
    return loss


def _accumulated(
    parts: Parts, config: Grpo, work: Work, minibatch: list[int], means: TokenMeans, kl_coef: float
) -> float:
    """:func:`accumulate_gradient`, within ``config.microbatch_tokens``."""
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
                work.advantages[rows, :width],
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


def next_kl_coef(config: Grpo, kl_coef: float, means: TokenMeans, rows: int) -> float:
    """The same, or with `grpo.kl_target` moved towards it by what the iteration's ``rows`` completions have shown."""
    if config.kl_target is None or "kl" not in means.sums:
        return kl_coef
    n = min(rows, KL_HORIZON)
    return adaptive_kl_coef(kl_coef, means.means()["kl"], target=config.kl_target, horizon=KL_HORIZON, n=n)


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

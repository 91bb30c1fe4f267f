"""Supervised fine-tuning, read top to bottom: the mean negative log-likelihood of the demonstrated completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from oncurve.config import Sft
from oncurve.data.collate import collate, microbatches, packed
from oncurve.functional import aggregate, denominator, nll
from oncurve.models.token_logprobs import token_logprobs
from oncurve.train.setup import Parts
from oncurve.train.step import apply_gradients, backward, learning_rate, recomputing, shuffled
from oncurve.types import Demonstration


@dataclass(frozen=True)
class SftStep:
    step: int
    metrics: dict[str, float]


def total_steps(config: Sft, demonstrations: int) -> int:
    """Optimizer steps of the whole stage."""
    return config.steps or config.epochs * max(1, demonstrations // config.rows_per_step)


def rows_of_step(config: Sft, demonstrations: int, seed: int, step: int) -> list[int]:
    """Which demonstrations step ``step`` (0-based) sees. An epoch is a permutation; a short last batch is left out."""
    rows_per_step = min(config.rows_per_step, demonstrations)
    per_epoch = demonstrations // rows_per_step
    order = shuffled(demonstrations, "sft", seed, step // per_epoch)
    at = (step % per_epoch) * rows_per_step
    return order[at : at + rows_per_step]


def sft_steps(parts: Parts, config: Sft, optimizer, first_step: int, steps: int) -> Iterator[SftStep]:
    """Train from optimizer step ``first_step`` on, yielding after each. ``steps`` is where the schedule ends."""
    lm, demonstrations = parts.lm, parts.demonstrations
    for step in range(first_step, steps):
        began = time.perf_counter()
        rows = rows_of_step(config, len(demonstrations), parts.recipe.run.seed, step)
        loss = accumulate_gradient(parts, config, [demonstrations[row] for row in rows])
        rate = learning_rate(config, step, steps)
        grad_norm = apply_gradients(lm.module, optimizer, config, rate)
        yield SftStep(
            step + 1,
            {
                "loss": loss,
                "grad_norm": grad_norm,
                "learning_rate": rate,
                "time/step": time.perf_counter() - began,
            },
        )


def accumulate_gradient(parts: Parts, config: Sft, rows: list[Demonstration]) -> float:
    """Leave the gradient of the mean negative log-likelihood of all completion tokens of ``rows`` in the parameters,
    which must have none before; returns that mean. If memory runs out, ``rows`` are cut smaller and begun anew."""
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    return parts.tokens.fit(
        "sft.microbatch_tokens",
        config.microbatch_tokens,
        longest,
        lambda budget: _accumulated(parts, config.model_copy(update={"microbatch_tokens": budget}), rows),
        undo=parts.lm.module.zero_grad,
        say=parts.terminal.say,
    )


def _accumulated(parts: Parts, config: Sft, rows: list[Demonstration]) -> float:
    """:func:`accumulate_gradient`, within ``config.microbatch_tokens``."""
    pairs = [(row.prompt_ids, row.completion_ids) for row in rows]
    batch = collate(pairs, parts.pad_id, device=parts.lm.device)
    tokens = denominator(batch.completion_mask, "token_mean")
    if config.packing:
        micros = packed(pairs, config.microbatch_tokens, parts.lm.device)
    else:
        micros = [batch.take(chosen) for chosen in microbatches(batch.lengths.tolist(), config.microbatch_tokens)]
    total = 0.0
    with recomputing(parts.lm.module, parts.recipe.model.gradient_checkpointing):
        for micro in micros:
            logprobs, _ = token_logprobs(parts.lm, micro, temperature=1.0)
            total += backward(aggregate(nll(logprobs), micro.completion_mask, "token_mean", tokens))
    return total

"""Log-probabilities and entropy of the completion tokens of a batch: the one forward pass of training."""

from __future__ import annotations

from torch import Tensor

from oncurve.functional.logprobs import place, predictor_mask, selected_logprobs
from oncurve.models.causal_lm import CausalLM
from oncurve.types import Batch


def token_logprobs(lm: CausalLM, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Score ``batch`` under ``lm``.

    Returns:
        logprobs ``[B, T]``: nats, of logits/temperature, at each completion token; 0 elsewhere. Carries the gradient.
        entropy ``[B, T]``: nats, of the distribution each completion token was drawn from; 0 elsewhere. No gradient.

    Logits are computed for completion tokens only (``N`` of ``B*T`` positions), in float32 or better.
    """
    hidden = lm.hidden(batch.tokens, positions=batch.positions)
    logits = lm.logits(hidden[predictor_mask(batch.completion_mask)])
    targets = batch.tokens[batch.completion_mask]
    logprobs, entropy = selected_logprobs(logits, targets, temperature)
    return place(logprobs, batch.completion_mask), place(entropy, batch.completion_mask)

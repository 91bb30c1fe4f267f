"""Log-probabilities and entropy of the completion tokens of a batch: the one forward pass of training."""

from __future__ import annotations

from torch import Tensor

from oncurve.functional.linear_logprobs import linear_logprobs
from oncurve.functional.logprobs import place, predictor_mask, selected_logprobs
from oncurve.models.causal_lm import CausalLM
from oncurve.models.shared_prefix import predictors, worth_sharing
from oncurve.types import Batch


def predicting_states(lm: CausalLM, batch: Batch) -> Tensor:
    """``[N, D]``: the last hidden state that predicts each completion token, row by row. A prompt that several rows
    have is computed once."""
    if worth_sharing(lm, batch):
        return predictors(lm, batch)
    return lm.hidden(batch.tokens, positions=batch.positions)[predictor_mask(batch.completion_mask)]


def token_logprobs(
    lm: CausalLM, batch: Batch, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Score ``batch`` under ``lm``.

    Returns:
        logprobs ``[B, T]``: nats, of logits/temperature, at each completion token; 0 elsewhere. Carries the gradient.
        entropy ``[B, T]``: nats, of the distribution each completion token was drawn from; 0 elsewhere. No
            gradient but with ``entropy_gradient``.

    A prompt that several rows have is computed once. Logits are computed for completion tokens only (``N`` of ``B*T``
    positions), in float32 or better, and are never all held at a time.
    """
    hidden = predicting_states(lm, batch)
    targets = batch.tokens[batch.completion_mask]
    layer = lm.output_layer
    if layer is None or entropy_gradient:
        logprobs, entropy = selected_logprobs(
            lm.logits(hidden), targets, temperature, entropy_gradient=entropy_gradient
        )
    else:
        logprobs, entropy = linear_logprobs(hidden, layer.weight, layer.bias, targets, temperature)
    return place(logprobs, batch.completion_mask), place(entropy, batch.completion_mask)

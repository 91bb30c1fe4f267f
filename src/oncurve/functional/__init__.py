"""The mathematics of Oncurve: pure functions from tensors to tensors.

Nothing here knows a model, a file or a setting: arguments are tensors and keyword numbers, and the only dependency is
torch. Losses come back per token; `aggregate` makes the scalar. Neither a value nor a gradient depends on what stands
where a mask is False. Shape letters: P prompts, G group size, B = P*G rows, T tokens, V vocabulary, N selected tokens.
Log-probabilities are in nats, masks are bool and named for what True keeps, and every ``[B, T]`` tensor is
token-aligned: its entry at t speaks about the token at t.
"""

from oncurve.functional.advantages import group_centred, group_normalised, zero_variance
from oncurve.functional.aggregate import AggregationMode, aggregate, denominator
from oncurve.functional.decoding import filter_logits, inverse_cdf, row_keys, uniforms
from oncurve.functional.estimators import clustered_interval, pass_at_k, wilson
from oncurve.functional.kl import k1, k2, k3
from oncurve.functional.logprobs import place, predictor_mask, selected_logprobs
from oncurve.functional.masking import completion_lengths, completion_mask, truncated
from oncurve.functional.policy_losses import clip_flags, clipped_surrogate, token_ratio
from oncurve.functional.supervised import nll

__all__ = [
    "AggregationMode",
    "aggregate",
    "clip_flags",
    "clipped_surrogate",
    "clustered_interval",
    "completion_lengths",
    "completion_mask",
    "denominator",
    "filter_logits",
    "group_centred",
    "group_normalised",
    "inverse_cdf",
    "k1",
    "k2",
    "k3",
    "nll",
    "pass_at_k",
    "place",
    "predictor_mask",
    "row_keys",
    "selected_logprobs",
    "token_ratio",
    "truncated",
    "uniforms",
    "wilson",
    "zero_variance",
]

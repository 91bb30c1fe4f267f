"""The mathematics of Oncurve: pure functions from tensors to tensors.

Nothing here knows a model, a file or a setting: arguments are tensors and keyword numbers, and the only dependency is
torch. Losses come back per token; `aggregate` makes the scalar. Neither a value nor a gradient depends on what stands
where a mask is False. Shape letters: P prompts, G group size, B = P*G rows, T tokens, V vocabulary, N selected tokens.
Log-probabilities are in nats, masks are bool and named for what True keeps, and every ``[B, T]`` tensor is
token-aligned: its entry at t speaks about the token at t.
"""

from oncurve.functional.advantages import (
    group_centred,
    group_normalised,
    leave_one_out,
    length_weighted,
    signal_scaled,
    success_scaled,
    zero_variance,
)
from oncurve.functional.aggregate import AggregationMode, aggregate, denominator, group_token_counts
from oncurve.functional.batch_advantages import (
    batch_normalised,
    centred_over_centred_std,
    centred_over_reward_std,
    per_reward_normalised,
)
from oncurve.functional.calibration import auc, bootstrap, calibration_error, correlation, reliability
from oncurve.functional.corrections import (
    masked_sequence_weights,
    masked_token_weights,
    on_policy_rows,
    sampler_ratio,
    truncated_sequence_weights,
    truncated_token_weights,
)
from oncurve.functional.decoding import draw, filter_logits, inverse_cdf, row_keys, uniforms
from oncurve.functional.estimators import accuracy, clustered_interval, majority_at_k, pass_at_k, wilson
from oncurve.functional.kl import adaptive_kl_coef, k1, k2, k3, k3_ratio
from oncurve.functional.linear_logprobs import linear_logprobs
from oncurve.functional.logprobs import place, predictor_mask, selected_logprobs
from oncurve.functional.masking import completion_lengths, completion_mask, truncated
from oncurve.functional.policy_losses import (
    cispo,
    clip_flags,
    clipped_surrogate,
    dual_clip,
    gmpo,
    reinforce,
    sapo,
    two_sided_clip,
    weighted_nll,
)
from oncurve.functional.process import capped_tokens, dropped_steps, process_advantages
from oncurve.functional.ratios import product_ratio, sequence_ratio, sequence_token_ratio, token_ratio
from oncurve.functional.shaping import (
    cosine_length,
    informative_groups,
    max_variance_rows,
    repetition_penalty,
    soft_overlong,
)
from oncurve.functional.supervised import binary_cross_entropy, bradley_terry, nll
from oncurve.functional.unified import dpo_coefficient, grpo_coefficients
from oncurve.functional.value import (
    clipped_value_loss,
    explained_variance,
    gae,
    length_adaptive_lambda,
    masked_whiten,
    returns_to_go,
    token_rewards,
)

__all__ = [
    "AggregationMode",
    "accuracy",
    "adaptive_kl_coef",
    "aggregate",
    "auc",
    "batch_normalised",
    "binary_cross_entropy",
    "bootstrap",
    "bradley_terry",
    "calibration_error",
    "capped_tokens",
    "centred_over_centred_std",
    "centred_over_reward_std",
    "cispo",
    "clip_flags",
    "clipped_surrogate",
    "clipped_value_loss",
    "clustered_interval",
    "completion_lengths",
    "completion_mask",
    "correlation",
    "cosine_length",
    "denominator",
    "dpo_coefficient",
    "draw",
    "dropped_steps",
    "dual_clip",
    "explained_variance",
    "filter_logits",
    "gae",
    "gmpo",
    "group_centred",
    "group_normalised",
    "group_token_counts",
    "grpo_coefficients",
    "informative_groups",
    "inverse_cdf",
    "k1",
    "k2",
    "k3",
    "k3_ratio",
    "leave_one_out",
    "length_adaptive_lambda",
    "length_weighted",
    "linear_logprobs",
    "majority_at_k",
    "masked_sequence_weights",
    "masked_token_weights",
    "masked_whiten",
    "max_variance_rows",
    "nll",
    "on_policy_rows",
    "pass_at_k",
    "per_reward_normalised",
    "place",
    "predictor_mask",
    "process_advantages",
    "product_ratio",
    "reinforce",
    "reliability",
    "repetition_penalty",
    "returns_to_go",
    "row_keys",
    "sampler_ratio",
    "sapo",
    "selected_logprobs",
    "sequence_ratio",
    "sequence_token_ratio",
    "signal_scaled",
    "soft_overlong",
    "success_scaled",
    "token_ratio",
    "token_rewards",
    "truncated",
    "truncated_sequence_weights",
    "truncated_token_weights",
    "two_sided_clip",
    "uniforms",
    "weighted_nll",
    "wilson",
    "zero_variance",
]

"""What the terms of a policy objective may be: for every choice its formula, its source and what it means.

Letters: P prompts, G completions of a prompt, i a completion of n_i tokens, t a token, r_i its reward, A the advantage;
policy, old, ref and sampler stand for the probability that each gives to the token; sg stops the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Advantage = Literal[
    "group_normalised",
    "group_centred",
    "leave_one_out",
    "success_scaled",
    "length_weighted",
    "signal_scaled",
    "centred_over_reward_std",
    "centred_over_centred_std",
    "batch_normalised",
    "per_reward_normalised",
    "process",
    "gae",
]
Ratio = Literal["token", "sequence", "sequence_token", "product", "none"]
Surrogate = Literal["clip", "dual_clip", "two_sided", "cispo", "sapo", "gmpo", "reinforce"]
Aggregation = Literal["sequence_mean", "token_mean", "prompt_mean", "length_budget"]
Kl = Literal["k1", "k2", "k3", "k3_ratio", "k1_in_reward"]
Correction = Literal["none", "truncate_token", "truncate_sequence", "mask_token", "mask_sequence"]


@dataclass(frozen=True)
class Choice:
    """One thing that a term may be."""

    formula: str
    """Terms in braces stand for their values: ``clip(ratio, 1 - {clip_low}, 1 + {clip_high})``."""
    source: str
    """Paper with its arXiv number."""
    meaning: str
    """One sentence."""
    function: str | None = None
    """Its name in ``oncurve.functional``."""


ADVANTAGES: Mapping[str, Choice] = {
    "group_normalised": Choice(
        "A_i = (r_i - mean(r)) / (std(r) + 1e-4), over the group",
        "DeepSeekMath (2402.03300) section 4.1.2",
        "Standard deviations from the group's mean: every prompt that teaches anything weighs about the same.",
        "group_normalised",
    ),
    "group_centred": Choice(
        "A_i = r_i - mean(r), over the group",
        "Dr. GRPO (2503.20783) section 3.2",
        "No division: a prompt weighs more the less certain its outcome is.",
        "group_centred",
    ),
    "leave_one_out": Choice(
        "A_i = r_i - mean of the others' r = n/(n-1) (r_i - mean(r)), over the n scored of the group",
        "RLOO (2402.14740)",
        "The baseline does not depend on the completion it judges, so the gradient is unbiased.",
        "leave_one_out",
    ),
    "success_scaled": Choice(
        "A_i = (r_i - mean(r)) / mean(r), over the group; 0 if the mean is 0",
        "MaxRL (2602.02710)",
        "The rarer a success, the more it weighs (up to G - 1); for rewards of 0 and 1.",
        "success_scaled",
    ),
    "length_weighted": Choice(
        "A_i = r_i - sum_j(n_j r_j) / sum_j(n_j), over the group",
        "OPO (2505.23585)",
        "The baseline of least variance, if the gradient of a completion grows with its length.",
        "length_weighted",
    ),
    "signal_scaled": Choice(
        "A_i = P/(P - M) (r_i - mean(r)), over the group; M of the P groups have no variance",
        "GPG (2504.02546)",
        "Makes up for the groups that give no gradient.",
        "signal_scaled",
    ),
    "centred_over_reward_std": Choice(
        "A_i = (r_i - mean(r)) / (std(all r of the batch) + 1e-4), mean over the group",
        'Lite PPO (2508.08221); TRL\'s scale_rewards = "batch"',
        "First of three things called batch std: that of the raw rewards.",
        "centred_over_reward_std",
    ),
    "centred_over_centred_std": Choice(
        "A_i = (r_i - mean(r)) / (std(all r - mean(r) of the batch) + 1e-4), mean over the group",
        "REINFORCE++ with a group baseline (2501.03262); ScaleRL (2510.13786) section 4",
        "Second of three things called batch std: that of the rewards after each group's mean was taken off.",
        "centred_over_centred_std",
    ),
    "batch_normalised": Choice(
        "A_i = (r_i - mean(all r of the batch)) / (std(all r of the batch) + 1e-4)",
        "REINFORCE++ (2501.03262)",
        "No group. The third thing called batch std is over tokens (verl's whitening), this is over completions.",
        "batch_normalised",
    ),
    "per_reward_normalised": Choice(
        "A_i = z(sum_k weight_k z_group(r_ik)); z_group over the group, z over the batch",
        "GDPO (2601.05242)",
        "Each reward function is normalised by itself, so that none drowns the others.",
        "per_reward_normalised",
    ),
    "process": Choice(
        "A_t = sum of (r_j - mean(R)) / (std(R) + 1e-4) over the steps j that end at or after t;"
        " R = all step rewards of the group",
        "DeepSeekMath (2402.03300) section 4.1.3",
        "Process supervision: a token answers for the steps that end at it or later.",
        "process_advantages",
    ),
    "gae": Choice(
        "A_t = sum_l (gamma lambda)^l (r_(t+l) + gamma V_(t+l+1) - V_(t+l))",
        "GAE (1506.02438); PPO (1707.06347) eq. 11",
        "From a critic's estimate V of every token, whitened over the tokens of an iteration.",
        "gae",
    ),
}


RATIOS: Mapping[str, Choice] = {
    "token": Choice(
        "ratio_t = policy / old",
        "DeepSeekMath (2402.03300) eq. 3; PPO (1707.06347) eq. 6",
        "Every token has its own.",
        "token_ratio",
    ),
    "sequence": Choice(
        "ratio_t = exp(1/n_i sum_t log(policy / old)), the same at every token of a completion",
        "GSPO (2507.18071) eq. 7",
        "The geometric mean; much closer to 1 than a token's, so its clip bounds are much smaller.",
        "sequence_ratio",
    ),
    "sequence_token": Choice(
        "ratio_t = sg(sequence ratio) policy / sg(policy)",
        "GSPO-token (2507.18071) eq. 14",
        "The value of the sequence ratio with a gradient of each token's own; verl's gspo is this.",
        "sequence_token_ratio",
    ),
    "product": Choice(
        "ratio_t = policy(o_i) / old(o_i) = exp(sum_t log(policy / old)), the same at every token",
        "DeepSeek-R1 (2501.12948) eq. 1 as written",
        "The whole completion's, without a root: at a drift of 1% a token it leaves 1 +- 0.2 after 19 tokens.",
        "product_ratio",
    ),
    "none": Choice(
        "no ratio",
        "REINFORCE, as in RLOO (2402.14740)",
        "The gradient of log policy alone; exact only in the first step on a batch.",
    ),
}


_CLIPPED = "min(ratio A, clip(ratio, 1 - {clip_low}, 1 + {clip_high}) A)"

SURROGATES: Mapping[str, Choice] = {
    "clip": Choice(
        f"s_t = -{_CLIPPED}",
        "PPO (1707.06347) eq. 7; DAPO (2503.14476) eq. 10 for two bounds",
        "No gradient once the ratio has gone past its bound in the direction of the advantage.",
        "clipped_surrogate",
    ),
    "dual_clip": Choice(
        f"s_t = -{_CLIPPED}; where A < 0, at most {{ratio_cap}} |A|",
        "Dual-clip PPO (1912.09729)",
        "Also bounds how much a bad token that has become likelier may weigh; on in verl, with 3.",
        "dual_clip",
    ),
    "two_sided": Choice(
        "s_t = -min(min(ratio, {ratio_cap}) A, clip(ratio, 1 - {clip_low}, 1 + {clip_high}) A)",
        "INTELLECT-2 (2505.07291)",
        "Bounds the ratio before the minimum, which matters only where A < 0; TRL's delta.",
        "two_sided_clip",
    ),
    "cispo": Choice(
        "s_t = -sg(min(ratio, {ratio_cap})) A log policy",
        "CISPO, MiniMax-M1 (2506.13585) eq. 4 and 5",
        "Bounds the weight instead of cutting the gradient; the cap is the bound itself, not 1 + epsilon.",
        "cispo",
    ),
    "sapo": Choice(
        "s_t = -4/tau sigmoid(tau (ratio - 1)) A; tau = 1.0 where A > 0, else 1.05",
        "SAPO (2511.20347)",
        "A smooth gate in place of the clip; its value is 2/tau at a ratio of 1, its slope 1.",
        "sapo",
    ),
    "gmpo": Choice(
        "s_t = -A exp(1/n_i sum_t c_t); c_t = log(policy / old), at most {clip_high} where A > 0,"
        " at least -{clip_low} where A < 0",
        "GMPO (2507.20673)",
        "Clips each token's log-ratio, then takes the geometric mean; the bounds are in nats.",
        "gmpo",
    ),
    "reinforce": Choice(
        "s_t = -A log policy",
        "REINFORCE, as in RLOO (2402.14740)",
        "The plain policy gradient.",
        "reinforce",
    ),
}


AGGREGATIONS: Mapping[str, Choice] = {
    "sequence_mean": Choice(
        "loss = 1/B sum_i 1/n_i sum_t {x}",
        "DeepSeekMath (2402.03300) eq. 3",
        "Every completion weighs the same, however long.",
        "aggregate",
    ),
    "token_mean": Choice(
        "loss = 1/N sum_i sum_t {x};  N = sum_i n_i",
        "DAPO (2503.14476) eq. 12",
        "Every token of the optimizer step weighs the same.",
        "aggregate",
    ),
    "prompt_mean": Choice(
        "loss = 1/P sum_p 1/N_p sum_(i of p) sum_t {x};  N_p = sum_(i of p) n_i",
        "ScaleRL (2510.13786) section 3.2",
        "Every prompt weighs the same; inside it, every token.",
        "aggregate",
    ),
    "length_budget": Choice(
        "loss = 1/(B max_new_tokens) sum_i sum_t {x}",
        "Dr. GRPO (2503.20783) section 3.2",
        "A constant in place of the length: a long completion weighs more, whatever the others are.",
        "aggregate",
    ),
}


KLS: Mapping[str, Choice] = {
    "k1": Choice(
        "k_t = log(policy / ref)",
        "Schulman (2020), Approximating KL Divergence",
        "In the loss it has no pull to the reference: its expected gradient is zero.",
        "k1",
    ),
    "k2": Choice(
        "k_t = 1/2 log(policy / ref)^2",
        "Schulman (2020), Approximating KL Divergence",
        "In the loss it follows the gradient of KL(policy || ref), on the policy's own samples.",
        "k2",
    ),
    "k3": Choice(
        "k_t = ref/policy - log(ref/policy) - 1",
        "DeepSeekMath (2402.03300) eq. 4",
        "In the loss it follows the gradient of KL(ref || policy), on the policy's own samples.",
        "k3",
    ),
    "k3_ratio": Choice(
        "k_t = policy/old (ref/policy - log(ref/policy) - 1)",
        "DeepSeek-V3.2 (2512.02556); TRL's use_bias_correction_kl",
        "Follows the gradient of KL(policy || ref), also on samples of the old policy.",
        "k3_ratio",
    ),
    "k1_in_reward": Choice(
        "r_i <- r_i - {kl_coef} sum_t log(old / ref)",
        "PPO for language models (2203.02155); RLOO (2402.14740)",
        "Taken off the reward before the advantage; follows the gradient of KL(policy || ref).",
        "k1",
    ),
}


CORRECTIONS: Mapping[str, Choice] = {
    "none": Choice("no weight", "", "For an engine that samples from the very policy that is trained."),
    "truncate_token": Choice(
        "w_t = min(old / sampler, {correction_high})",
        "Truncated importance sampling (TIS): Yao et al. (2025), https://fengyao.notion.site/off-policy-rl",
        "Low variance, some bias.",
        "truncated_token_weights",
    ),
    "truncate_sequence": Choice(
        "w_t = min(prod_t old / sampler, {correction_high}), the same at every token",
        "Truncated importance sampling (TIS), by completion",
        "The right weight up to the cap, of high variance on long completions.",
        "truncated_sequence_weights",
    ),
    "mask_token": Choice(
        "w_t = old / sampler if {correction_low} <= old / sampler <= {correction_high}, else 0",
        "IcePop (2510.18855)",
        "Tokens on which the two disagree too much are left out.",
        "masked_token_weights",
    ),
    "mask_sequence": Choice(
        "w_t = prod_t old / sampler if {correction_low} <= it <= {correction_high}, else 0",
        "TRL's sequence_mask",
        "Completions on which the two disagree too much are left out.",
        "masked_sequence_weights",
    ),
}

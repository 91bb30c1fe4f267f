"""Papers that are no preset: which options and functions have what they propose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oncurve.presets.terms import Value


@dataclass(frozen=True)
class OtherPaper:
    """What of one publication is here. Nothing in ``options`` and ``functions``: nothing of it is."""

    name: str
    url: str
    what: str
    """What it proposes, in a few words."""
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """Options of ``[grpo]`` that amount to it."""
    functions: tuple[str, ...] = ()
    """Names in ``oncurve.functional``."""
    note: str = ""
    """What is missing, or not stated in the paper."""


def _arxiv(number: str) -> str:
    return f"https://arxiv.org/abs/{number}"


OTHER_PAPERS: tuple[OtherPaper, ...] = (
    OtherPaper(
        "GSPO-token",
        _arxiv("2507.18071"),
        "GSPO's ratio with a gradient of each token's own",
        {"preset": "gspo", "ratio": "sequence_token"},
        ("sequence_token_ratio",),
        "Eq. 14; the same as GSPO where the advantage is the same at every token.",
    ),
    OtherPaper(
        "GMPO",
        _arxiv("2507.20673"),
        "clip each token's log-ratio, then take the geometric mean",
        {"surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4, "kl_coef": 0.0},
        ("gmpo",),
        "The bounds are in nats: a ratio between exp(-0.4) and exp(0.4).",
    ),
    OtherPaper(
        "LUSPO",
        _arxiv("2602.05261"),
        "GSPO with each completion's term times its length",
        {"preset": "gspo", "aggregation": "length_budget", "clip_low": 2e-3, "clip_high": 2.5e-3},
        ("sequence_ratio",),
        "But for the constant max_new_tokens, by which the loss is divided.",
    ),
    OtherPaper(
        "SAPO",
        _arxiv("2511.20347"),
        "a smooth gate in place of the clip",
        {"surrogate": "sapo", "kl_coef": 0.0},
        ("sapo",),
        "Temperatures 1.0 and 1.05, as published.",
    ),
    OtherPaper(
        "Dual-clip PPO",
        _arxiv("1912.09729"),
        "bounds the loss of a bad token that has become likelier",
        {"surrogate": "dual_clip", "ratio_cap": 3.0},
        ("dual_clip",),
        "3 is verl's, where it is always on.",
    ),
    OtherPaper(
        "INTELLECT-2",
        _arxiv("2505.07291"),
        "bounds the ratio on both sides",
        {"surrogate": "two_sided", "ratio_cap": 4.0, "kl_coef": 0.001},
        ("two_sided_clip",),
        "Section 4.1. Its pipeline is not here.",
    ),
    OtherPaper(
        "OPO",
        _arxiv("2505.23585"),
        "a baseline weighted by length",
        {"advantage": "length_weighted", "ratio": "none", "surrogate": "reinforce", "kl_coef": 0.0},
        ("length_weighted",),
        "Exactly on-policy: one optimizer step a rollout.",
    ),
    OtherPaper(
        "GPG",
        _arxiv("2504.02546"),
        "advantages scaled up for the groups that have no gradient",
        {"advantage": "signal_scaled", "ratio": "none", "surrogate": "reinforce", "kl_coef": 0.0},
        ("signal_scaled",),
        "In the paper's form with F = 1. verl's code counts scores that are not 0 in place of groups.",
    ),
    OtherPaper(
        "MaxRL",
        _arxiv("2602.02710"),
        "divides by the share of successes",
        {"advantage": "success_scaled", "kl_coef": 0.0},
        ("success_scaled",),
        "For rewards of 0 and 1.",
    ),
    OtherPaper(
        "GDPO",
        _arxiv("2601.05242"),
        "normalises every reward function by itself",
        {"advantage": "per_reward_normalised", "kl_coef": 0.0},
        ("per_reward_normalised",),
        "Differs from the usual only with several reward functions.",
    ),
    OtherPaper(
        "Lite PPO",
        _arxiv("2508.08221"),
        "the group's mean, the batch's standard deviation, a mean over tokens",
        {"advantage": "centred_over_reward_std", "aggregation": "token_mean", "kl_coef": 0.0},
        ("centred_over_reward_std",),
        "Its top-p of 0.99 and top-k of 100 are not for training here: the ratio would be wrong.",
    ),
    OtherPaper(
        "REINFORCE++ with a group baseline",
        _arxiv("2501.03262"),
        "the group's mean, the standard deviation of what is left over the batch",
        {"preset": "reinforce-pp", "advantage": "centred_over_centred_std"},
        ("centred_over_centred_std",),
    ),
    OtherPaper(
        "DeepSeek-V3.2",
        _arxiv("2512.02556"),
        "k3 times the ratio; leaves out bad completions that the policy has left",
        {"kl": "k3_ratio", "off_policy_bound": 0.5},
        ("k3_ratio", "on_policy_rows"),
        "The bound is not stated; 0.5 is TRL's suggestion. Kept sampling masks and routing are not here.",
    ),
    OtherPaper(
        "TIS (Yao et al. 2025)",
        "https://fengyao.notion.site/off-policy-rl",
        "truncated importance weights between sampler and trainer",
        {"sampler_correction": "truncate_token", "correction_high": 2.0},
        ("truncated_token_weights", "truncated_sequence_weights"),
    ),
    OtherPaper(
        "IcePop",
        _arxiv("2510.18855"),
        "leaves out the tokens on which sampler and trainer disagree",
        {"sampler_correction": "mask_token", "correction_low": 0.5, "correction_high": 2.0},
        ("masked_token_weights",),
        "The bounds are those of other public code.",
    ),
    OtherPaper(
        "CPPO",
        _arxiv("2503.22342"),
        "trains on the completions with the largest advantages",
        {"train_fraction": 0.5},
        (),
        "Advantages are computed before anything is left out; the freed places are not filled.",
    ),
    OtherPaper(
        "Skywork-OR1",
        _arxiv("2505.22312"),
        "an entropy bonus, adapted to a target",
        {"entropy_coef": 0.001},
        (),
        "The coefficient is fixed here, and this one is an example.",
    ),
    OtherPaper(
        "Ziegler et al. 2019",
        _arxiv("1909.08593"),
        "a KL coefficient that adapts to a target",
        {"kl": "k1_in_reward", "kl_coef": 0.05, "kl_target": 0.1},
        ("adaptive_kl_coef", "token_rewards"),
        "The numbers are examples.",
    ),
    OtherPaper(
        "PODS",
        _arxiv("2504.13818"),
        "trains on the completions whose rewards vary most",
        {},
        ("max_variance_rows",),
        "No option; grpo.train_fraction keeps the largest advantages in its place.",
    ),
    OtherPaper(
        "Yeo et al. 2025",
        _arxiv("2502.03373"),
        "a reward by length, and a penalty of repetition",
        {},
        ("cosine_length", "repetition_penalty"),
        "For reward functions of your own.",
    ),
    OtherPaper(
        "VAPO",
        _arxiv("2504.05118"),
        "PPO with a pretrained critic and a lambda that depends on the length",
        {},
        ("gae", "length_adaptive_lambda", "clipped_value_loss"),
        "Lambda is one number for all lengths: `critic.gae_lambda`, `critic.value_lambda`.",
    ),
    OtherPaper(
        "VC-PPO",
        _arxiv("2503.01491"),
        "PPO whose critic is trained before the policy",
        {},
        ("gae", "clipped_value_loss", "explained_variance"),
        "`critic.pretrain_iterations` trains it first, `critic.value_lambda` is its own.",
    ),
    OtherPaper(
        "InstructGPT",
        _arxiv("2203.02155"),
        "a reward model from comparisons; the KL taken off the reward",
        {"kl": "k1_in_reward"},
        ("bradley_terry", "token_rewards"),
        "No reward model is trained here.",
    ),
    OtherPaper(
        "Math-Shepherd",
        _arxiv("2312.08935"),
        "step labels from completions of every prefix; a process reward model",
        {},
        ("binary_cross_entropy", "process_advantages"),
        "The loss and the advantages; no process reward model is trained here.",
    ),
    OtherPaper(
        "DPO",
        _arxiv("2305.18290"),
        "preference pairs without a reward model",
        {},
        ("dpo_coefficient",),
        "The gradient coefficient of DeepSeekMath's unified view (Table 10), not a stage.",
    ),
    OtherPaper(
        "pass@k (Chen et al. 2021)",
        _arxiv("2107.03374"),
        "an unbiased estimate of the chance that one of k samples is right",
        {},
        ("pass_at_k",),
        "eval.pass_at.",
    ),
    OtherPaper("80/20 of tokens", _arxiv("2506.01939"), "trains on the tokens of highest entropy", note="Not here."),
    OtherPaper("Clip-Cov, KL-Cov", _arxiv("2505.22617"), "bounds tokens of high covariance", note="Not here."),
    OtherPaper("DPPO", _arxiv("2602.04879"), "a bound on probabilities, not on their ratio", note="Not here."),
    OtherPaper("VESPO", _arxiv("2602.10693"), "a soft weight from the ratio of the completion", note="Not here."),
    OtherPaper("pass@k training", _arxiv("2503.19595"), "rewards the best completion of a group", note="Not here."),
)

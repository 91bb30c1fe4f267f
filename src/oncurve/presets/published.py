"""The presets: published objectives as data. A value for every term, where the paper says so, what else was published.

Where a paper gives no value, the place begins with "not stated" and says whose value it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncurve.presets.preset import Paper, Preset, preset
from oncurve.presets.terms import Value

_STD = (
    "The standard deviation gets + 1e-4 (TRL's; the paper has no such number), and a group without spread exact zeros."
)
_ZERO_STEP = "A minibatch in which every advantage is 0 makes no optimizer step, not even one of momentum."
_ONE_REFERENCE = "The reference stays the policy that training began with."

_DEEPSEEKMATH = Paper(
    "2402.03300", "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models"
)
_DEEPSEEKMATH_TERMS: Mapping[str, tuple[Value, str]] = {
    "advantage": ("group_normalised", "section 4.1.2"),
    "ratio": ("token", "eq. 3"),
    "surrogate": ("clip", "eq. 3"),
    "clip_low": (0.2, "not stated; 0.2 as in PPO, TRL, verl and Dr. GRPO's Table 6"),
    "clip_high": (0.2, "not stated; 0.2 as in PPO, TRL, verl and Dr. GRPO's Table 6"),
    "aggregation": ("sequence_mean", "eq. 3"),
    "kl": ("k3", "eq. 4"),
    "kl_coef": (0.04, "section 4.2"),
}
_DEEPSEEKMATH_SETTINGS: Mapping[str, str] = {
    "policy learning rate": "1e-6 (section 4.2)",
    "group size": "64 (section 4.2)",
    "maximum length": "1024 tokens (section 4.2)",
    "batch": "1024 (section 4.2; the unit is not stated, read as 16 questions x 64)",
    "updates": "one after each exploration stage (section 4.2)",
    "data": "about 144K chain-of-thought questions of GSM8K and MATH (section 4.2)",
    "reward model": "from DeepSeekMath-Base 7B, learning rate 2e-5 (section 4.2)",
    "not stated": "epsilon, the sampling temperature of training, iterations and steps of Algorithm 1",
}
_DEEPSEEKMATH_DEVIATIONS = (
    _STD,
    _ZERO_STEP,
    "Algorithm 1's outer loop, which renews the reference and trains the reward model on, is one round here.",
    "1/G of one group is 1/B of the optimizer step: the mean over groups of it.",
)

_R1 = Paper(
    "2501.12948",
    "DeepSeek-R1: Incentivizing Reasoning Capability in LLMs via Reinforcement Learning",
    "version 2; also Nature, s41586-025-09422-z, whose Methods have the same equations",
)
_R1_RATIO = {
    "advantage": ("group_normalised", "eq. 3"),
    "ratio": ("product", "eq. 1, which is written on whole completions without a root"),
    "surrogate": ("clip", "eq. 1"),
    "aggregation": ("sequence_mean", "eq. 1: 1/G over completions; the ratio is the same at every token of one"),
    "kl": ("k3", "eq. 2, which is written on whole completions; see the deviations"),
}
_R1_DEVIATIONS = (
    "Eq. 2 has k3 of the whole completion's probabilities, which overflows on long ones; here it is k3 per token, "
    "averaged over the completion (DeepSeekMath eq. 4).",
    "The ratio is a product, so the gradient of a completion grows with its length: a learning rate tuned for a token "
    "ratio is too high. Code that calls itself GRPO mostly takes ratio = token.",
    "The paper renews the reference every 400 steps; here it stays the policy that training began with.",
    _STD,
)

_CISPO_CAP = (
    "5 as in ScaleRL and TRL (whose epsilon_high = 5 is the cap itself; eq. 5 would write it 1 + 4). verl's cispo "
    "clamps to 1 - 0.2 .. 1 + 0.2 on both sides: the same name for another object"
)

_GRPO = preset(
    "deepseekmath",
    "GRPO",
    "Group Relative Policy Optimization as first published, with outcome supervision. The default.",
    _DEEPSEEKMATH,
    _DEEPSEEKMATH_TERMS,
    settings=_DEEPSEEKMATH_SETTINGS,
    deviations=_DEEPSEEKMATH_DEVIATIONS,
)

_GRPO_PROCESS = preset(
    "deepseekmath-process",
    "GRPO with process supervision",
    "Every step of a completion has a reward; a token answers for the steps that end at it or later.",
    _DEEPSEEKMATH,
    {**_DEEPSEEKMATH_TERMS, "advantage": ("process", "section 4.1.3")},
    settings=_DEEPSEEKMATH_SETTINGS,
    deviations=(
        *_DEEPSEEKMATH_DEVIATIONS,
        "advantage_cap and step_cap are ours, off by default: the sum over steps grows with their number, so a "
        "long right chain has larger advantages than a short one.",
        "Step rewards come from a reward function, not from a trained process reward model.",
    ),
    needs="step_rewards",
)

_R1_ZERO = preset(
    "r1-zero",
    "DeepSeek-R1-Zero",
    "Pure reinforcement learning on a base model with rule rewards; the ratio is that of the whole completion.",
    _R1,
    {
        **_R1_RATIO,
        "clip_low": (10.0, "not stated for R1-Zero; 10 as in R1's first stage (a bound of 1 - 10 never binds)"),
        "clip_high": (10.0, "not stated for R1-Zero; 10 as in R1's first stage"),
        "kl_coef": (0.001, "training details of R1-Zero"),
    },
    settings={
        "learning rate": "3e-6",
        "group size": "16",
        "temperature": "1",
        "step": "32 questions, 512 completions",
        "rollout": "8,192 completions, split at random into 16 minibatches, one inner epoch",
        "maximum length": "32,768 tokens until step 8.2k, then 65,536",
        "steps": "10,400, which is 1.6 epochs",
        "reference": "renewed every 400 steps",
        "reward": "accuracy + format, equal weight (eq. 4)",
    },
    deviations=_R1_DEVIATIONS,
)

_R1_STAGE_1 = preset(
    "r1",
    "DeepSeek-R1, first stage",
    "The first of R1's two stages: as R1-Zero, but after a cold start and with a reward for keeping to one language.",
    _R1,
    {
        **_R1_RATIO,
        "clip_low": (
            10.0,
            "section 3.2.1: epsilon = 10. A ratio is positive, so the lower bound 1 - 10 never binds",
        ),
        "clip_high": (10.0, "section 3.2.1: epsilon = 10, so the upper bound is 11"),
        "kl_coef": (0.001, "section 3.2.1"),
    },
    settings={
        "learning rate": "3e-6 (section 3.2.1)",
        "group size": "16 (section 3.2.1)",
        "temperature": "1; 0.7 in the second stage (section 3.2)",
        "step": "32 questions, 512 completions (section 3.2.1)",
        "rollout": "8,192 completions, split at random into 16 minibatches, one inner epoch (section 3.2.1)",
        "maximum length": "32,768 tokens (section 3.2.1)",
        "reference": "renewed every 400 steps (section 3.2.1)",
        "reward": "rule rewards + share of words in the target language (eq. 7)",
    },
    deviations=(*_R1_DEVIATIONS, "The reward for keeping to one language is a function of your own."),
)

_DR_GRPO = preset(
    "dr-grpo",
    "Dr. GRPO",
    "GRPO without its two divisions, by the standard deviation and by the length.",
    Paper("2503.20783", "Understanding R1-Zero-Like Training: A Critical Perspective"),
    {
        "advantage": ("group_centred", "section 3.2"),
        "ratio": ("token", "section 3.2: the rest of GRPO stays"),
        "surrogate": ("clip", "section 3.2: the rest of GRPO stays"),
        "clip_low": (0.2, "Table 6"),
        "clip_high": (0.2, "Table 6"),
        "aggregation": ("length_budget", "section 3.2: a constant, such as the generation budget"),
        "kl_coef": (0.0, "Table 6"),
    },
    settings={
        "learning rate": "1e-6, AdamW with betas (0.9, 0.95) (Table 6)",
        "group size": "8 (Table 6)",
        "temperature": "1 (Table 6)",
        "maximum length": "3,000 tokens (Table 6)",
        "updates": "1 inner epoch (Table 6)",
    },
    deviations=(
        "The budget is sampling.max_new_tokens, not the padded width of the batch (verl's default), which would "
        "change from batch to batch.",
        "Advantages are two to three times smaller than normalised ones: learning rates are not comparable.",
        _ZERO_STEP,
    ),
)

_DAPO = preset(
    "dapo",
    "DAPO",
    "Clip-higher, token-level loss, groups without variance sampled anew, soft punishment of overlong answers.",
    Paper("2503.14476", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"),
    {
        "advantage": ("group_normalised", "eq. 9"),
        "ratio": ("token", "eq. 9"),
        "surrogate": ("clip", "eq. 8"),
        "clip_low": (0.2, "section 4.1; eq. 10"),
        "clip_high": (0.28, "section 4.1; eq. 10"),
        "aggregation": ("token_mean", "section 3.3, eq. 12"),
        "kl_coef": (0.0, "section 2.3"),
        "dynamic_sampling": (
            10,
            "section 3.2, eq. 11: until the batch is full; not stated after how many rounds to give up, 10 as in "
            "NeMo-RL",
        ),
        "overlong_fraction": (0.2, "section 3.4, eq. 13; section 4.1: the last 4,096 of 20,480 tokens"),
    },
    settings={
        "learning rate": "1e-6, constant after a linear warm-up over 20 rollouts (section 4.1)",
        "rollout": "512 prompts x 16 completions (section 4.1)",
        "updates": "minibatches of 512 completions, 16 a rollout (section 4.1)",
        "maximum length": "16,384 tokens + 4,096 of soft punishment (section 4.1)",
        "reward": "1 if right, -1 if not (section 2.4)",
        "evaluation": "AIME, mean of 32 at temperature 1 and top-p 0.7 (section 4.1)",
    },
    deviations=(
        "Eq. 12's mean over tokens stands inside the expectation over prompts; here as in verl it is over the tokens "
        "of the whole optimizer step. ScaleRL reads it as a mean by prompt (aggregation = prompt_mean).",
        "A group has variance if its rewards differ, before the overlong punishment; eq. 11 counts right answers.",
        "The overlong filter of section 3.4, which masks truncated completions, is not here.",
        "With rewards of 0 and 1 in place of -1 and 1 the punishment weighs twice as much; a weight of 2 mends that.",
        _STD,
    ),
)

_GSPO = preset(
    "gspo",
    "GSPO",
    "The ratio, and so the clip, is that of the completion: the geometric mean over its tokens.",
    Paper("2507.18071", "Group Sequence Policy Optimization"),
    {
        "advantage": ("group_normalised", "eq. 6"),
        "ratio": ("sequence", "eq. 7"),
        "surrogate": ("clip", "eq. 5"),
        "clip_low": (3e-4, "section 5.1"),
        "clip_high": (4e-4, "section 5.1"),
        "aggregation": ("sequence_mean", "eq. 5"),
        "kl_coef": (0.0, "omitted from the objectives of the paper"),
    },
    settings={
        "updates": "4 minibatches a rollout (section 5.1)",
        "share of tokens clipped": "0.15, against 0.0013 with GRPO at 0.2 and 0.27",
        "not stated": "learning rate, group size, lengths",
    },
    deviations=(
        _STD,
        "With one optimizer step a rollout (grpo.epochs = grpo.minibatches = 1) the ratio is 1, and this is GRPO "
        "without a KL term.",
    ),
)

_CISPO = preset(
    "cispo",
    "CISPO (MiniMax-M1)",
    "Bounds the weight of a token in place of cutting its gradient, so that no token is lost.",
    Paper("2506.13585", "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention"),
    {
        "advantage": ("group_normalised", "section 3.1, as GRPO's"),
        "ratio": ("token", "section 3.1"),
        "surrogate": ("cispo", "section 3.1, eq. 4 and 5"),
        "ratio_cap": (5.0, f"not stated, only that the upper bound alone was tuned; {_CISPO_CAP}"),
        "aggregation": ("token_mean", "eq. 4"),
        "kl_coef": (0.0, "section 3.1: no KL penalty"),
        "dynamic_sampling": (10, "section 3.1: as DAPO; not stated how many rounds, 10 as in NeMo-RL"),
        "overlong_fraction": (
            0.2,
            "section 3.1: DAPO's length penalty; not stated where it begins, 0.2 as in DAPO",
        ),
    },
    settings={"not stated": "the upper bound of the weight"},
    deviations=(
        "Eq. 5 clips to 1 + epsilon; ratio_cap is that bound itself. There is no lower bound, as in the paper's runs.",
        "Eq. 4's mean over tokens is over those of the whole optimizer step, as in the preset dapo.",
        _STD,
    ),
)

_RLOO = preset(
    "rloo",
    "RLOO",
    "REINFORCE on whole completions, with the mean of the others as baseline: no ratio, no clip, no division.",
    Paper(
        "2402.14740",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    ),
    {
        "advantage": ("leave_one_out", "the RLOO estimator"),
        "ratio": ("none", "REINFORCE has none"),
        "surrogate": ("reinforce", "the RLOO estimator, the whole completion as one action"),
        "aggregation": (
            "length_budget",
            "log-probabilities are summed over the completion, not averaged; here divided by a constant",
        ),
        "kl": ("k1_in_reward", "the reward with the log-ratio to the reference taken off"),
        "kl_coef": (0.03, "appendix C: 0.03 for TL;DR, 0.10 for HH"),
    },
    settings={
        "group size": "2 or 4",
        "learning rate": "1e-6, constant after a linear warm-up over 3% of the steps (appendix C)",
        "batch": "512, in two gradient steps (appendix C)",
    },
    deviations=(
        "The sum over tokens is divided by sampling.max_new_tokens, a constant, which AdamW does not notice but "
        "grpo.max_grad_norm does.",
        "In the second of two steps on a batch the estimator is off-policy and has no ratio to make up for it, as in "
        "the paper.",
        _ONE_REFERENCE,
    ),
)

_REINFORCE_PP = preset(
    "reinforce-pp",
    "REINFORCE++",
    "No group baseline: rewards are normalised over the whole batch; the KL is taken off the reward.",
    Paper(
        "2501.03262",
        "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
        "title and numbering differ between its versions",
    ),
    {
        "advantage": ("batch_normalised", "eq. 10"),
        "ratio": ("token", "eq. 1"),
        "surrogate": ("clip", "eq. 1"),
        "clip_low": (0.2, "the hyperparameters of its experiments"),
        "clip_high": (0.2, "the hyperparameters of its experiments"),
        "aggregation": ("sequence_mean", "eq. 1"),
        "kl": ("k1_in_reward", "eq. 8 and 9"),
        "kl_coef": (0.001, "the hyperparameters of its experiments: 0.001 for mathematics, 0.01 otherwise"),
    },
    settings={"learning rate": "5e-7", "completions of a prompt": "4", "gamma": "1"},
    deviations=(
        "Eq. 8 takes off the KL of the tokens from t on, and eq. 10 takes its statistics over tokens. Here the KL "
        "of the whole completion is taken off, and the statistics are over completions.",
        "The variant with a group baseline is advantage = centred_over_centred_std.",
        "The standard deviation gets + 1e-4 (the paper has no such number).",
        _ONE_REFERENCE,
    ),
)

_PPO = preset(
    "ppo",
    "PPO",
    "What GRPO is compared with: a critic estimates the value of every token.",
    Paper("1707.06347", "Proximal Policy Optimization Algorithms", "for language models: 2203.02155"),
    {
        "advantage": ("gae", "eq. 11"),
        "ratio": ("token", "eq. 6"),
        "surrogate": ("clip", "eq. 7"),
        "clip_low": (0.2, "section 3"),
        "clip_high": (0.2, "section 3"),
        "aggregation": ("token_mean", "eq. 7: the mean over time steps; DeepSeekMath eq. 1 has sequence_mean"),
        "kl": ("k1_in_reward", "not in PPO itself; 2203.02155 for language models, DeepSeekMath eq. 2"),
        "kl_coef": (0.05, "not stated; 0.05 as in TRL (verl has 0.001)"),
    },
    settings={
        "GAE": "gamma 1; lambda 0.95 (TRL) or 1 (verl, and DeepSeek-R1's comparison, where 0.95 did much worse)",
        "value loss": "weight 0.1, clipped (TRL)",
        "updates": "4 epochs (TRL)",
        "critic learning rate": "1e-5 (verl)",
    },
    deviations=(
        "The critic is a model of its own that begins as the policy, or a linear layer on the policy; its gamma, "
        "lambda, clip and learning rate are options of [critic], with lambda 1 by default.",
        "Policy and critic have an optimizer each, so there is no weight of the value loss.",
        "Advantages are whitened over all tokens of an iteration, as in OpenAI's code; the paper does not.",
        "A completion that no function scored is left out.",
    ),
    needs="critic",
)

_SCALE_RL = preset(
    "scale-rl",
    "ScaleRL",
    "CISPO with a mean by prompt and the standard deviation of the batch; groups without variance are left out.",
    Paper("2510.13786", "The Art of Scaling Reinforcement Learning Compute for LLMs"),
    {
        "advantage": (
            "centred_over_centred_std",
            "section 4: the standard deviation of all advantages of the batch, which are centred rewards. TRL's "
            'scale_rewards = "batch" takes that of the raw rewards',
        ),
        "ratio": ("token", "section 4"),
        "surrogate": ("cispo", "section 3.2, section 4"),
        "ratio_cap": (5.0, "appendix A.17: 4, 5 and 8 do equally well"),
        "aggregation": ("prompt_mean", "section 3.2, section 4"),
        "kl_coef": (0.0, "section 2"),
        "dynamic_sampling": (1, "section 3.2: groups without variance are dropped and not replaced"),
    },
    settings={
        "step": "48 prompts x 16 completions (section 2)",
        "learning rate": "5e-7, constant after a linear warm-up over 100 steps (appendix A.3)",
        "AdamW": "weight decay 0.01, epsilon 1e-15 (appendix A.3)",
        "maximum length": "12,288 tokens of thinking + 2,048 of answer (section 2)",
        "reward": "1 if right, -1 if not (appendix A.3)",
        "pipeline": "PipelineRL, at most 8 steps off-policy (section 3.1)",
        "precision": "logits in float32 (section 3.2)",
    },
    deviations=(
        "The paper's ratio is trainer over generator; here policy over old, and sampler_correction has the rest.",
        "No-positive-resampling (prompts with a pass rate of 0.9 or more are left out from then on), forced ends of "
        "thinking and the asynchronous pipeline are not here.",
        "The standard deviation gets + 1e-4 (the paper has no such number).",
    ),
)

PRESETS: Mapping[str, Preset] = {
    each.name: each
    for each in (
        _GRPO,
        _GRPO_PROCESS,
        _R1_ZERO,
        _R1_STAGE_1,
        _DR_GRPO,
        _DAPO,
        _GSPO,
        _CISPO,
        _RLOO,
        _REINFORCE_PP,
        _PPO,
        _SCALE_RL,
    )
}
"""The published objectives by name; the first is the default."""

DEFAULT = next(iter(PRESETS))

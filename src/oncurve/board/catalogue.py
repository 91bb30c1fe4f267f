"""Which metrics share a chart, what each means, and what to look for: the words of the report's curves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """One chart. A ``*`` in a name stands for anything; a chart none of whose metrics was recorded is left out."""

    title: str
    names: tuple[str, ...]
    look_for: str
    glossary: str
    stage: str = "grpo"
    stacked: bool = False
    smooth: bool = True
    """Draw a running mean over it: for what is noisy."""


LEARNS = "Does it learn?"
WRITES = "What does it write?"
STABLE = "Is it stable?"
TIME = "Where does the time go?"
SFT = "Supervised fine-tuning"
OTHER = "Everything else that was recorded"

SECTIONS: dict[str, tuple[Chart, ...]] = {
    LEARNS: (
        Chart(
            title="Reward and its parts",
            names=("reward", "rewards/*/mean"),
            look_for="Should rise, then level off. The part that rises says what is being learned: if only the format "
            "does, the answers do not get better.",
            glossary="reward: mean of the weighted sum over the iteration's completions. rewards/NAME/mean: one "
            "function's mean, before its weight.",
        ),
        Chart(
            title="Spread inside a group",
            names=("reward_std",),
            look_for="This spread is all that GRPO learns from. It shrinks as answers become alike; at 0 nothing is "
            "learned.",
            glossary="reward_std: standard deviation of the rewards of one prompt's completions, mean over prompts.",
        ),
        Chart(
            title="Groups that teach nothing",
            names=("frac_reward_zero_std",),
            look_for="Groups whose rewards are all equal: all right, or all wrong. Near 1 the prompts are too easy or "
            "too hard, and sampling them is wasted.",
            glossary="frac_reward_zero_std: share of groups whose rewards are all equal.",
        ),
    ),
    WRITES: (
        Chart(
            title="Length of completions",
            names=("completions/mean_length", "completions/mean_terminated_length"),
            look_for="May go either way. Rising with a flat reward is padding; a sudden fall often means that a "
            "shortcut was found.",
            glossary="completions/mean_length: tokens, mean over all. mean_terminated_length: of those that ended by "
            "themselves.",
        ),
        Chart(
            title="Cut at the token limit",
            names=("completions/clipped_ratio",),
            look_for="Should stay near 0. A completion that is cut mostly scores 0 whatever it was about to say: raise "
            "sampling.max_new_tokens.",
            glossary="completions/clipped_ratio: share of completions that hit the limit.",
        ),
        Chart(
            title="Entropy",
            names=("entropy",),
            look_for="How undecided the policy is at each token. A slow fall is learning; a quick fall to 0 ends "
            "exploration, a rise is drift into noise.",
            glossary="entropy: of the next-token distribution, nats, mean over completion tokens.",
        ),
    ),
    STABLE: (
        Chart(
            title="Distance from the reference",
            names=("kl",),
            look_for="Grows as the policy learns. A jump that the held-out measures do not follow is a policy that has "
            "lost its way: raise kl_coef or lower the learning rate.",
            glossary="kl: k3 estimate of KL(policy, reference), nats per token.",
        ),
        Chart(
            title="Clipped tokens",
            names=("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
            look_for="Exactly 0 with one optimizer step per iteration. With several, under 0.2 is usual; much more "
            "means that the steps are too large.",
            glossary="clip_ratio: share of tokens whose gradient the clip stops: ratio too low with a negative "
            "advantage (low), too high with a positive one (high), both (region).",
        ),
        Chart(
            title="Ratio to the policy that sampled",
            names=("ratio",),
            look_for="Exactly 1 with one optimizer step per iteration, near 1 with several. A mean that moves away "
            "means that the steps are too large.",
            glossary="ratio: policy / old policy of a token, mean.",
        ),
        Chart(
            title="Gradient norm",
            names=("grad_norm",),
            look_for="Should stay within one order of magnitude. Spikes are bad batches; the clip at max_grad_norm "
            "keeps them small.",
            glossary="grad_norm: L2 norm of the gradient before clipping.",
        ),
        Chart(
            title="Learning rate",
            names=("learning_rate",),
            look_for="The schedule as it was applied.",
            glossary="learning_rate: of the iteration's optimizer steps, mean.",
            smooth=False,
        ),
        Chart(
            title="Loss",
            names=("loss",),
            look_for="Says little here: with one step per iteration its policy part is about 0 by construction, and "
            "what is seen is mostly the KL term.",
            glossary="loss: the objective with its sign turned, KL term included.",
        ),
        Chart(
            title="Sampler against trainer",
            names=("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
            look_for="Should be rounding only (below 0.001 in float32). More means that the engine does not sample "
            "from the policy that is trained.",
            glossary="sampling_logp_difference: |log-prob of the engine - log-prob of the trainer| on the sampled "
            "tokens, nats.",
        ),
    ),
    TIME: (
        Chart(
            title="Seconds per iteration, by phase",
            names=("time/sampling", "time/rewards", "time/logprobs", "time/update", "time/*"),
            look_for="Where a faster run is to be found. Sampling that grows goes with longer completions.",
            glossary="time/PHASE: seconds of each phase of an iteration, one on top of the other; evaluation not "
            "included.",
            stacked=True,
            smooth=False,
        ),
        Chart(
            title="Tokens per second",
            names=("perf/tokens_per_second",),
            look_for="Sampled tokens over the whole iteration's time, updates included.",
            glossary="perf/tokens_per_second: completion tokens / step_time.",
        ),
    ),
    SFT: (
        Chart(
            title="SFT loss",
            names=("loss",),
            look_for="Should fall quickly, then slowly. Near 0 the examples are known by heart, and little is left to "
            "sample from.",
            glossary="loss: negative log-likelihood of the demonstrated tokens, nats per token.",
            stage="sft",
        ),
        Chart(
            title="SFT gradient norm",
            names=("grad_norm",),
            look_for="Should stay within one order of magnitude.",
            glossary="grad_norm: L2 norm of the gradient before clipping.",
            stage="sft",
        ),
        Chart(
            title="SFT learning rate",
            names=("learning_rate",),
            look_for="The schedule as it was applied.",
            glossary="learning_rate: of the optimizer step.",
            smooth=False,
            stage="sft",
        ),
    ),
}

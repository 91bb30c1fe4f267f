"""The pages of the documentation that are made from the presets: one for each, and the table of papers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from oncurve.presets.describe import NEEDS, spoken_of, what_differs
from oncurve.presets.formulas import formula, objective, shown
from oncurve.presets.papers import OTHER_PAPERS, OtherPaper
from oncurve.presets.preset import Preset
from oncurve.presets.published import PRESETS
from oncurve.presets.terms import CLIPS, TERMS, Value

_MADE = "<!-- Made from src/oncurve/presets/ by tests/presets/test_pages.py: change it there. -->"


def pages() -> dict[str, str]:
    """Every page by its path under ``docs/``."""
    return {f"presets/{name}.md": preset_page(preset) for name, preset in PRESETS.items()} | {
        "papers.md": papers_page()
    }


def preset_page(preset: Preset) -> str:
    """One preset: the loss put together, term by term with the places in the paper, deviations, settings, metrics."""
    paper = preset.paper
    note = f" ({paper.note})" if paper.note else ""
    blocks = [
        _MADE,
        f"# `{preset.name}`",
        _prose(f"{preset.title}. {preset.summary}"),
        _prose(f"[{paper.title}]({paper.url}), arXiv {paper.arxiv}{note}."),
        *([f"It needs {NEEDS[preset.needs]}."] if preset.needs else []),
        "## Run it",
        *_run(preset),
        "## The loss",
        "```text\n" + "\n".join(objective(preset.terms)) + "\n```",
        _prose(
            "i is a completion of n_i tokens, t a token, r_i a reward, A the advantage. policy, old, ref and sampler "
            "stand for the probability that each of them gives to the token; sg stops the gradient. Words and letters: "
            "[Notation](../notation.md)."
        ),
        "## Term by term",
        _terms(preset),
        _prose("Not part of it: " + ", ".join(f"`{t}`" for t in TERMS if t not in spoken_of(preset)) + "."),
        "## Deviations",
        "\n".join(_item(deviation) for deviation in preset.deviations),
        "## Published settings",
        "For information: a preset sets the terms above and nothing else.",
        _table(("what", "published"), [(what, value) for what, value in preset.settings.items()]),
        "## Metrics",
        _metrics(preset.terms),
    ]
    return "\n\n".join(blocks) + "\n"


def papers_page() -> str:
    """Which paper is which preset, and what of the others is here."""
    presets = [
        (f"[{p.title}]({p.paper.url})", f"[`{p.name}`](presets/{p.name}.md)", _cell(what_differs(p)))
        for p in PRESETS.values()
    ]
    others = [(f"[{o.name}]({o.url})", o.what, _options(o), _functions(o), o.note) for o in OTHER_PAPERS]
    blocks = [
        _MADE,
        "# Papers",
        _prose(
            "From a paper to the settings that have it. `oncurve presets` prints the first table, `oncurve presets "
            "NAME` one preset term by term. Any term of a preset can be overridden, in a recipe or by a flag; the "
            "start of a run says which were. A term that is not given comes from the preset, and is in the run's own "
            "`config.toml`."
        ),
        "## Presets",
        _table(("paper", "`grpo.preset`", "terms that differ from the default"), presets),
        "## Other papers",
        _prose(
            "Options are those of `[grpo]`, functions those of `oncurve.functional`. Where no preset is named, the "
            "other terms are those of the default."
        ),
        _table(("paper", "what", "options", "functions", "remarks"), others),
        "## One name, several objects",
        "\n".join(map(_item, _SAME_NAMES)),
    ]
    return "\n\n".join(blocks) + "\n"


_SAME_NAMES = (
    "**Batch std** is three things: that of the raw rewards (`centred_over_reward_std`; Lite PPO, TRL's "
    '`scale_rewards="batch"`), that of the rewards without their group\'s mean (`centred_over_centred_std`; '
    "REINFORCE++ with a group baseline, ScaleRL), and one over tokens, so that a long completion counts more (verl's "
    "whitening, REINFORCE++ as published), which is not here.",
    "**CISPO's epsilon** is the cap of the weight itself in TRL (`epsilon_high=5` is a cap of 5) and in ScaleRL, the "
    "cap less 1 in MiniMax-M1's eq. 5, and two bounds of 0.2 around 1 in verl. `grpo.ratio_cap` is the cap itself.",
    "**R1's epsilon of 10** is one number for two bounds: the upper one is 11, the lower one -9, which no ratio "
    "reaches.",
    "**GSPO** in verl is GSPO-token (`sequence_token`): the same value, a gradient of each token's own.",
    "**Clip bounds** are shares of a token's ratio (0.2), of a completion's geometric mean (GSPO: 0.0003), or nats of "
    "a log-ratio (GMPO: 0.4). They do not carry over from one to another.",
    "**KL in the loss** is several gradients: k1 has none that pulls to the reference, k2 and k3_ratio follow "
    "KL(policy || ref), k3 follows KL(ref || policy). A k3 with k2's gradient (verl's `k3+`) is not here.",
    "**Overlong**: DAPO's punishment is the last 4,096 of 20,480 tokens; `grpo.overlong_fraction` is that share, 0.2, "
    "of `sampling.max_new_tokens`.",
)


def _run(preset: Preset) -> list[str]:
    return [
        f"```sh\noncurve grpo RECIPE.toml --grpo.preset {preset.name}\n```",
        _prose(
            f'or `preset = "{preset.name}"` under `[grpo]`. `examples/published/{preset.name}.toml` has the published '
            f"settings as a recipe. `oncurve presets {preset.name}` prints what follows."
        ),
    ]


def _terms(preset: Preset) -> str:
    rows: list[tuple[str, ...]] = []
    for name in spoken_of(preset):
        text, choice = formula(name, preset.terms, x="(...)"), TERMS[name].choices.get(str(preset.terms[name]))
        rows.append(
            (
                f"`{name}`",
                f"`{shown(preset.terms[name])}`",
                f"`{_cell(text)}`" if text else "",
                _cell(choice.meaning if choice else TERMS[name].meaning),
                _cell(preset.where[name]),
            )
        )
    return _table(("term", "value", "formula", "meaning", "in the paper"), rows)


DYNAMIC = ("dynamic_sampling/rounds", "dynamic_sampling/groups", "dynamic_sampling/kept")

STEPS = ("steps/mean_count", "steps/none_ratio", "steps/dropped", "steps/capped_ratio")

VALUE = (
    *("value/loss", "value/mean", "value/return", "value/explained_variance", "value/clip_ratio"),
    *("value/grad_norm", "time/values"),
)


def metrics(terms: Mapping[str, Value]) -> dict[str, list[str]]:
    """What a run with these terms logs about its objective, by section of docs/metrics.md."""
    policy = ["loss", *(["kl"] if terms["kl_coef"] != 0 else []), "entropy", "ratio"]
    if terms["surrogate"] in CLIPS or terms["surrogate"] == "cispo":
        policy += ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"]
    policy += ["sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"]
    policy += ["sampling/importance_weight"] if terms["sampler_correction"] != "none" else []
    policy += ["sampling/off_policy_dropped"] if terms["off_policy_bound"] is not None else []
    policy += ["kl_coef"] if terms["kl_target"] is not None else []
    return {
        "Reward": [
            *("reward", "reward_std", "frac_reward_zero_std", "rewards/{name}/mean", "rewards/{name}/std"),
            *("unscored", "advantage/abs_mean"),
            *(DYNAMIC if terms["dynamic_sampling"] != 0 else ()),
            *(STEPS if terms["advantage"] == "process" else ()),
        ],
        "Completions": [
            *("completions/mean_length", "completions/min_length", "completions/max_length"),
            *("completions/clipped_ratio", "completions/mean_terminated_length", "num_tokens"),
        ],
        "Policy": policy,
        **({"Critic": list(VALUE)} if terms["advantage"] == "gae" else {}),
        "Optimizer": ["grad_norm", "learning_rate", "skipped_updates"],
    }


def _metrics(terms: Mapping[str, Value]) -> str:
    return "\n".join(
        _item(f"[{section}](../metrics.md#{section.lower()}): {', '.join(f'`{name}`' for name in names)}")
        for section, names in metrics(terms).items()
    )


def _prose(text: str, first: str = "", rest: str = "") -> str:
    """A paragraph in lines of up to 120 characters, none of which ends inside code or a link."""
    joined = re.sub(r"`[^`]+`|\[[^\]]*\]\([^)]*\)", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.fill(
        joined, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def _item(text: str) -> str:
    return _prose(text, "- ", "  ")


def _options(paper: OtherPaper) -> str:
    # TOML's notation: text in quotes, true and false in small letters
    written = {name: f'"{value}"' if isinstance(value, str) else shown(value) for name, value in paper.options.items()}
    return ", ".join(f"`{name} = {value}`" for name, value in written.items())


def _functions(paper: OtherPaper) -> str:
    return ", ".join(f"`{name}`" for name in paper.functions)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

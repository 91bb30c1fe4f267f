"""The presets as they were published, in literal values; every term of every one with its place in the paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from oncurve.config import Grpo
from oncurve.presets import DEFAULT, PRESETS, TERMS, Preset, PresetName, Value, idle, overridden, terms_of
from oncurve.presets.preset import NOT_PART
from oncurve.recipe import dump_toml, load_recipe

PUBLISHED = Path(__file__).parents[2] / "examples" / "published"

# What differs from DeepSeekMath, from the papers and not from the code.
EXPECTED: dict[str, dict[str, Value]] = {
    "deepseekmath": {},
    "deepseekmath-process": {"advantage": "process"},
    "r1-zero": {"ratio": "product", "clip_low": 10.0, "clip_high": 10.0, "kl_coef": 0.001},
    "r1": {"ratio": "product", "clip_low": 10.0, "clip_high": 10.0, "kl_coef": 0.001},
    "dr-grpo": {"advantage": "group_centred", "aggregation": "length_budget", "kl_coef": 0.0},
    "dapo": {
        "clip_high": 0.28,
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "dynamic_sampling": 10,
        "overlong_fraction": 4096 / 20480,
    },
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "kl_coef": 0.0},
    "cispo": {
        "surrogate": "cispo",
        "ratio_cap": 5.0,
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "dynamic_sampling": 10,
        "overlong_fraction": 0.2,
    },
    "rloo": {
        "advantage": "leave_one_out",
        "ratio": "none",
        "surrogate": "reinforce",
        "aggregation": "length_budget",
        "kl": "k1_in_reward",
        "kl_coef": 0.03,
    },
    "reinforce-pp": {"advantage": "batch_normalised", "kl": "k1_in_reward", "kl_coef": 0.001},
    "ppo": {"advantage": "gae", "aggregation": "token_mean", "kl": "k1_in_reward", "kl_coef": 0.05},
    "scale-rl": {
        "advantage": "centred_over_centred_std",
        "surrogate": "cispo",
        "ratio_cap": 5.0,
        "aggregation": "prompt_mean",
        "kl_coef": 0.0,
        "dynamic_sampling": 1,
    },
}
DEEPSEEKMATH: dict[str, Value] = {
    "advantage": "group_normalised",
    "advantage_ddof": 1,
    "advantage_cap": None,
    "step_cap": None,
    "ratio": "token",
    "surrogate": "clip",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "ratio_cap": None,
    "aggregation": "sequence_mean",
    "kl": "k3",
    "kl_coef": 0.04,
    "kl_target": None,
    "allow_k1_in_loss": False,
    "sampler_correction": "none",
    "correction_low": 0.5,
    "correction_high": 2.0,
    "off_policy_bound": None,
    "dynamic_sampling": 0,
    "overlong_fraction": 0.0,
    "entropy_coef": 0.0,
}


def each_preset() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)


def test_there_are_twelve_and_the_first_is_the_default():
    assert tuple(PRESETS) == get_args(PresetName) == tuple(EXPECTED)
    assert DEFAULT == "deepseekmath"
    assert all(name == preset.name for name, preset in PRESETS.items())


@each_preset()
def test_published_values(preset: Preset):
    assert preset.terms == DEEPSEEKMATH | EXPECTED[preset.name]
    assert list(preset.terms) == list(TERMS)
    assert [type(value) for value in preset.terms.values()] == [
        type(value) for value in (DEEPSEEKMATH | EXPECTED[preset.name]).values()
    ]


def test_the_default_changes_nothing_for_a_recipe_without_a_preset():
    assert terms_of(Grpo()) == DEEPSEEKMATH
    static = {name: info.default for name, info in Grpo.model_fields.items() if name in TERMS}
    assert static == DEEPSEEKMATH
    assert Grpo.model_fields["preset"].default == DEFAULT


@each_preset()
def test_every_term_has_its_place_in_the_paper_or_says_that_it_has_none(preset: Preset):
    assert preset.where.keys() == TERMS.keys()
    assert all(preset.where.values())
    for term, where in preset.where.items():
        if where.startswith("not stated"):  # then whose value is it?
            assert len(where) > len("not stated; "), term
        if preset.terms[term] != TERMS[term].neutral and term not in idle(preset.terms):
            assert not where.startswith(NOT_PART), f"{term}: a value that stands nowhere"


@each_preset()
def test_papers_settings_and_deviations(preset: Preset):
    assert re.fullmatch(r"\d{4}\.\d{5}", preset.paper.arxiv)
    assert preset.paper.url == f"https://arxiv.org/abs/{preset.paper.arxiv}"
    assert preset.summary.endswith(".")
    assert preset.settings
    assert preset.deviations
    assert all(deviation.endswith(".") for deviation in preset.deviations)


def test_what_the_papers_do_not_state_is_said_so():
    where = PRESETS["deepseekmath"].where
    assert [term for term in TERMS if where[term].startswith("not stated")] == [
        *("advantage_ddof", "clip_low", "clip_high")
    ]
    assert PRESETS["r1-zero"].where["clip_high"].startswith("not stated for R1-Zero")
    assert PRESETS["r1"].where["clip_high"].startswith("section 3.2.1")
    assert PRESETS["cispo"].where["ratio_cap"].startswith("not stated")


def test_what_a_preset_needs():
    assert {name: preset.needs for name, preset in PRESETS.items() if preset.needs} == {
        "deepseekmath-process": "step_rewards",
        "ppo": "critic",
    }


# --- published runs as recipes --------------------------------------------------------------------------------------


def test_every_preset_that_can_be_run_has_a_recipe():
    assert {path.stem for path in PUBLISHED.glob("*.toml")} == PRESETS.keys()


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.toml")), ids=lambda path: path.stem)
def test_published_recipes_load_and_override_nothing(path: Path, tmp_path: Path):
    recipe = load_recipe(path)
    assert recipe.grpo is not None
    assert (recipe.run.name, recipe.grpo.preset) == (path.stem, path.stem)
    assert overridden(recipe.grpo) == {}
    assert recipe.model.path == "path/to/model"
    again = tmp_path / "again.toml"
    again.write_text(dump_toml(recipe))
    assert load_recipe(again) == recipe


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseekmath", {"prompts_per_iteration": 16, "group_size": 64, "minibatches": 1, "learning_rate": 1e-6}),
        ("r1", {"prompts_per_iteration": 512, "group_size": 16, "minibatches": 16, "learning_rate": 3e-6}),
        ("dr-grpo", {"group_size": 8, "learning_rate": 1e-6, "betas": (0.9, 0.95)}),
        ("dapo", {"prompts_per_iteration": 512, "group_size": 16, "minibatches": 16, "learning_rate": 1e-6}),
        ("gspo", {"minibatches": 4}),
        ("rloo", {"minibatches": 2, "learning_rate": 1e-6}),
        ("reinforce-pp", {"group_size": 4, "learning_rate": 5e-7}),
        ("scale-rl", {"prompts_per_iteration": 48, "group_size": 16, "learning_rate": 5e-7, "weight_decay": 0.01}),
    ],
)
def test_published_settings(name: str, expected: dict[str, Any]):
    grpo = load_recipe(PUBLISHED / f"{name}.toml").grpo
    assert {option: getattr(grpo, option) for option in expected} == expected

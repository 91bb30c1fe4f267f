"""A preset with terms of one's own: the whole recipe, what was overridden, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from oncurve.config import Data, Grpo, Model, Recipe
from oncurve.presets import PRESETS, TERMS, completed, describe, overridden, terms_of, without_preset
from oncurve.recipe import RecipeError, as_recipe, batch_arithmetic, differences, dump_toml, load_recipe

MINIMAL = '[model]\npath = "m"\n[data]\ntrain = "d.jsonl"\n'
RUNNABLE = [name for name in PRESETS if name != "ppo"]


def recipe(grpo: Grpo) -> Recipe:
    return Recipe(model=Model(path="m"), data=Data(train="d.jsonl"), grpo=grpo)


def write(folder: Path, text: str) -> Path:
    path = folder / "r.toml"
    path.write_text(MINIMAL + text)
    return path


def grpo_of(path: Path, *flags: str) -> Grpo:
    found = load_recipe(path, flags).grpo
    assert found is not None
    return found


def refusal(**terms: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Grpo(**terms)
    return str(caught.value.errors()[0]["ctx"]["error"])


# --- filling in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNNABLE)
def test_what_is_not_given_comes_from_the_preset(tmp_path: Path, name: Any):
    assert terms_of(Grpo(preset=name)) == PRESETS[name].terms
    assert grpo_of(write(tmp_path, f'[grpo]\npreset = "{name}"\n')) == Grpo(preset=name)
    assert overridden(Grpo(preset=name)) == {}


def test_what_is_given_stays():
    grpo = Grpo(preset="dapo", clip_high=0.3, kl_coef=0.01, group_size=4)
    assert (grpo.clip_low, grpo.clip_high, grpo.kl_coef, grpo.aggregation, grpo.group_size) == (
        *(0.2, 0.3, 0.01, "token_mean", 4),
    )
    assert overridden(grpo) == {"clip_high": (0.28, 0.3), "kl_coef": (0.0, 0.01)}


def test_giving_the_presets_own_value_is_no_override():
    assert overridden(Grpo(preset="dapo", clip_high=0.28)) == {}


def test_a_cap_goes_with_its_surrogate():
    grpo = Grpo(preset="scale-rl", surrogate="clip")
    assert grpo.ratio_cap is None
    assert overridden(grpo) == {"surrogate": ("cispo", "clip")}
    assert Grpo(preset="scale-rl", surrogate="two_sided").ratio_cap == 5.0
    assert overridden(Grpo(preset="scale-rl", ratio_cap=8.0)) == {"ratio_cap": (5.0, 8.0)}


def test_an_unknown_preset_is_named_with_the_nearest(tmp_path: Path):
    assert completed({"preset": "dap"}) == {"preset": "dap"}
    assert completed({"preset": ["dapo"]}) == {"preset": ["dapo"]}
    with pytest.raises(RecipeError, match=r"r.toml:6: grpo.preset = \"dap\": must be .*; did you mean 'dapo'\?"):
        load_recipe(write(tmp_path, '[grpo]\npreset = "dap"\n'))


own_terms = {
    "advantage": st.sampled_from(["group_centred", "leave_one_out", "per_reward_normalised", "signal_scaled"]),
    "ratio": st.sampled_from(["token", "sequence", "product"]),
    "surrogate": st.sampled_from(["clip", "sapo", "two_sided"]),
    "clip_high": st.floats(0, 3),
    "ratio_cap": st.floats(4, 9),
    "aggregation": st.sampled_from(["sequence_mean", "prompt_mean"]),
    "kl": st.sampled_from(["k2", "k3_ratio"]),
    "kl_coef": st.floats(0.001, 1),
    "kl_target": st.floats(0.001, 1),
    "sampler_correction": st.sampled_from(["none", "mask_token"]),
    "off_policy_bound": st.floats(0.1, 1),
    "dynamic_sampling": st.integers(0, 5),
}


@given(st.fixed_dictionaries({"preset": st.sampled_from(RUNNABLE)}, optional=own_terms))
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_a_recipe_that_was_written_out_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, own: dict[str, Any]
):
    try:
        whole = recipe(Grpo(**own))
    except ValidationError:
        return  # the combination is refused
    path = tmp_path_factory.getbasetemp() / "whole.toml"
    path.write_text(dump_toml(whole))
    again = load_recipe(path)
    assert again == whole
    assert differences(again, whole) == []
    assert overridden(again.grpo) == overridden(whole.grpo)
    assert overridden(whole.grpo).keys() <= own.keys()


def test_the_recipe_of_an_old_run_is_that_of_the_default_preset():
    old = '{"model": {"path": "m"}, "data": {"train": "d.jsonl"}, "grpo": {"clip_low": 0.2, "kl_coef": 0.02}}'
    assert differences(Recipe.model_validate_json(old), recipe(Grpo(kl_coef=0.02))) == []


# --- flags ----------------------------------------------------------------------------------------------------------


def test_a_preset_on_the_command_line_takes_the_place_of_that_of_the_file(tmp_path: Path):
    path = write(tmp_path, '[grpo]\npreset = "gspo"\nkl_coef = 0.02\n')
    assert grpo_of(path, "--grpo.preset", "dapo") == Grpo(preset="dapo", kl_coef=0.02)
    whole = write(tmp_path, dump_toml(load_recipe(path)).partition("[grpo]")[1] + "\n" + _section(path))
    assert grpo_of(whole) == grpo_of(whole, "--grpo.preset", "gspo") == Grpo(preset="gspo", kl_coef=0.02)
    assert grpo_of(whole, "--grpo.preset", "dapo") == Grpo(preset="dapo", kl_coef=0.02)
    assert grpo_of(whole, "--grpo.clip-low=0.1", "--grpo.preset=dapo").clip_low == 0.1
    assert grpo_of(whole, "--grpo.preset", "none") == Grpo(kl_coef=0.02)


def _section(path: Path) -> str:
    """The ``[grpo]`` section of a recipe, written out whole, without its heading."""
    return dump_toml(load_recipe(path)).partition("[grpo]\n")[2].partition("\n[")[0] + "\n"


def test_a_recipe_in_memory_takes_another_preset_too():
    again = as_recipe(recipe(Grpo(preset="cispo", epochs=3)), ["--grpo.preset", "gspo"])
    assert again.grpo == Grpo(preset="gspo", epochs=3)


def test_without_preset_leaves_what_somebody_chose():
    assert without_preset({"preset": "dapo", "clip_high": 0.28, "clip_low": 0.1, "epochs": 2}) == {
        "clip_low": 0.1,
        "epochs": 2,
    }
    assert without_preset({"clip_high": 0.2, "kl_coef": 0.02}) == {"kl_coef": 0.02}
    assert without_preset({"preset": 3, "clip_high": 0.2}) == {"clip_high": 0.2}


def test_none_is_a_value_where_it_is_one(tmp_path: Path):
    path = write(tmp_path, '[grpo]\nsampler_correction = "mask_token"\noff_policy_bound = 0.5\n')
    grpo = grpo_of(path, "--grpo.ratio", "none", "--grpo.surrogate", "reinforce", "--grpo.sampler-correction=none")
    assert (grpo.ratio, grpo.sampler_correction, grpo.off_policy_bound) == ("none", "none", 0.5)
    assert grpo_of(path, "--grpo.off-policy-bound", "none").off_policy_bound is None


# --- refusals -------------------------------------------------------------------------------------------------------

NO_PULL = "k1 in the loss has no pull to the reference: its expected gradient is zero"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"preset": "dapo", "advantage": "process"}, "grpo.overlong_fraction = 0.2 with advantage process"),
        ({"kl": "k1"}, f"grpo.kl = k1: {NO_PULL}; set it to k3, k2, k3_ratio or k1_in_reward"),
        ({"ratio": "none"}, "grpo.ratio = none: surrogate clip needs a ratio; set it to token"),
        ({"ratio": "none", "surrogate": "sapo"}, "grpo.ratio = none: surrogate sapo needs a ratio"),
        ({"surrogate": "reinforce"}, "grpo.ratio = token: surrogate reinforce uses no ratio; set it to none"),
        ({"preset": "gspo", "surrogate": "gmpo"}, "grpo.ratio = sequence: surrogate gmpo makes its own"),
        ({"ratio": "none", "surrogate": "gmpo"}, "grpo.ratio = none: surrogate gmpo makes its own"),
        ({"surrogate": "cispo"}, "grpo.ratio_cap is missing: surrogate cispo needs it, the bound of its ratio; 5 is"),
        ({"surrogate": "dual_clip"}, "grpo.ratio_cap is missing: surrogate dual_clip needs it, the bound of its loss"),
        ({"surrogate": "dual_clip", "ratio_cap": 0.9}, "grpo.ratio_cap = 0.9: must be at least 1 "),
        ({"surrogate": "two_sided", "ratio_cap": 1.1}, "grpo.ratio_cap = 1.1: must be at least 1.2 (1 + clip_high"),
        ({"ratio_cap": 5.0}, "grpo.ratio_cap = 5: surrogate clip has no cap; leave it out"),
        ({"sampler_correction": "truncate_token", "correction_high": 0.5}, "grpo.correction_high = 0.5: must be at"),
        ({"sampler_correction": "mask_sequence", "correction_low": 1.5}, "grpo.correction_low = 1.5: must be at most"),
        ({"advantage_cap": 3.0}, "grpo.advantage_cap = 3: it is for advantage = process only"),
        ({"step_cap": 3}, "grpo.step_cap = 3: it is for advantage = process only"),
        ({"kl_coef": 0.0, "kl_target": 0.1}, "grpo.kl_target = 0.1: it multiplies kl_coef, and 0 stays 0"),
        (
            {"advantage": "success_scaled", "kl": "k1_in_reward"},
            "grpo.kl = k1_in_reward with advantage success_scaled: it makes rewards negative",
        ),
        (
            {"advantage": "per_reward_normalised", "kl": "k1_in_reward"},
            "grpo.kl = k1_in_reward with advantage per_reward_normalised: every reward is normalised by itself",
        ),
        (
            {"preset": "deepseekmath-process", "kl": "k1_in_reward"},
            "grpo.kl = k1_in_reward with advantage process: steps have rewards of their own",
        ),
        *(
            (
                {"preset": preset, "advantage": advantage, "overlong_fraction": 0.2},
                f"grpo.overlong_fraction = 0.2 with advantage {advantage}: ",
            )
            for preset, advantage in (
                ("deepseekmath-process", "process"),
                ("dapo", "per_reward_normalised"),
                ("dapo", "success_scaled"),
            )
        ),
    ],
)
def test_refused_in_a_sentence(own: dict[str, Any], expected: str):
    assert refusal(**own).startswith(expected)


@pytest.mark.parametrize(
    "own",
    [
        {"kl": "k1", "allow_k1_in_loss": True},
        {"kl": "k1", "kl_coef": 0.0},
        {"ratio": "none", "surrogate": "reinforce"},
        {"surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4},
        {"surrogate": "dual_clip", "ratio_cap": 3.0},
        {"surrogate": "two_sided", "ratio_cap": 1.2},
        {"sampler_correction": "truncate_token", "correction_low": 1.5},
        {"correction_low": 5.0, "correction_high": 0.1},
        {"preset": "ppo", "advantage": "group_normalised"},
        {"preset": "deepseekmath-process", "advantage_cap": 5.0, "step_cap": 20, "ratio": "sequence"},
        {"advantage": "success_scaled", "kl": "k1_in_reward", "kl_coef": 0.0},
        {"kl_target": 0.1},
    ],
)
def test_not_refused(own: dict[str, Any]):
    grpo = Grpo(**own)
    assert {name: getattr(grpo, name) for name in own} == own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic_sampling = -1", "grpo.dynamic_sampling = -1: must be greater than or equal to 0"),
        ("overlong_fraction = 1.0", "grpo.overlong_fraction = 1.0: must be less than 1"),
        ("overlong_fraction = -0.1", "grpo.overlong_fraction = -0.1: must be greater than or equal to 0"),
        ("advantage_ddof = 2", "grpo.advantage_ddof = 2: must be 0 or 1"),
        ("advantage_cap = 0", "grpo.advantage_cap = 0: must be greater than 0"),
        ("kl_target = 0.0", "grpo.kl_target = 0.0: must be greater than 0"),
        ("entropy_coef = -1.0", "grpo.entropy_coef = -1.0: must be greater than or equal to 0"),
        ('aggregation = "tokn_mean"', "grpo.aggregation = \"tokn_mean\": must be 'sequence_mean', 'token_mean'"),
        ('kl = "k1"', f"grpo.kl = k1: {NO_PULL}"),
        ("betas = [0.9]", "grpo.betas = [0.9]: must have 2 values"),
    ],
)
def test_a_refusal_names_file_and_line(tmp_path: Path, text: str, expected: str):
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, f"[grpo]\nepochs = 1\n{text}\n"))
    assert str(caught.value).startswith(f"{tmp_path}/r.toml:7: {expected}")


def test_a_refusal_of_a_flag_says_so(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"^command line: grpo.kl = k1: k1 in the loss has no pull"):
        load_recipe(write(tmp_path, "[grpo]\n"), ["--grpo.kl", "k1"])


# --- what a run prints ----------------------------------------------------------------------------------------------


def test_describe_marks_what_was_overridden():
    assert describe(Grpo(preset="gspo", clip_high=5e-4, entropy_coef=0.01)) == [
        "objective: preset gspo (arXiv 2507.18071), overridden: clip_high, entropy_coef",
        "  advantage          group_normalised   A_i = (r_i - mean(r)) / (std(r) + 1e-4), over the group",
        "  advantage_ddof     1                  std divides by n - 1",
        "  ratio              sequence           ratio_t = exp(1/n_i sum_t log(policy / old)), the same at every token "
        "of a completion",
        "  surrogate          clip               s_t = -min(ratio A, clip(ratio, 1 - 0.0003, 1 + 0.0005) A)",
        "  clip_low           0.0003             ratio >= 1 - 0.0003",
        "  clip_high          0.0005             ratio <= 1 + 0.0005  [gspo has 0.0004]",
        "  aggregation        sequence_mean      loss = 1/B sum_i 1/n_i sum_t (...)",
        "  entropy_coef       0.01               - 0.01 H_t;  H_t = -sum_v policy(v) log policy(v)  [gspo has 0]",
    ]


def test_describe_shows_what_was_switched_off():
    lines = describe(Grpo(preset="dapo", dynamic_sampling=0))
    assert "  dynamic_sampling   0                  (off)  [dapo has 10]" in lines
    assert not any(line.startswith("  kl") for line in lines)


@pytest.mark.parametrize("name", RUNNABLE)
def test_describe_without_overrides(name: Any):
    lines = describe(Grpo(preset=name))
    assert lines[0] == f"objective: preset {name} (arXiv {PRESETS[name].paper.arxiv})"
    assert not any("[" in line for line in lines[1:])
    assert {line.split()[0] for line in lines[1:]} <= TERMS.keys()


def test_dynamic_sampling_raises_the_bounds_of_the_batch_arithmetic():
    rows = dict(batch_arithmetic(recipe(Grpo(dynamic_sampling=3, iterations=10))))
    assert rows["  sampled"] == "in up to 3 rounds, while groups without variance are left: at most 384"
    assert rows["grpo, in all"] == (
        "10 iterations: 10 optimizer steps, at most 3,840 completions, at most 983,040 new tokens"
    )
    assert rows["  prompts"] == "at most 480 drawn from d.jsonl"

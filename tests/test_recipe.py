"""Reading, checking, writing and comparing recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncurve.config import Data, Eval, Grpo, Model, Recipe, Rewards, Run, Sampling, Sft, leaves
from oncurve.recipe import (
    RecipeError,
    as_recipe,
    batch_arithmetic,
    completions_kept,
    differences,
    dump_toml,
    load_recipe,
    located,
    nearest_key,
    recipe_from_dict,
    recipe_path,
    stages_of,
)

MINIMAL = '[model]\npath = "m"\n[data]\ntrain = "d.jsonl"\n'
SHIPPED = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


ALONE = (
    "group_size is 1, and with advantage group_normalised a completion is compared with the others of its group: a "
    "group of one has no other, so that its advantage is undefined; set it to 2 or more"
)


def write(folder: Path, text: str, name: str = "r.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def refusal(path: Path, *flags: str) -> str:
    """The error's text with the folder left out."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, flags)
    return str(caught.value).replace(f"{path.parent}/", "")


# --- reading --------------------------------------------------------------------------------------------------------


def test_defaults_fill_in_what_the_file_leaves_out(tmp_path: Path):
    recipe = load_recipe(write(tmp_path, MINIMAL))
    assert recipe == Recipe(model=Model(path="m"), data=Data(train="d.jsonl"))
    assert recipe.sft is None
    assert recipe.grpo is None


def test_toml_and_yaml_say_the_same(tmp_path: Path):
    toml = write(tmp_path, MINIMAL + "[grpo]\nlearning_rate = 1e-6\nbetas = [0, 0.9]\n[data.options]\nmax = 3\n")
    yaml = write(
        tmp_path,
        "model: {path: m}\ndata:\n  train: d.jsonl\n  options: {max: 3}\n"
        "grpo:\n  learning_rate: 1e-6\n  betas: [0, 0.9]\n",
        "r.yaml",
    )
    assert load_recipe(toml) == load_recipe(yaml)
    assert load_recipe(yaml).grpo == Grpo(learning_rate=1e-6, betas=(0.0, 0.9))


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.0e-6", "+1e-06", "0.000001", ".1e-5"])
def test_yaml_reads_every_spelling_of_a_float(tmp_path: Path, text: str):
    path = write(tmp_path, f"model: {{path: m}}\ndata: {{train: d}}\ngrpo: {{learning_rate: {text}}}\n", "r.yml")
    recipe = load_recipe(path)
    assert recipe.grpo is not None
    assert recipe.grpo.learning_rate == pytest.approx(1e-6, rel=1e-12)


def test_yaml_leaves_dates_octals_and_clock_times_as_text(tmp_path: Path):
    path = write(tmp_path, "model: {path: 010}\ndata: {train: 2024-01-01, suffix: 1:30}\n", "r.yaml")
    recipe = load_recipe(path)
    assert (recipe.model.path, recipe.data.train, recipe.data.suffix) == ("010", "2024-01-01", "1:30")


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path):
    assert load_recipe(write(tmp_path, "\ufeff" + MINIMAL.replace("\n", "\r\n"))).model.path == "m"


def test_an_integer_is_a_float_where_one_is_wanted(tmp_path: Path):
    recipe = load_recipe(write(tmp_path, MINIMAL + "[sampling]\ntemperature = 1\n"))
    assert recipe.sampling.temperature == 1.0
    assert isinstance(recipe.sampling.temperature, float)


def test_defaults_lie_beneath_the_file_and_flags_above_it(tmp_path: Path):
    path = write(tmp_path, MINIMAL + "[run]\nseed = 2\n")
    defaults = {"run": {"seed": 1, "name": "x", "threads": 1}}
    recipe = load_recipe(path, ["--run.threads", "3"], defaults)
    assert recipe.run == Run(name="x", seed=2, threads=3)
    assert defaults == {"run": {"seed": 1, "name": "x", "threads": 1}}


def test_as_recipe_takes_a_recipe_a_path_and_flags(tmp_path: Path):
    recipe = load_recipe(write(tmp_path, MINIMAL))
    assert as_recipe(recipe) is recipe
    assert as_recipe(str(tmp_path / "r.toml")) == recipe
    assert as_recipe(recipe, ["--grpo.betas", "0.5,0.6"]).grpo == Grpo(betas=(0.5, 0.6))


def test_recipe_from_dict_is_strict_too():
    tree = {"model": {"path": "m"}, "data": {"train": "d"}, "grpo": {"betas": (0.9, 0.95), "group_size": "8"}}
    with pytest.raises(RecipeError, match=r'^mine: grpo.group_size = "8": must be a whole number'):
        recipe_from_dict(tree, "mine")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_recipe_made_in_python_must_be_finite_too(value: float):
    for make in (lambda: Grpo(kl_coef=value), lambda: Rewards(weights=[value]), lambda: Eval(top_p=value)):
        with pytest.raises(ValueError, match=r"finite number|less than or equal to 1"):
            make()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_are_right_and_found_by_name(path: Path):
    recipe = load_recipe(path)
    assert recipe_path(path.stem).read_bytes() == path.read_bytes()
    assert stages_of(recipe)
    assert batch_arithmetic(recipe)


def test_an_unknown_shipped_recipe_names_those_there_are():
    with pytest.raises(RecipeError, match="no recipe 'nope' ships with Oncurve; there are: "):
        recipe_path("nope")


def test_stages_come_in_order(tmp_path: Path):
    path = write(tmp_path, "[grpo]\n[sft]\n" + MINIMAL)
    assert stages_of(load_recipe(path)) == ("sft", "grpo")
    with pytest.raises(RecipeError, match=r"\[sft\] or a \[grpo\]"):
        stages_of(load_recipe(write(tmp_path, MINIMAL)))


# --- files that are none --------------------------------------------------------------------------------------------


def test_unreadable_files(tmp_path: Path):
    assert refusal(tmp_path / "no.toml") == "no.toml: no such file"
    assert refusal(write(tmp_path, "", "e.toml")).startswith("e.toml is empty: a recipe needs at least [model]")
    assert refusal(write(tmp_path, "# only a comment\n", "e.yaml")).startswith("e.yaml is empty")
    assert "ends in .toml, .yaml or .yml, not .json" in refusal(write(tmp_path, "{}", "r.json"))
    assert "not without a suffix" in refusal(write(tmp_path, "", "r"))
    (tmp_path / "latin.toml").write_bytes(b'[run]\nname = "\xe9"')
    assert refusal(tmp_path / "latin.toml") == "latin.toml is not UTF-8 text: byte 14 is 0xe9"
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5000)
    assert refusal(tmp_path / "deep.toml") == "deep.toml: nested too deeply"
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 600 + "]" * 600)
    assert refusal(tmp_path / "deep.yaml") == "deep.yaml: nested too deeply"


def test_a_directory_is_no_recipe_but_may_hold_one(tmp_path: Path):
    assert refusal(tmp_path).endswith("is a directory; a recipe is a .toml or .yaml file")
    write(tmp_path, MINIMAL, "config.toml")
    assert refusal(tmp_path).endswith("/config.toml?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[run]\nseed 3\n", "r.toml:2: not valid TOML: Expected '=' after a key in a key/value pair: seed 3"),
        ("[run]\nseed = 1\nseed = 2\n", "r.toml:3: not valid TOML: the same key or table is given twice: seed = 2"),
        ("[run]\n[run]\n", "r.toml:2: not valid TOML: the same key or table is given twice: [run]"),
        ("[run]\nseed = 010\n", "r.toml:2: not valid TOML: "),
        ("[run]\nname = '", "r.toml: not valid TOML: "),
        ("[run]\nseed = " + "9" * 5000, "r.toml: not valid TOML: "),
    ],
)
def test_broken_toml_names_the_line(tmp_path: Path, text: str, expected: str):
    assert refusal(write(tmp_path, text)).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run:\n  seed: 1\n  seed: 2\n", "r.yaml:3: run.seed is given twice (first on line 2)"),
        ("run: [1, 2\n", "r.yaml:2: not valid YAML: "),
        ("run:\n\tseed: 1\n", "r.yaml:2: not valid YAML: "),
        ("- a\n", "r.yaml: a recipe is a table of sections, such as 'model:', not a list"),
        ("run:\n  on: 1\n", "r.yaml:2: a key must be text, not on (put it in quotes)"),
        ("run:\n  ? [a]\n  : 1\n", "r.yaml:2: a key must be text, not a list or table (put it in quotes)"),
        ("run: &a {seed: 1}\nsft: *a\n", "r.yaml:2: *a: aliases are not read here; write the value out"),
        ("run: {name: !!python/object:os.system x}\n", "r.yaml:1: not valid YAML: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2: not valid YAML: but found another document"),
        ("a: \x07\n", "r.yaml: not valid YAML: "),
        ("run:\n  seed: " + "9" * 5000, "r.yaml: not valid YAML: "),
    ],
)
def test_broken_yaml_names_the_line(tmp_path: Path, text: str, expected: str):
    assert refusal(write(tmp_path, text, "r.yaml")).startswith(expected)


# --- values that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[grpo]\ngroup_sze = 8\n", "r.toml:6: grpo.group_sze = 8: no such key; did you mean grpo.group_size?"),
        ("[gpro]\niterations = 8\n", 'r.toml:5: gpro = {"iterations": 8}: no such key; did you mean grpo?'),
        ("[sft]\ngroup_size = 8\n", "r.toml:6: sft.group_size = 8: no such key; did you mean grpo.group_size?"),
        (
            "[grpo]\nnum_generations = 8\n",
            "r.toml:6: grpo.num_generations = 8: no such key; did you mean grpo.group_size?",
        ),
        ("[sft]\nlr = 1\n", "r.toml:6: sft.lr = 1: no such key; did you mean sft.learning_rate?"),
        ("[grpo]\nqqqq = 8\n", "r.toml:6: grpo.qqqq = 8: no such key"),
        (
            '[grpo]\ngroup_size = "8"\n',
            'r.toml:6: grpo.group_size = "8": must be a whole number, not text: write it without quotes',
        ),
        ("[grpo]\ngroup_size = 8.0\n", "r.toml:6: grpo.group_size = 8.0: must be a whole number, not a decimal number"),
        ("[grpo]\ngroup_size = true\n", "r.toml:6: grpo.group_size = true: must be a whole number, not true/false"),
        ("[grpo]\ngroup_size = 1\n", f"r.toml:6: {ALONE}"),
        (
            "[grpo]\ngroup_size = 1_000_000_000_000\n",
            "r.toml:6: grpo.group_size = 1000000000000: must be less than or equal to 1000000: all completions of an "
            "iteration are held in memory",
        ),
        (
            "[grpo]\nprompts_per_iteration = 100_000\ngroup_size = 100_000\n",
            "r.toml:6: grpo.prompts_per_iteration (100000) x grpo.group_size (100000) are more than",
        ),
        (
            "[sft]\nsize = 1_000_001\n",
            "r.toml:6: sft.size = 1000001: must be less than or equal to 1000000: all rows are made at once",
        ),
        (
            "[eval]\nsamples = 1_000_000_000_000\n",
            "r.toml:6: eval.samples = 1000000000000: must be less than or equal to 1000000: all completions",
        ),
        ("[sampling]\ntemperature = 0\n", "r.toml:6: sampling.temperature = 0: must be greater than 0: at 0 all"),
        (
            "[checkpoint]\nkeep_last = 1\n",
            "r.toml:6: checkpoint.keep_last = 1: must be greater than or equal to 2: should",
        ),
        ("[grpo]\nlearning_rate = nan\n", "r.toml:6: grpo.learning_rate = nan: must be a finite number"),
        ("[grpo]\nclip_low = -inf\n", "r.toml:6: grpo.clip_low = -inf: must be a finite number"),
        ("[grpo]\nclip_low = 1e999\n", "r.toml:6: grpo.clip_low = inf: must be a finite number"),
        ("[grpo]\nbetas = [0.9]\n", "r.toml:6: grpo.betas = [0.9]: must have 2 values"),
        ("[grpo]\nbetas = [1, 1, 1]\n", "r.toml:6: grpo.betas = [1, 1, 1]: must have at most 2 items, not 3"),
        ("[run]\nseed = 9223372036854775808\n", "r.toml:6: run.seed does not fit in 64 bits"),
        ("[run]\nname = 3\n", "r.toml:6: run.name = 3: must be text, not a whole number: put it in quotes"),
        ('[run]\nname = "../up"\n', 'r.toml:6: run.name = "../up": must match pattern '),
        (
            '[run]\ndevice = "gpu"\n',
            "r.toml:6: run.device = \"gpu\": must be 'auto', 'cpu' or 'cuda'; did you mean 'cpu'?",
        ),
        ("[rewards]\nfunctions = []\n", "r.toml:6: rewards.functions = []: must have at least 1 item, not 0"),
        ('[rewards]\nfunctions = "accuracy"\n', 'r.toml:6: rewards.functions = "accuracy": must be a list, not text'),
        ("[rewards]\nfunctions = [1]\n", "r.toml:6: rewards.functions[0] = 1: must be text, not a whole number"),
        (
            "[rewards]\nweights = [1, 2]\n",
            "r.toml:6: rewards.weights has 2 numbers for 1 function in rewards.functions; give one for each",
        ),
        (
            "[grpo]\n\nminibatches = 999\n",
            "r.toml:7: grpo.minibatches (999) is more than grpo.prompts_per_iteration",
        ),
        ("[data.options]\nday = 2024-01-01\n", "r.toml:6: data.options.day = 2024-01-01: a date has no use here"),
        ("[data.options]\nx = [1, {y = nan}]\n", "r.toml:6: data.options.x[1].y = nan: must be a finite number"),
        ("[[eval]]\nevery = 1\n", 'r.toml:5: eval = [{"every": 1}]: must be a section, not a list'),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_right(tmp_path: Path, text: str, expected: str):
    found = refusal(write(tmp_path, MINIMAL + text))
    assert found.startswith(expected)
    assert "\n" not in found


def test_every_error_is_shown_one_a_line(tmp_path: Path):
    path = write(tmp_path, "[model]\n[run]\nseed = -1\n[grpo]\ngroup_size = 0\nepoch = 3\n")
    assert refusal(path).split("\n") == [
        "r.toml:3: run.seed = -1: must be greater than or equal to 0",
        "r.toml:1: model.path is missing: A transformers directory or hub name, a `.gguf` file, `package:NAME`"
        " (a Python package that ships one .gguf), or `embedded:NAME` (a small new model for the generated task NAME).",
        "r.toml: section [data] is missing; it needs at least train",
        "r.toml:5: grpo.group_size = 0: must be greater than or equal to 1: a group has at least one completion",
        "r.toml:6: grpo.epoch = 3: no such key; did you mean grpo.epochs?",
    ]


def test_lines_are_right_behind_anything_toml_allows(tmp_path: Path):
    text = (
        '[ "model" ] # [grpo]\n'
        "path = '''\n[run]\nseed = 'x'\n'''\n"
        "[data] \n"
        'train = "a#b\\"c" # "\n'
        "suffix = '[' \n"
        'options.words = [ # ]\n  "]", [1, 2],\n  {a = "}"},\n]\n'
        'options."odd key" = {x = 1, y = """z""""}\n'
        'system_prompt = """a""\\"""b"""\n'
        "sizes = 1\n"
        "[grpo]\n"
        "'group_size'=1 # not enough"
    )
    lines = text.split("\n")
    assert refusal(write(tmp_path, text)).split("\n") == [
        f"r.toml:{lines.index('sizes = 1') + 1}: data.sizes = 1: no such key; did you mean data.size?",
        f"r.toml:{len(lines)}: {ALONE}",
    ]


def test_a_key_in_an_inline_table_points_at_the_line_of_the_table(tmp_path: Path):
    path = write(tmp_path, 'model = {path = "m"}\ndata = {train = "d"}\n\ngrpo = {epochs = 0}\n')
    assert refusal(path) == "r.toml:4: grpo.epochs = 0: must be greater than or equal to 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "run:\n  name: no\n",
            "r.yaml:4: run.name = false: must be text, not true/false: put it in quotes (YAML reads a",
        ),
        ("run:\n  seed: on\n", "r.yaml:4: run.seed = true: must be a whole number, not true/false"),
        ("run:\n  seed: 1e3\n", "r.yaml:4: run.seed = 1000.0: must be a whole number, not a decimal number"),
        ("run:\n  seed: 010\n", 'r.yaml:4: run.seed = "010": must be a whole number, not text'),
        ("run:\n  seed:\n", "r.yaml:4: run.seed = null: must be a whole number, not null"),
        ("grpo:\n", "r.yaml:3: grpo is an empty section: leave it out, or write {} for one with every default"),
        ("grpo: {epochs: 1,\n  kl_coff: 2}\n", "r.yaml:4: grpo.kl_coff = 2: no such key; did you mean grpo.kl_coef?"),
        ("rewards:\n  functions:\n  - a\n  - 3\n", "r.yaml:6: rewards.functions[1] = 3: must be text"),
        ('run: {dir: "a\\0b"}\n', "r.yaml:3: run.dir = 'a\\x00b': holds a NUL character"),
        ('run: {dir: "\\ud800"}\n', "r.yaml:3: run.dir = '\\ud800': holds half of a surrogate pair"),
        ("run: {dir: !!binary aGk=}\n", "r.yaml:3: run.dir = b'hi': a bytes has no use here"),
        ("grpo: {kl_coef: .inf}\n", "r.yaml:3: grpo.kl_coef = inf: must be a finite number"),
    ],
)
def test_wrong_yaml_values(tmp_path: Path, text: str, expected: str):
    assert refusal(write(tmp_path, "model: {path: m}\ndata: {train: d}\n" + text, "r.yaml")).startswith(expected)


def test_yaml_null_is_fine_where_none_is(tmp_path: Path):
    path = write(tmp_path, "model: {path: m, tokenizer: ~}\ndata: {train: d}\ngrpo: {}\nsft: {steps: null}\n", "r.yaml")
    assert load_recipe(path).sft == Sft()
    options = write(tmp_path, "model: {path: m}\ndata: {train: d, options: {x: null}}\n", "o.yaml")
    assert refusal(options) == "o.yaml:2: data.options.x is null: give it a value or leave it out"


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--grpo.learning-rate", "1e-5"], "grpo.learning_rate", 1e-5),
        (["--grpo.learning_rate=1e-5"], "grpo.learning_rate", 1e-5),
        (["grpo.learning_rate=1e-5"], "grpo.learning_rate", 1e-5),
        (["--grpo.learning-rate", "1"], "grpo.learning_rate", 1.0),
        (["--grpo.iterations", "2_000"], "grpo.iterations", 2000),
        (["--grpo.iterations", "3", "--grpo.iterations", "4"], "grpo.iterations", 4),
        (["--grpo.betas", "0.8,0.9"], "grpo.betas", (0.8, 0.9)),
        (["--grpo.betas=[0.8, 0.9]"], "grpo.betas", (0.8, 0.9)),
        (["--rewards.functions", "my file.py:f,accuracy"], "rewards.functions", ["my file.py:f", "accuracy"]),
        (["--rewards.functions", "['a', \"b\"]"], "rewards.functions", ["a", "b"]),
        (["--rewards.metrics", "[]"], "rewards.metrics", []),
        (["--eval.pass_at", "1"], "eval.pass_at", [1]),
        (["--model.trust-remote-code", "true"], "model.trust_remote_code", True),
        (["--model.trust-remote-code", "--run.seed", "1"], "model.trust_remote_code", True),
        (["--model.trust-remote-code"], "model.trust_remote_code", True),
        (["--data.suffix", ""], "data.suffix", ""),
        (["--data.suffix="], "data.suffix", ""),
        (["--data.suffix", 'a=b -- \n"c"'], "data.suffix", 'a=b -- \n"c"'),
        (["--data.suffix", "3"], "data.suffix", "3"),
        (["--data.max-prompt-tokens", "7"], "data.max_prompt_tokens", 7),
        (["--sft.steps", "none"], "sft", None),
        (["--run.seed", "none"], "run.seed", 0),
        (["--data.options.min-terms", "3"], "data.options", {"min_terms": 3}),
        (["--data.options.a", "1e-5"], "data.options", {"a": 1e-5}),
        (["--data.options.a", "1e5"], "data.options", {"a": 1e5}),
        (["--data.options.a", "true"], "data.options", {"a": True}),
        (["--data.options.a", '"3"'], "data.options", {"a": "3"}),
        (["--data.options.a", "two words"], "data.options", {"a": "two words"}),
        (["--data.options.a", "1\nb = 2"], "data.options", {"a": "1\nb = 2"}),
        (["--data.options.a", "2024-01-01"], "data.options", {"a": "2024-01-01"}),
        (["--data.options.a", "[x, 2]"], "data.options", {"a": ["x", 2]}),
        (["--data.options.a", "[1, 2]"], "data.options", {"a": [1, 2]}),
        (["--data.options.a.b", "1", "--data.options.a.c", "2"], "data.options", {"a": {"b": 1, "c": 2}}),
        (["--data.options", "{ a = 1 }"], "data.options", {"a": 1}),
        (["--data.options.a", "1", "--data.options.a", "none"], "data.options", {}),
    ],
)
def test_flags(tmp_path: Path, flags: list[str], key: str, value: Any):
    recipe: Any = load_recipe(write(tmp_path, MINIMAL), flags)
    for part in key.split("."):
        recipe = getattr(recipe, part)
    assert recipe == value
    assert type(recipe) is type(value)


def test_none_takes_a_stage_out(tmp_path: Path):
    path = write(tmp_path, MINIMAL + "[sft]\n[grpo]\n")
    assert stages_of(load_recipe(path, ["--sft", "none"])) == ("grpo",)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--grpo.group-size", "8.0"], 'grpo.group_size = "8.0": must be a whole number'),
        (["--grpo.group-size", "eight"], 'grpo.group_size = "eight": must be a whole number'),
        (["--grpo.group-size", "１２"], 'grpo.group_size = "１２": must be a whole number'),
        (["--grpo.group-size", "9" * 30], "grpo.group_size does not fit in 64 bits"),
        (["--grpo.kl-coef", "small"], 'grpo.kl_coef = "small": must be a number'),
        (["--grpo.kl-coef", "nan"], "grpo.kl_coef = nan: must be a finite number"),
        (["--grpo.kl-coef", "-1"], "grpo.kl_coef = -1.0: must be greater than or equal to 0"),
        (["--model.trust-remote-code", "yes"], 'model.trust_remote_code = "yes": must be true or false'),
        (["--eval.pass-at", "1,x"], 'eval.pass_at[1] = "x": must be a whole number'),
        (["--grpo.gruop-size", "8"], "--grpo.gruop_size: no such option; did you mean --grpo.group_size?"),
        (["--group-size", "8"], "--group_size: no such option; did you mean --grpo.group_size?"),
        (["--num-generations", "8"], "--num_generations: no such option; did you mean --grpo.group_size?"),
        (["--qqqq.zz", "8"], "--qqqq.zz: no such option"),
        (["--run.seed.x", "8"], "--run.seed.x: no such option"),
        (["--grpo", "8"], "--grpo 8: grpo is a section; set one of its options, such as --grpo.learning_rate"),
        (["--grpo.epochs"], "--grpo.epochs needs a value"),
        (["--grpo.epochs", "--run.seed", "1"], "--grpo.epochs needs a value"),
        (["8"], "'8' is no flag; an option is set by --section.key value"),
        (["--data.train", "none"], "data.train is missing: A .jsonl"),
        (["--grpo.minibatches", "999"], "grpo.minibatches (999) is more than grpo.prompts_per_iteration"),
        (["--data.options", "3"], "data.options = 3: must be a table"),
        (["--data.suffix", "\udcff"], "data.suffix = '\\udcff': holds half of a surrogate pair"),
    ],
)
def test_wrong_flags_are_told_from_the_file(tmp_path: Path, flags: list[str], expected: str):
    assert refusal(write(tmp_path, MINIMAL), *flags).startswith(f"command line: {expected}")


def test_every_option_can_be_set_by_a_flag_and_misspelt_ones_are_recognised():
    for key in leaves():
        assert nearest_key(key) == key
        assert nearest_key(f"{key}x") == key


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("beta", "grpo.kl_coef"),
        ("grpo.beta", "grpo.kl_coef"),
        ("sft.beta", "sft.betas"),
        ("lr", "grpo.learning_rate"),
        ("sft.lr", "sft.learning_rate"),
        ("model.max_completion_length", "sampling.max_new_tokens"),
        ("temprature", "sampling.temperature"),
        ("eval.temprature", "eval.temperature"),
        ("samplng", "sampling"),
        ("grpo.steps", "sft.steps"),
        ("", None),
        ("zzz", None),
    ],
)
def test_nearest_key(key: str, meant: str | None):
    assert nearest_key(key) == meant


# --- writing and comparing ------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.sampled_from(
    ['"', "\\", "\n", "\r\n", "\t", "\x7f", "\x01", "'''", '"""', "naïve 🍓", "# no", "[x]", "none", "1e5", "\u2028"]
)
number = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
value = st.recursive(
    text | number | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
positive = st.integers(1, 2**63 - 1)
size = st.floats(0, 1e308)
optimisation = {
    "learning_rate": st.floats(0, 1e6),
    "schedule": st.sampled_from(["constant", "linear", "cosine"]),
    "betas": st.tuples(st.floats(0, 0.9999), st.floats(0, 0.9999)),
}
recipes = st.builds(
    Recipe,
    run=st.builds(
        Run, name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,9}\Z"), dir=text, seed=st.integers(0, 2**32 - 1)
    ),
    model=st.builds(Model, path=text, tokenizer=st.none() | text, trust_remote_code=st.booleans()),
    data=st.builds(
        Data, train=text, eval=st.none() | text, options=st.dictionaries(text, value, max_size=4), suffix=text
    ),
    sampling=st.builds(Sampling, temperature=st.floats(1e-300, 1e300)),
    rewards=st.builds(Rewards, functions=st.lists(text, min_size=1, max_size=3), metrics=st.lists(text, max_size=2)),
    sft=st.none() | st.builds(Sft, steps=st.none() | positive, **optimisation),
    grpo=st.none() | st.builds(Grpo, iterations=positive, kl_coef=size, **optimisation),
    eval=st.builds(Eval, samples=st.just(0), pass_at=st.lists(positive, max_size=3)),
)


@given(recipes)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_dump_toml_reads_back_to_an_equal_recipe(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe):
    path = write(tmp_path_factory.getbasetemp(), dump_toml(recipe), "round_trip.toml")
    again = load_recipe(path)
    assert again == recipe
    assert dump_toml(again) == dump_toml(recipe)
    assert differences(again, recipe) == []


def test_dump_toml_leaves_out_none_and_keeps_tables_apart():
    recipe = Recipe(
        model=Model(path='say "hi"\n'),
        data=Data(train="d", options={"a.b": 1, "deep": {"er": [], "none": None}, "empty": {}}),
    )
    dumped = dump_toml(recipe)
    assert 'path = "say \\"hi\\"\\n"\n' in dumped
    assert '[data.options]\n"a.b" = 1\ndeep = { er = [] }\nempty = {}\n' in dumped
    assert "tokenizer" not in dumped
    assert "sft" not in dumped


@pytest.mark.parametrize("odd", [object(), b"x", {1, 2}, [None], "\ud800"])
def test_dump_toml_refuses_what_toml_cannot_hold(odd: object):
    recipe = Recipe(model=Model(path="m"), data=Data(train="d", options={"x": odd}))
    with pytest.raises(RecipeError, match="cannot stand in a recipe"):
        dump_toml(recipe)


def test_differences_by_dotted_key(tmp_path: Path):
    path = write(tmp_path, MINIMAL + "[sft]\n")
    a = load_recipe(path, ["--data.options.x", "1"])
    b = load_recipe(path, ["--data.options.y", "2", "--sft.betas", "0.9,0.95", "--run.seed", "7"])
    assert differences(a, b) == [
        ("run.seed", 0, 7),
        ("data.options.x", 1, None),
        ("data.options.y", None, 2),
        ("sft.betas", (0.9, 0.999), (0.9, 0.95)),
    ]
    [(key, old, new)] = differences(a, load_recipe(path, ["--data.options.x", "1", "--sft", "none"]))
    assert (key, old["rows_per_step"], new) == ("sft", 16, None)


def test_what_does_not_fit_is_said_of_the_flag_that_caused_it(tmp_path: Path):
    path = write(tmp_path, MINIMAL + '[rewards]\nfunctions = ["accuracy", "format"]\nweights = [1, 2]\n')
    expected = "command line: rewards.weights has 2 numbers for 1 function in rewards.functions; give one for each"
    assert refusal(path, "--rewards.functions", "accuracy") == expected
    assert refusal(path, "--rewards.weights", "1").startswith("command line: rewards.weights has 1 number for 2 func")


def test_pass_at_shrinks_with_the_samples_unless_it_was_given(tmp_path: Path):
    path = write(tmp_path, MINIMAL)
    assert load_recipe(path).eval.pass_at == [1, 4]
    for samples, expected in (("1", [1]), ("2", [1, 2]), ("3", [1, 3]), ("4", [1, 4]), ("9", [1, 4]), ("0", [1, 4])):
        assert load_recipe(path, ["--eval.samples", samples]).eval.pass_at == expected
    written = tmp_path / "config.toml"  # where every default stands, as in a run directory
    written.write_text(dump_toml(load_recipe(path)))
    assert load_recipe(written, ["--eval.samples", "2"]).eval.pass_at == [1, 2]
    assert as_recipe(load_recipe(path), ["--eval.samples", "1"]).eval.pass_at == [1]
    given = write(tmp_path, MINIMAL + "[eval]\npass_at = [2]\n")
    assert load_recipe(given, ["--eval.samples", "2"]).eval.pass_at == [2]
    assert refusal(given, "--eval.samples", "1").startswith("command line: eval.pass_at asks for k=2 of only")


# --- what eval and sample are pointed at -----------------------------------------------------------------------------


def test_located_a_recipe_a_run_or_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, MINIMAL + '[run]\nname = "mine"\n')
    recipe = load_recipe(path)
    assert located(path) == located(recipe) == (recipe, None)
    for stage in ("sft", "grpo"):
        Path(f"runs/mine/models/{stage}").mkdir(parents=True)
        Path(f"runs/mine/models/{stage}/config.json").touch()
    Path("runs/mine/config.toml").write_text(dump_toml(recipe))
    assert located(path) == (recipe, "runs/mine/models/grpo")
    assert located("runs/mine/models/sft") == (recipe, "runs/mine/models/sft")
    Path("runs/mine").rename("moved")
    assert located(path) == (recipe, None)
    assert located("moved") == (recipe, "moved/models/grpo")
    assert located("moved", ["--run.seed", "7"])[0].run.seed == 7
    model, none = located("owner/model", ["--data.train", "task:letters"])
    assert (model.model.path, model.data.train, none) == ("owner/model", "task:letters", None)
    assert located("owner/model")[0].data.train == "-"


# --- batch arithmetic -----------------------------------------------------------------------------------------------


def test_batch_arithmetic_in_literal_numbers(tmp_path: Path):
    path = write(
        tmp_path,
        '[model]\npath = "embedded:letters"\n[data]\ntrain = "task:letters"\nsize = 1500\neval_size = 512\n'
        "[sampling]\nmax_new_tokens = 56\n[sft]\nsteps = 800\n"
        "[grpo]\niterations = 40\nprompts_per_iteration = 32\ntrain_fraction = 0.5\nepochs = 3\nminibatches = 4\n"
        "[eval]\nevery = 10\n",
    )
    recipe = load_recipe(path)
    assert batch_arithmetic(recipe) == [
        ("sft", "800 optimizer steps x 16 rows = 12,800 rows"),
        ("grpo, an iteration", "32 prompts x 8 in a group = 256 completions"),
        ("  trained on", "4 of 8 in a group = 128 completions"),
        ("  a minibatch", "128 completions / 4 minibatches = 32"),
        ("  optimizer steps", "3 epochs x 4 minibatches = 12"),
        ("  new tokens", "256 completions x 56 = at most 14,336"),
        ("grpo, in all", "40 iterations: 480 optimizer steps, 10,240 completions, at most 573,440 new tokens"),
        ("  prompts", "1,280 drawn from 1,500 = 0.853 passes"),
        ("evaluation, greedy", "5 times x 512 prompts = 2,560 completions"),
        ("evaluation, sampled", "2 times x 512 prompts x 4 = 4,096 completions"),
        ("  new tokens", "at most 372,736"),
    ]
    assert batch_arithmetic(recipe, ("sft",)) == [("sft", "800 optimizer steps x 16 rows = 12,800 rows")]


def test_batch_arithmetic_of_files_and_epochs(tmp_path: Path):
    path = write(tmp_path, MINIMAL + "[sft]\nepochs = 2\n[grpo]\nminibatches = 3\niterations = 1\n")
    rows = batch_arithmetic(load_recipe(path, ["--data.eval-size", "0"]))
    assert rows[0] == ("sft", "2 passes over d.jsonl, 16 rows an optimizer step")
    counted = batch_arithmetic(load_recipe(path), counted={"train": 32, "eval": 1, "sft": 40})
    assert counted[0] == ("sft", "2 passes x 40 rows / 16 rows a step = 4 optimizer steps")
    assert ("  prompts", "16 drawn from 32 of d.jsonl = 0.5 passes") in counted
    assert ("evaluation, greedy", "2 times x 1 prompt = 2 completions") in counted
    assert ("  a minibatch", "128 completions / 3 minibatches = 42 or 43") in rows
    assert ("  prompts", "16 drawn from d.jsonl") in rows
    assert rows[-1] == ("evaluation", "none (data.eval_size is 0)")
    generated = batch_arithmetic(load_recipe(path, ["--sft.data", "task:letters"]), ("sft",))
    assert generated == [("sft", "2 passes x 2,000 rows / 16 rows a step = 250 optimizer steps")]


@pytest.mark.parametrize(
    ("group_size", "fraction", "kept"), [(8, 1.0, 8), (8, 0.5, 4), (5, 0.5, 3), (30, 0.1, 3), (8, 0.01, 1), (2, 0.5, 1)]
)
def test_completions_kept(group_size: int, fraction: float, kept: int):
    assert completions_kept(group_size, fraction) == kept

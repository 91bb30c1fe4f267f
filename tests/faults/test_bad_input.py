"""Every mistake a user can make is told in one clear sentence with exit code 2, and costs nothing that was on disk."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from faults.conftest import VARIED, User, fingerprint, iterations, kept
from oncurve.cli import main
from oncurve.runlog import RunLog, list_runs
from tiny import tiny_llama, tiny_tokenizer


def question(number: int, **columns: Any) -> dict[str, Any]:
    return {"prompt": f"How many a's are in {'ab' * number}?", "answer": str(number)} | columns


def questions(count: int) -> list[dict[str, Any]]:
    return [question(number) for number in range(1, count + 1)]


ACCURACY = {"functions": ["accuracy"], "weights": None}

# --- the recipe -----------------------------------------------------------------------------------------------------


def test_a_typo_is_told_with_file_line_and_nearest_key(user: User):
    recipe = user.write_recipe()
    lines = Path(recipe).read_text().replace("kl_coef", "kl_coeff").splitlines()
    user.write("recipe.toml", "\n".join(lines))
    number = next(at for at, line in enumerate(lines, 1) if line.startswith("kl_coeff"))
    user.says("grpo", recipe).refused(
        f"recipe.toml:{number}: grpo.kl_coeff = 0.0: no such key; did you mean grpo.kl_coef?"
    )
    assert not user.run_dir.exists()


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--grpo.group-size", "1", "a completion is compared with the others of its group"),
        ("--grpo.iterations", "0", "grpo.iterations = 0: must be greater than or equal to 1"),
        ("--rewards.weights", "0", "weights are all 0: nothing would be rewarded"),
        ("--grpo.betas", "0.9,1.0", "grpo.betas[1] = 1.0: must be less than 1"),
        ("--grpo.learning-rate", "1e38", "grpo.learning_rate = 1e+38: must be less than or equal to 1000000"),
        ("--grpo.learning-rate", "nan", "grpo.learning_rate = nan: must be a finite number"),
        ("--run.seed", "4294967296", "run.seed = 4294967296: must be less than 4294967296"),
        ("--run.threads", "100000", "run.threads = 100000: must be less than or equal to 1024"),
        ("--run.name", "../elsewhere", 'run.name = "../elsewhere": must match pattern'),
        ("--run.name", "n" * 300, "must have at most 100 characters"),
        ("--data.train", "a\0b.jsonl", "data.train = 'a\\x00b.jsonl': holds a NUL character"),
    ],
)
def test_a_value_out_of_range(user: User, flag: str, value: str, words: str):
    user.says("grpo", user.write_recipe(), flag, value).refused(words)
    assert not user.run_dir.parent.exists()


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_a_stage_that_is_missing(user: User, stage: str):
    user.says(stage, user.write_recipe(), f"--{stage}", "none").refused(f"has no [{stage}] section")


# --- model and tokenizer --------------------------------------------------------------------------------------------

WORDS = ["two", "plus", "is", "four", "please", "hello"]


def word_rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{a} {b} is", "answer": "4"} for a in WORDS for b in WORDS][:count]


def model(user: User, **options: Any) -> Path:
    directory = user.directory / "model"
    tiny_tokenizer(**options).save_pretrained(directory)
    tiny_llama().save_pretrained(directory)
    return directory


@pytest.mark.parametrize("name", ["no/such-model", "./no/such/model", "embedded:leters", "package:no_such_package"])
def test_an_unknown_model(user: User, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    rows = user.write_rows(*questions(6))
    recipe = user.write_recipe(model={"path": name}, data={"train": rows})
    user.says("grpo", recipe).refused(name.removeprefix("embedded:").removeprefix("package:"))
    assert not user.run_dir.exists()


def test_a_tokenizer_without_eos(user: User):
    recipe = user.write_recipe(
        model={"path": str(model(user, eos_token=None))}, data={"train": user.write_rows(*word_rows(6))}
    )
    user.says("grpo", recipe).refused("model.path", "the tokenizer has no end-of-sequence token", "Set eos_token")
    assert not user.run_dir.exists()


@pytest.mark.parametrize("options", [{}, {"pad_token": "</s>"}], ids=["no pad", "pad is EOS"])
def test_a_tokenizer_without_a_pad_of_its_own_is_as_good(user: User, options: dict[str, str]):
    recipe = user.write_recipe(
        model={"path": str(model(user, **options))}, data={"train": user.write_rows(*word_rows(6))}
    )
    user.says("grpo", recipe).went_well()
    with RunLog.open(user.run_dir, readonly=True) as log:
        for row in log.completion_rows("train", "grpo"):
            assert 2 not in row.token_ids[:-1]
            assert row.truncated == (row.token_ids[-1] != 2)


def test_a_tokenizer_of_another_model(user: User):
    directory = model(user)
    tiny_llama(vocab_size=8).save_pretrained(directory)
    recipe = user.write_recipe(model={"path": str(directory)}, data={"train": user.write_rows(*word_rows(6))})
    user.says("grpo", recipe).refused("holds the token 'is' with id 8", "ids below 8", "belongs to another model")


def test_weights_that_are_no_numbers(user: User):
    directory = model(user)
    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    recipe = user.write_recipe(model={"path": str(directory)}, data={"train": user.write_rows(*word_rows(6))})
    user.says("grpo", recipe).refused("model.path", "the weight model.norm.weight holds NaN")


def test_weights_that_are_cut_off(user: User):
    directory = model(user)
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    recipe = user.write_recipe(model={"path": str(directory)}, data={"train": user.write_rows(*word_rows(6))})
    user.says("grpo", recipe).refused("model.path", "cannot be loaded")


def test_a_cache_that_cannot_be_written_is_told_before_a_gguf_is_converted(user: User, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("XDG_CACHE_HOME", user.write("home", "a file, so no directory can be made in it"))
    recipe = user.write_recipe(model={"path": user.write("m.gguf", "not even read")})
    user.says("grpo", recipe).refused(f"{user.directory}/home/oncurve/gguf, which cannot be written", "XDG_CACHE_HOME")


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "sections", "words"),
    [
        ([], {}, ["data.train: ", "data.jsonl has no rows"]),
        (
            [{"question": "why?"}],
            {},
            ["data.train: ", "data.jsonl: data row 0", "no column 'prompt', only: question", "data.prompt_column"],
        ),
        (
            [{"prompt": "why?"}, {"prompt": "how?"}, {"prompt": "when?"}],
            {"rewards": ACCURACY},
            ["data.train: ", "data.jsonl: reward 'accuracy' requires `answer`, which the data set does not have"],
        ),
        (
            [*questions(6), question(7, prompt="a" * 200)],
            {},
            ["data.jsonl: data row 6", "200 tokens; at most 116 fit", "context of 128", "data.over_long = 'drop'"],
        ),
        (
            [*questions(6), question(7, prompt="a" * 100)],
            {"eval": {"max_new_tokens": 60}},
            ["data row 6", "100 tokens; at most 68 fit", "less eval.max_new_tokens = 60"],
        ),
        (
            questions(6),
            {"grpo": {"prompts_per_iteration": 5}},
            ["prompts_per_iteration is 5", "only 4 training prompts"],
        ),
        (questions(6), {"data": {"eval_size": 6}}, ["data.eval_size is 6", "only 6 different prompts"]),
        (
            [*questions(6), question(7, answer="")],
            {"rewards": ACCURACY},
            ["data.train: ", "data.jsonl: data row 6", "'' is empty"],
        ),
        ([*questions(6), question(7, answer=True)], {"rewards": ACCURACY}, ["data row 6", "True is a bool"]),
        ([*questions(6), question(7, answer=[7])], {"rewards": ACCURACY}, ["data row 6", "[7] is a list"]),
        ([question(n, answer=None) for n in range(6)], {"rewards": ACCURACY}, ["no row has an `answer`"]),
        (
            [question(n, completions="x") for n in range(6)],
            {},
            ["data.train: ", "data.jsonl: the data has a column 'completions'", "rename it"],
        ),
    ],
    ids=lambda value: (
        value[0][:40].replace(" ", "-") if isinstance(value, list) and value and isinstance(value[0], str) else ""
    ),
)
def test_data_that_cannot_be_trained_on(user: User, rows: list[Any], sections: dict[str, Any], words: list[str]):
    data = {"train": user.write_rows(*rows)}
    recipe = user.write_recipe(**sections | {"data": data | sections.get("data", {})})
    user.says("grpo", recipe).refused(*words)
    assert not user.run_dir.exists()


def test_an_answer_in_the_evaluation_data_is_read_before_training_too(user: User):
    train, held_out = (
        user.write_rows(*questions(6)),
        user.write_rows(question(9), question(8, answer=" "), name="eval.jsonl"),
    )
    recipe = user.write_recipe(data={"train": train, "eval": held_out}, rewards=ACCURACY)
    user.says("grpo", recipe).refused(f"data.eval: {held_out}: data row 1 (counted from 0)", "' ' is empty")


@pytest.mark.parametrize("option", ["data.train", "data.eval", "sft.data"])
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.jsonl", "there is no file nowhere.jsonl"),
        ("~no-such-user/data.jsonl", "there is no file ~no-such-user/data.jsonl"),
        ("data.txt", "'data.txt' is not a data set"),
        ("task:leters", "task:leters: there is no task 'leters'; did you mean 'letters'?"),
        ("DATA", "data row 0 (counted from 0): there is no column 'prompt', only: question"),
    ],
)
def test_every_data_set_is_named_by_its_option(user: User, option: str, source: str, words: str):
    source = source.replace("DATA", user.write_rows({"question": "why?"}))
    recipe = user.write_recipe(sft={"steps": 2}, data={"train": user.write_rows(*questions(6), name="good.jsonl")})
    user.says("grpo", recipe, f"--{option}", source).refused(f"{option}: ", words)
    assert not user.run_dir.exists()


def test_options_that_nothing_would_read(user: User):
    data = user.write_rows(*questions(6))
    recipe = user.write_recipe(data={"train": data, "options": {"max_digits": 1}})
    user.says("grpo", recipe).refused(f"data.options.max_digits: {data} is a file, which takes no options", "Leave it")
    user.says("grpo", recipe, "--dry-run").refused("data.options.max_digits")
    embedded = user.write_recipe(name="embedded.toml")
    for option, value in (("dtype", "bfloat16"), ("tokenizer", "some/tokenizer"), ("chat_template", "t.jinja")):
        user.says("grpo", embedded, f"--model.{option}", value).refused(
            f"{option} = '{value}' would have no effect on embedded:letters, a new model; leave it out"
        )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--data.size", "1000000000000"],
            "data.size = 1000000000000: must be less than or equal to 1000000: all rows",
        ),
        (
            ["--data.eval-size", "1000000000000"],
            "data.eval_size = 1000000000000: must be less than or equal to 1000000",
        ),
        (["--data.eval-size", "1001"], "data.eval_size: the letters task has 1000 words for eval, and 1001 were asked"),
        (["--data.train", "task:chain", "--data.size", "22540"], "data.size: the chain task has 22539 different sums"),
        (
            ["--data.train", "task:chain", "--data.eval-size", "1300"],
            "data.eval_size: the chain task has 1299 different",
        ),
        (
            ["--sft.data", "task:chain", "--sft.size", "22540"],
            "sft.size: the chain task has 22539 different sums for train, and 22540 were asked for",
        ),
        (["--grpo.group-size", "1000000000000"], "grpo.group_size = 1000000000000: must be less than or equal to"),
        (["--eval.samples", "1000000000000"], "eval.samples = 1000000000000: must be less than or equal to 1000000"),
    ],
)
def test_more_than_memory_or_the_task_has(user: User, flags: list[str], words: str):
    user.says("grpo", user.write_recipe(), *flags).refused(words)
    assert not user.run_dir.exists()


def test_rows_without_an_answer_are_told_and_left_unscored(user: User):
    rows = [*questions(5), question(6, answer=None), question(7, answer=None)]
    recipe = user.write_recipe(data={"train": user.write_rows(*rows), "eval_size": 0}, rewards=ACCURACY)
    assert "2 of 7 prompts have no `answer`" in user.says("grpo", recipe).went_well().out


def test_over_long_prompts_are_dropped_and_counted_when_asked_to(user: User):
    data = {"train": user.write_rows(*questions(6), question(7, prompt="a" * 200)), "over_long": "drop"}
    assert "1 of 7 prompts were over-long" in user.says("grpo", user.write_recipe(data=data)).went_well().out


def test_ids_of_the_data_set_need_not_differ(user: User):
    """A column ``id`` is the user's; completions are recorded and drawn by the number of their row."""
    rows = [question(number, id="same") for number in range(1, 8)]
    user.says("grpo", user.write_recipe(data={"train": user.write_rows(*rows), "eval_size": 0})).went_well()
    with RunLog.open(user.run_dir, readonly=True) as log:
        assert len({row.prompt_id for row in log.completion_rows("train", "grpo", iteration=1)}) == 3


def test_fine_tuning_alone_needs_no_answer_column(user: User):
    rows = [{"prompt": f"say {word}", "completion": word} for word in ("one", "two", "three", "four")]
    recipe = user.write_recipe(
        data={"train": user.write_rows(*rows), "eval_size": 0}, rewards=ACCURACY, sft={"steps": 2, "rows_per_step": 2}
    )
    user.says("sft", recipe).went_well()
    user.says("grpo", recipe).refused("requires `answer`")
    assert (user.run_dir / "models" / "sft" / "model.safetensors").exists()


# --- rewards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return [0.5] * (len(completion_ids) - 1)",
            "reward.py) returned 1 value; expected 2, one per completion",
        ),
        ("return [0.5]", "reward.py) returned 1 value; expected 2"),
        ("return 0.5", "reward.py) returned 0.5 (a float); return a list of 2 numbers"),
        ("return None", "reward.py) returned None (a NoneType)"),
        ("return {'score': 1.0}", "reward.py) returned {'score': 1.0} (a dict)"),
        ("return ['1'] * len(completion_ids)", "reward.py) returned '1' (a str) for row 0"),
        ("return [True] * len(completion_ids)", "reward.py) returned True (a bool) for row 0"),
        ("return [float('nan')] * len(completion_ids)", "reward.py) returned nan for row 0"),
        ("return [1e50] * len(completion_ids)", "the rewards, weight times score, are {'varied': 1e+50}"),
        (
            "raise ValueError('the judge is down')",
            "reward.py, line 2 (`raise ValueError('the judge is down')`): ValueError",
        ),
        ("raise SystemExit(0)", "reward 'varied' failed: "),
        ("return varied(completion_ids, trainer_state, log_metric)", "RecursionError"),
        ("log_metric('a\\nb', 1.0); return [0.5] * len(completion_ids)", "log_metric('a\\nb', ...): the name must be"),
    ],
)
def test_a_reward_that_is_wrong_from_the_start(user: User, body: str, words: str):
    recipe = user.write_recipe()
    user.reward(body)
    user.says("grpo", recipe).refused("reward", words)
    user.write("reward.py", VARIED)
    user.says("grpo", recipe).went_well()
    assert iterations(user.run_dir) == [1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def varied(completions:\n    return 1\n", "reward.py, line 1 (`def varied(completions:`): SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "failed on import"),
        ("def varried(completions): ...\n", "has no 'varied' (did you mean 'varried'?)"),
        ("class varied: ...\n", "is a class, not a function"),
        ("def varied(completions, solution): ...\n", "requires `solution`, which the data set does not have"),
    ],
)
def test_a_reward_file_that_cannot_be_used(user: User, text: str, words: str):
    recipe = user.write_recipe()
    user.write("reward.py", text)
    user.says("grpo", recipe).refused(words)
    assert not user.run_dir.exists()
    os.remove(user.directory / "reward.py")
    user.says("grpo", recipe).refused("there is no file")


def test_a_reward_file_may_go_where_it_likes(user: User, monkeypatch: pytest.MonkeyPatch):
    """Paths relative to the working directory go on meaning the same."""
    elsewhere = user.directory / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(user.directory)
    user.write_rows(*questions(6))
    recipe = user.write_recipe(
        run={"dir": "runs"}, data={"train": "data.jsonl"}, rewards={"functions": ["reward.py:varied"]}
    )
    go = f"import os\nos.chdir({str(elsewhere)!r})\n"
    user.write("reward.py", go + VARIED.replace("    return", f"    os.chdir({str(elsewhere)!r})\n    return"))
    user.says("grpo", recipe).went_well()
    assert (user.run_dir / "models" / "grpo").is_dir()
    assert list(elsewhere.iterdir()) == []


FAILS_AT = {
    "in an iteration": "if trainer_state['iteration'] == 3: raise ValueError('late')",
    "with too few values": "if trainer_state['iteration'] == 3: return [0.0]",
    # iteration 0 stands for evaluation, of 2 prompts each: before training and after iterations 2 and 4
    "in an evaluation": "import pathlib; told = pathlib.Path(__file__).with_name('told')\n"
    "    if trainer_state['iteration'] == 0: told.write_text(told.read_text() + 'x' if told.exists() else 'x')\n"
    "    if told.exists() and len(told.read_text()) > 1: raise ValueError('late')",
}


@pytest.mark.parametrize("failure", FAILS_AT.values(), ids=FAILS_AT.keys())
def test_a_reward_that_fails_later_loses_no_iteration(user: User, failure: str):
    sections: dict[str, Any] = {"grpo": {"iterations": 4}, "eval": {"every": 2}, "checkpoint": {"every": 10}}
    whole = user.write_recipe(**sections, run={"name": "whole"}, name="whole.toml")
    user.says("grpo", whole).went_well()
    recipe = user.write_recipe(**sections)
    user.reward(f"{failure}\n    return [float(sum(ids) % 7) for ids in completion_ids]")
    user.says("grpo", recipe).refused("reward 'varied'")
    assert iterations(user.run_dir) == [1, 2]
    assert [path.name for path in (user.run_dir / "checkpoints").iterdir()] == ["step-00000002"]
    assert [info.status for info in list_runs(user.run_dir.parent)] == ["stopped", "finished"]
    user.write("reward.py", VARIED)
    assert "resuming" in user.says("grpo", recipe).went_well().out
    assert fingerprint(user.run_dir) == fingerprint(user.run_dir.parent / "whole")


def test_a_metric_of_the_users_cannot_take_the_place_of_one_of_ours(user: User):
    recipe = user.write_recipe()
    user.reward("log_metric('reward', 99.0); return [float(sum(ids) % 7) for ids in completion_ids]")
    user.says("grpo", recipe).refused("log_metric('reward', ...)", "a name of Oncurve's own")
    assert iterations(user.run_dir) == []
    user.reward("log_metric('mine', 99.0); return [float(sum(ids) % 7) for ids in completion_ids]")
    user.says("grpo", recipe).went_well()


LONG_BUT_QUICK: dict[str, Any] = {
    "data": {"eval_size": 0},
    "sampling": {"max_new_tokens": 2},
    "checkpoint": {"every": 50},
}
SMALLEST = {"prompts_per_iteration": 2, "group_size": 2}


def test_a_reward_that_teaches_nothing_is_told_once_with_samples(user: User):
    recipe = user.write_recipe(**LONG_BUT_QUICK, grpo=SMALLEST | {"iterations": 43})
    user.reward(
        "return [0.25] * len(completion_ids) if trainer_state['iteration'] != 22 else list(range(len(completion_ids)))"
    )
    out = user.says("grpo", recipe).went_well().out
    warning = "warning: reward 'varied' has given 0.25 to every completion of the last 20 iterations"
    assert out.count(warning) == 2  # after iterations 20 and 42
    assert out.count("warning: in the first iteration all completions of a prompt had the same reward") == 1
    assert out.count("warning: the last 5 iterations changed nothing") == 2  # after iterations 5 and 27
    assert out.count("warning: ") == 5
    assert len(out.split(warning)[1].splitlines()[1:4]) == 3
    assert all(line.startswith("  ") for line in out.split(warning)[1].splitlines()[1:4])


def test_a_reward_that_scores_nothing_is_told_too(user: User):
    recipe = user.write_recipe(**LONG_BUT_QUICK, grpo=SMALLEST | {"iterations": 20})
    user.reward("return [None] * len(completion_ids)")
    out = user.says("grpo", recipe).went_well().out
    assert "reward 'varied' has scored no completion of the last 20 iterations" in out


# --- numbers that run away ------------------------------------------------------------------------------------------


def test_a_learning_rate_that_blows_up_fine_tuning(user: User):
    recipe = user.write_recipe(data={"train": "task:letters"}, sft={"steps": 4, "learning_rate": 1e5})
    user.says("grpo", recipe).refused("sft, after step ", "is nan", "--run.name NAME", "sft.learning_rate (100000)")
    assert not (user.run_dir / "models").exists()


def test_a_learning_rate_that_blows_up_grpo(user: User):
    recipe = user.write_recipe(grpo={"learning_rate": 1e5, "iterations": 4})
    user.says("grpo", recipe).refused("grpo, after iteration 1: the ", "--run.name NAME", "grpo.learning_rate (100000)")
    assert iterations(user.run_dir) == [1]
    assert not (user.run_dir / "models").exists()
    user.says("grpo", recipe, "--run.name", "other", "--grpo.learning-rate", "1e-3").went_well()


def test_a_model_that_was_blown_up_is_noticed_without_a_loss(user: User):
    """Its completions are rubbish and all score the same, so that there never is another update."""
    recipe = user.write_recipe(grpo={"weight_decay": 1e50, "iterations": 4})
    user.reward("return [float(i) * (trainer_state['iteration'] == 1) for i in range(len(completion_ids))]")
    user.says("grpo", recipe).refused("grpo, after iteration 1: ", "--run.name NAME")
    assert iterations(user.run_dir) == [1]


# --- the run directory ----------------------------------------------------------------------------------------------


def in_another_process(*argv: str) -> int:
    """Begin ``oncurve argv``; the number of the process."""
    pid = os.fork()
    if pid == 0:
        try:
            main(list(argv))
        finally:
            os._exit(1)
    return pid


def test_a_run_that_belongs_to_another_recipe(user: User):
    recipe = user.write_recipe()
    user.says("grpo", recipe).went_well()
    before = kept(user.run_dir)
    user.says("grpo", recipe, "--grpo.clip-low", "0.3").refused("grpo.clip_low: 0.2 there, 0.3 here", "--run.name NAME")
    user.says("grpo", recipe, "--run.seed", "4", "--data.suffix", "!").refused("run.seed: 3 there", "data.suffix")
    assert kept(user.run_dir) == before
    user.says("grpo", recipe, "--run.threads", "1").went_well()


def test_data_or_model_that_changed_since_cost_no_record(user: User):
    """The records after the last checkpoint would be made again by a run that goes on. This one does not."""
    data = user.write_rows(*word_rows(9))
    recipe = user.write_recipe(
        model={"path": str(model(user))},
        data={"train": data},
        grpo={"iterations": 3},
        checkpoint={"every": 2},
        rewards={"functions": [f"inline:{user.directory / 'reward.py'}:varied"]},  # it ends the run's own process
    )
    user.reward(
        "import os; trainer_state['iteration'] == 4 and os._exit(0)\n"
        "    return [float(sum(ids) % 7) for ids in completion_ids]"
    )
    longer = ["--grpo.iterations", "4"]
    os.waitpid(in_another_process("grpo", recipe, *longer), 0)
    assert iterations(user.run_dir) == [1, 2, 3]
    before = kept(user.run_dir)
    user.write_rows(*word_rows(10))
    user.says("grpo", recipe, *longer).refused("data", "began with", "--run.name NAME")
    assert kept(user.run_dir) == before
    user.write_rows(*word_rows(9))
    tiny_llama(hidden_size=32).save_pretrained(user.directory / "model")
    user.says("grpo", recipe, *longer).refused("step-00000002 does not fit the model", "put it back")
    assert kept(user.run_dir) == before
    tiny_llama().save_pretrained(user.directory / "model")
    user.write("reward.py", VARIED)
    user.says("grpo", recipe, *longer).went_well()
    assert iterations(user.run_dir) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_reference_that_cannot_be_loaded(user: User, how: str):
    sections: dict[str, Any] = {"sft": {"steps": 2}, "grpo": {"iterations": 2, "kl_coef": 0.1}}
    recipe = user.write_recipe(**sections, data={"train": "task:letters"})
    user.reward("if trainer_state['iteration'] == 2: raise ValueError\n    return [sum(ids) for ids in completion_ids]")
    user.says("grpo", recipe).refused("reward 'varied' failed")
    weights = user.run_dir / "models" / "sft" / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:1000]) if how == "cut" else weights.unlink()
    before = kept(user.run_dir)
    user.says("grpo", recipe).refused(f"reference cannot be loaded from {weights.parent}", "Put that directory back")
    assert kept(user.run_dir) == before
    weights.write_bytes(good)
    user.write("reward.py", VARIED)
    user.says("grpo", recipe).went_well()


def test_places_where_no_run_can_be(user: User):
    recipe = user.write_recipe()
    user.run_dir.parent.mkdir()
    user.run_dir.write_text("a file")
    user.says("grpo", recipe).refused("runs/small is a file, and a run needs a directory")
    assert user.run_dir.read_text() == "a file"
    user.says("grpo", recipe, "--run.dir", recipe).refused("cannot be made", "recipe.toml is a file")
    user.says("grpo", recipe, "--run.dir", "d" * 300).refused("File name too long", "set run.dir")


@pytest.mark.parametrize("part", ["models", "checkpoints", "config.toml"])
def test_a_directory_that_holds_something_else_is_left_alone(user: User, part: str):
    recipe = user.write_recipe()
    user.run_dir.mkdir(parents=True)
    (user.run_dir / part).write_text("somebody's")
    before = kept(user.run_dir)
    user.says("grpo", recipe).refused(part, "--run.name NAME")
    assert kept(user.run_dir) == before
    (user.run_dir / part).rename(user.directory / "away")
    user.says("grpo", recipe).went_well()


def test_a_directory_without_permission(user: User, monkeypatch: pytest.MonkeyPatch):
    recipe = user.write_recipe()
    closed = user.directory / "closed"
    closed.mkdir(mode=0o555)
    if os.geteuid() == 0:  # whom permissions do not stop
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    user.says("grpo", recipe, "--run.dir", str(closed)).refused("cannot be written: no permission in", "set run.dir")
    assert list(closed.iterdir()) == []


def spoil(path: Path, how: str) -> None:
    good = path.read_bytes()
    if how == "garbage":
        path.write_bytes(b"no database " * 900)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(good[: len(good) // 2])
    else:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE meta SET value = ? WHERE key = ?", how.split("=")[::-1])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("garbage", "file is not a database"),
        ("empty", "not the record of an Oncurve run"),
        ("cut", "malformed"),
        ("format_version=3", "format 3"),
        ("recipe={}", "the recipe it was begun with"),
    ],
)
def test_a_damaged_record(user: User, how: str, words: str):
    recipe = user.write_recipe()
    user.says("grpo", recipe).went_well()
    record = user.run_dir / "run.sqlite"
    good = record.read_bytes()
    spoil(record, how)
    files = {path: path.read_bytes() for path in user.run_dir.rglob("*") if path.is_file()}
    user.says("grpo", recipe).refused(f"{record}", words, "--run.name NAME")
    if "recipe" not in how:
        user.says("report", str(user.run_dir)).refused(str(record))
        user.says("export", str(user.run_dir), "--to", "jsonl").refused(str(record))
        assert "unreadable" in user.says("runs", str(user.run_dir.parent)).out
    assert {path: path.read_bytes() for path in user.run_dir.rglob("*") if path.is_file()} == files
    record.write_bytes(good)
    user.says("grpo", recipe).went_well()


def test_checkpoints_whose_record_is_gone(user: User):
    recipe = user.write_recipe()
    user.says("grpo", recipe).went_well()
    (user.run_dir / "run.sqlite").rename(user.directory / "run.sqlite")
    before = kept(user.run_dir)
    user.says("grpo", recipe).refused("checkpoints and no run.sqlite")
    assert kept(user.run_dir) == before
    (user.directory / "run.sqlite").rename(user.run_dir / "run.sqlite")
    user.says("grpo", recipe).went_well()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_two_processes_in_one_run_directory(user: User, monkeypatch: pytest.MonkeyPatch):
    """The first waits inside its reward function; the second is refused; the first dies; the second goes on."""
    recipe = user.write_recipe()
    started = user.directory / "started"
    os.mkfifo(started)
    user.reward(
        "import os, signal\n"
        "    if os.environ.get('WAITS') and trainer_state['iteration'] == 2:\n"
        f"        open({str(started)!r}, 'w').close()\n"
        "        signal.pause()\n"
        "    return [float(sum(ids) % 7) for ids in completion_ids]"
    )
    monkeypatch.setenv("WAITS", "1")
    first = in_another_process("grpo", recipe)
    monkeypatch.delenv("WAITS")
    started.read_text()  # until the first is in its second iteration
    before = kept(user.run_dir)
    user.says("grpo", recipe).refused(f"{user.run_dir} is in use", f"(pid {first})", "--run.name NAME")
    user.says("grpo", recipe, "--run.seed", "9").refused("is in use")
    user.says("report", str(user.run_dir)).went_well()  # reading needs no lock
    (user.run_dir / "report.html").unlink()
    assert kept(user.run_dir) == before
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    user.says("grpo", recipe).went_well()
    assert iterations(user.run_dir) == [1, 2]


# --- names, and the other commands ----------------------------------------------------------------------------------


def test_spaces_quotes_and_letters_of_any_script_in_every_path(user: User):
    odd = user.directory / "ünï cödé 日本 'q\" $x [b]"
    odd.mkdir()
    reward, data = odd / "rëward file.py", odd / "dä ta.jsonl"
    reward.write_text(VARIED)
    data.write_text("".join(json.dumps(question(n)) + "\n" for n in range(1, 8)))
    Path(
        user.write_recipe(
            run={"dir": str(odd / "läufe")}, data={"train": str(data)}, rewards={"functions": [f"{reward}:varied"]}
        )
    ).rename(odd / "rezept é.toml")
    recipe, run_dir = str(odd / "rezept é.toml"), str(odd / "läufe" / "small")
    user.says("grpo", recipe).went_well()
    assert "is already finished" in user.says("grpo", recipe).went_well().out
    user.says("export", run_dir, "--to", "jsonl").went_well()
    user.says("report", run_dir).went_well()
    user.says("eval", recipe).went_well()
    user.says("sample", recipe, "--prompt", "wie viele?", "--n", "1").went_well()
    assert "small" in user.says("runs", str(odd / "läufe")).went_well().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sample", "RECIPE", "--prompt", "caf\udce9"], "the prompt is not text in the encoding of this system"),
        (["sample", "RECIPE", "--prompt", ""], "is empty"),
        (["sample", "RECIPE", "--prompt", "a" * 200], "200 tokens"),
        (["sample", "RECIPE", "--prompt", "x", "--n", "0"], "n = 0"),
        (["sample", "RECIPE", "--prompt", "x", "--n", "1000000000000"], "n = 1000000000000: must be"),
        (["sample", "RECIPE", "--prompt", "x", "--temperature", "nan"], "temperature = nan"),
        (["sample", "./nowhere/at/all", "--prompt", "x"], "there is no such directory"),
        (["eval", "RECIPE", "--model", "./nowhere/at/all"], "there is no such directory"),
        (["eval", "RECIPE", "--data.eval-size", "0"], "data.eval_size is 0"),
        (["report", "nowhere"], "nowhere is not a run directory"),
        (["export", "nowhere", "--to", "jsonl"], "nowhere is not a run directory"),
    ],
)
def test_the_other_commands(user: User, argv: list[str], words: str):
    recipe = user.write_recipe()
    user.says(*[recipe if word == "RECIPE" else word for word in argv]).refused(words)


def test_from_a_shell(user: User):
    """The same through a process of its own: exit code, standard error alone, nothing left behind."""
    recipe = user.write_recipe(model={"path": "./no/such/model"}, data={"train": user.write_rows(*questions(6))})
    done = subprocess.run(
        [sys.executable, "-m", "oncurve", "grpo", recipe], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("model.path = './no/such/model': there is no such directory")
    assert sorted(path.name for path in user.directory.iterdir()) == ["data.jsonl", "recipe.toml", "reward.py"]

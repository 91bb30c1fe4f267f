"""Iterative GRPO: the chain of its parts, replay, what outer iterations begin with, resuming, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from oncurve.cli import main
from oncurve.models.reward_model import Form, new_reward_model, save_reward_model
from oncurve.recipe import dump_toml
from oncurve.runlog import RunLog
from oncurve.train import iterate, learned_rewards, reward_run
from oncurve.train.iterate import chain, collect
from oncurve.train.iterate.replay import replay_size, replayed
from oncurve.types import OncurveError
from tiny import tiny_llama, tiny_tokenizer

LABEL = """
def shape(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]
def right(completions, **_):
    return [1.0 for _ in completions]
def large(completions, **_):
    return [7.0 for _ in completions]
def silent(completions, **_):
    return [None for _ in completions]
"""


@pytest.fixture
def recipe_of(tiny, tmp_path):
    (tmp_path / "label.py").write_text(LABEL)

    def build(name="tiny", function="shape", **sections):
        own = {
            "run": {"name": name},
            "rewards": {"functions": [f"inline:{tmp_path / 'label.py'}:{function}"]},
            "reward_model": {"kind": "pointwise", "held_out": 4, "rows_per_step": 4, "learning_rate": 1e-2},
            "iterate": {"iterations": 2, "label": function, "prompts": 5, "replay": 0.25},
            "grpo": {"iterations": 2},
            "eval": {"every": 0, "samples": 0},
        }
        out = {key for key, section in sections.items() if section is None}
        merged = {key: own.get(key, {}) | (sections.get(key) or {}) for key in {**own, **sections}.keys() - out}
        merged["rewards"]["weights"] = [1.0]
        return tiny(**merged, **dict.fromkeys(out & {"sft", "grpo"}))

    return build


def rows_of(numbers):
    return {k: [{"iteration": k, "row": row} for row in range(n)] for k, n in enumerate(numbers)}


@pytest.mark.parametrize(
    ("new", "share", "old"),
    [
        (900, 0.1, 100),
        (1024, 0.1, 114),
        (9, 0.1, 1),
        (4, 0.1, 0),
        (5, 0.1, 1),
        (100, 0.5, 100),
        (3, 0.75, 9),
        (7, 0.0, 0),
    ],
)
def test_replay_is_the_share_of_the_whole(new, share, old):
    assert replay_size(new, share) == old


@pytest.mark.parametrize(
    ("history", "count", "shares"),
    [
        ([100, 100, 100], 30, [10, 10, 10]),
        ([100, 100, 100], 31, [10, 10, 11]),  # what is left over comes from the latest
        ([100, 4, 100], 30, [13, 4, 13]),
        ([2, 2, 2], 30, [2, 2, 2]),
        ([0, 8], 3, [0, 3]),
        ([8], 0, [0]),
    ],
)
def test_every_earlier_iteration_gives_equally_much(history, count, shares):
    found = replayed(rows_of(history), count, seed=1, number=len(history))
    assert [sum(row["iteration"] == k for row in found) for k in range(len(history))] == shares
    assert len({(row["iteration"], row["row"]) for row in found}) == len(found)
    assert replayed(rows_of(history), count, seed=1, number=len(history)) == found


def test_what_is_replayed_depends_on_the_seed_and_the_iteration():
    history = rows_of([50, 50])
    draws = [replayed(history, 10, seed=seed, number=number) for seed, number in ((1, 2), (2, 2), (1, 3))]
    assert all(draws[0] != other for other in draws[1:])


def weights(path: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in load_file(path / "model.safetensors").items()}


def fingerprint(result) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(result.run_dir.rglob("*")):
        name = str(path.relative_to(result.run_dir))
        if path.suffix == ".jsonl":
            found[name] = path.read_bytes()
        elif path.name == "model.safetensors" and "checkpoints" not in name:
            found[name] = weights(path.parent)
        elif path.name == "run.sqlite":
            with RunLog.open(path.parent, readonly=True) as log:
                found[name] = log.digest()
    return found


@pytest.fixture
def whole(recipe_of, quiet):
    return iterate(recipe_of(), quiet)


def test_the_whole_chain(whole):
    parts = whole.run_dir / "iterate"
    assert sorted(path.name for path in parts.iterdir()) == ["00", "01", "02", "sft"]
    assert AutoModelForSequenceClassification.from_pretrained(whole.reward_model).config.num_labels == 1
    # Rows: 5 prompts x 4, of the training prompts; 4 held-out prompts x 4, the same ones every time.
    held_out: list[set[str]] = []
    trained_on: set[str] = set()
    for number in range(3):
        rows = collect.stored_rows(parts / f"{number:02}" / "samples" / "rows.jsonl")
        probe = collect.stored_rows(parts / f"{number:02}" / "samples" / "held_out.jsonl")
        assert {row["iteration"] for row in [*rows, *probe]} == {number}
        assert {row["label"] for row in rows} <= {0.0, 1.0}
        assert len(rows) <= 20
        held_out.append({row["prompt"] for row in probe})
        trained_on |= {row["prompt"] for row in rows}
    assert held_out[0] == held_out[1] == held_out[2]
    assert len(held_out[0]) == 4
    assert not held_out[0] & trained_on
    # What the reward model was trained on: new rows first, then a quarter of the whole from before.
    for number in (1, 2):
        new = collect.stored_rows(parts / f"{number:02}" / "samples" / "rows.jsonl")
        used = collect.stored_rows(parts / f"{number:02}" / "training.jsonl")
        assert used[: len(new)] == new
        old = used[len(new) :]
        assert len(old) == replay_size(len(new), 0.25)
        assert all(row["iteration"] < number for row in old)
        metrics = whole.metrics[number]
        assert metrics["rows/replayed"] == len(old)
        assert metrics["rows/trained_on"] == len(used)
        assert metrics["rows/collected"] == len(new)
    assert {"policy/label", "policy/reward_after"} <= whole.metrics[0].keys()
    assert "policy/reward_before" not in whole.metrics[0]
    for number in (1, 2):
        metrics = whole.metrics[number]
        assert metrics["policy/overrated_before"] == metrics["policy/reward_before"] - metrics["policy/label"]
        assert {f"reward_model/accuracy_{of}_{when}" for of in ("new", "old") for when in ("before", "after")} <= set(
            metrics
        )
    # The reward model after iteration 1 on the policies before is that before iteration 2 on them, save the newest.
    with RunLog.open(whole.run_dir, readonly=True) as log:
        kinds = {(row.iteration, row.kind) for row in log.eval_rows() if row.stage == "iterate"}
        assert log.get_meta("status") == "finished"
    assert kinds == {(0, "policy_0"), *((1, f"policy_{k}") for k in (0, 1)), *((2, f"policy_{k}") for k in (0, 1, 2))}


def test_the_reference_is_the_policy_of_each_beginning_and_prompts_go_on(whole):
    parts = whole.run_dir / "iterate"
    begun, prompts = [], []
    for number, before in ((1, parts / "sft" / "models" / "sft"), (2, parts / "01" / "grpo" / "models" / "grpo")):
        with RunLog.open(parts / f"{number:02}" / "grpo", readonly=True) as log:
            begun.append(log.get_meta("digest/reference"))
            assert log.recipe()["model"]["path"] == str(before)
            judged_by = parts / f"{number - 1:02}" / "reward_model" / "models" / "reward_model"
            assert log.recipe()["rewards"]["functions"] == [f"reward_model:{judged_by}"]
            train = list(log.iter_completions("train"))
            prompts.append([{row.prompt_id for row in train if row.iteration == i} for i in (1, 2)])
            assert all(row.reward == row.parts["reward_model"] for row in train)
            # The first step's policy is its reference.
            for row in train:
                if row.iteration == 1 and row.old_logprobs is not None:
                    assert row.ref_logprobs == pytest.approx(row.old_logprobs, abs=1e-5)
    assert begun[0] != begun[1]
    seen = [ids for run in prompts for ids in run]
    assert len(set().union(*seen)) == sum(map(len, seen))  # no prompt twice, while there are others


class Killed(BaseException):
    """As a signal that nothing catches."""


# Where the chain is cut off, one after the other: a part has done its work, or is about to, and nobody hears of it.
PLACES = [
    (chain, "run", "after"),  # fine-tuning
    (chain, "collect", "after"),
    (reward_run, "save_reward_model", "before"),  # trained, not saved
    (chain, "judge_policies", "before"),
    (chain, "run", "after"),  # outer iteration 1
    (chain, "collect", "before"),
    (chain, "write_rows", "after"),
    (chain, "train_reward_model", "after"),
    (chain, "judge_policies", "after"),
    (chain, "run", "before"),  # outer iteration 2
    (chain, "train_reward_model", "before"),
]


@pytest.mark.slow
def test_wherever_it_is_killed_it_goes_on_to_the_same_bits(recipe_of, quiet, whole, monkeypatch):
    expected = fingerprint(whole)
    shutil.rmtree(whole.run_dir)
    for module, name, when in PLACES:
        original = getattr(module, name)

        def dies(*args, _original=original, _when=when, **kwargs):
            if _when == "after":
                _original(*args, **kwargs)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(module, name, dies)
            with pytest.raises(Killed):
                iterate(recipe_of(), quiet)
    again = iterate(recipe_of(), quiet)
    assert fingerprint(again) == expected
    assert again.metrics == whole.metrics
    assert iterate(recipe_of(), quiet).metrics == whole.metrics  # and once more, with nothing left to do


def test_killed_within_a_reward_and_within_the_writing_of_rows(recipe_of, quiet, whole, monkeypatch):
    expected = fingerprint(whole)
    shutil.rmtree(whole.run_dir)
    calls = 0

    original = collect.write_rows

    def dies(path, rows):
        nonlocal calls
        calls += 1
        if calls == 4:  # the rows of outer iteration 1, whose held-out ones are written
            raise Killed
        original(path, rows)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "write_rows", dies)
        with pytest.raises(Killed):
            iterate(recipe_of(), quiet)
    assert not (whole.run_dir / "iterate" / "01" / "samples" / "rows.jsonl").exists()
    shots = 0
    scored = learned_rewards.score_texts

    def fails(*args, **options):
        nonlocal shots
        shots += 1
        if shots == 4:  # the first is a try, when it is loaded
            raise Killed
        return scored(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(learned_rewards, "score_texts", fails)
        with pytest.raises(Killed):
            iterate(recipe_of(), quiet)
    assert fingerprint(iterate(recipe_of(), quiet)) == expected


def test_without_refresh_the_reward_model_stays(recipe_of, quiet):
    result = iterate(recipe_of(iterate={"refresh": False}), quiet)
    parts = result.run_dir / "iterate"
    assert result.reward_model == parts / "00" / "reward_model" / "models" / "reward_model"
    assert not (parts / "01" / "training.jsonl").exists()
    metrics = result.metrics[2]
    assert metrics["policy/reward_before"] == metrics["policy/reward_after"]
    assert metrics["rows/trained_on"] == 0


def test_without_replay_only_new_rows_are_learned(recipe_of, quiet):
    result = iterate(recipe_of(iterate={"replay": 0.0, "iterations": 1}), quiet)
    parts = result.run_dir / "iterate" / "01"
    assert (parts / "training.jsonl").read_bytes() == (parts / "samples" / "rows.jsonl").read_bytes()


def test_there_can_be_more_outer_iterations_later(recipe_of, quiet, whole):
    expected = fingerprint(whole)
    shutil.rmtree(whole.run_dir)
    iterate(recipe_of(iterate={"iterations": 1}), quiet)
    found = fingerprint(iterate(recipe_of(), quiet))
    assert found == expected


def test_completions_that_are_all_right(recipe_of, quiet, capsys):
    with pytest.raises(OncurveError, match=r"all have the label 1 \(right\).*nothing to learn"):
        iterate(recipe_of(function="right"), quiet)
    with pytest.raises(OncurveError, match=r"of 0 completions of the policy there is none"):
        iterate(recipe_of(name="silent", function="silent"), quiet)
    with pytest.raises(OncurveError, match=r"large gave 7 .* a label is a number from 0 to 1"):
        iterate(recipe_of(name="large", function="large"), quiet)


def test_a_refresh_with_nothing_to_learn_leaves_the_reward_model(recipe_of, quiet, monkeypatch):
    original = chain.collect

    def all_right_later(recipe, number, directory, terminal):
        original(recipe, number, directory, terminal)
        if number:
            rows = [row | {"label": 1.0} for row in collect.stored_rows(directory / "rows.jsonl")]
            collect.write_rows(directory / "rows.jsonl", rows)

    monkeypatch.setattr(chain, "collect", all_right_later)
    result = iterate(recipe_of(iterate={"iterations": 1}), quiet)
    assert result.reward_model.parts[-4] == "00"
    assert result.metrics[1]["rows/right"] == 1.0
    assert result.metrics[1]["rows/trained_on"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterate": None}, r"no \[iterate\] section"),
        ({"grpo": None}, r"no \[grpo\] section"),
        ({"reward_model": None}, r"no \[reward_model\] section"),
        ({"iterate": {"label": "accuracy"}}, r"iterate.label is 'accuracy', which is none of .*\(shape\)"),
        ({"reward_model": {"kind": "pairwise"}}, 'reward_model.kind is "pairwise"'),
        ({"reward_model": {"data": "x.jsonl"}}, "reward_model.data is 'x.jsonl'"),
        ({"reward_model": {"held_out": 0}}, "reward_model.held_out is 0"),
        ({"data": {"eval_size": 0}}, "data.eval_size is 0"),
        ({"rewards": {"clip": {"shape": [0.0, 0.5]}}}, "rewards.clip is about how functions are rewarded"),
        ({"grpo": {"advantage": "process"}}, 'grpo.advantage is "process"'),
        ({"iterate": {"prompts": 4000}}, "iterate.prompts is 4000, but there are only"),
    ],
)
def test_recipes_that_cannot_be_iterated(recipe_of, quiet, changes, message):
    with pytest.raises(OncurveError, match=message):
        iterate(recipe_of(**changes), quiet)


def test_a_reward_model_with_several_labels_is_refused(recipe_of, quiet, tmp_path):
    model = new_reward_model(tiny_llama(), tiny_tokenizer(), Form("pointwise"))
    save_reward_model(model, tmp_path / "rm")
    settings = json.loads((tmp_path / "rm" / "config.json").read_text())
    settings["id2label"] = {"0": "a", "1": "b", "2": "c"}
    settings["label2id"] = {"a": 0, "b": 1, "c": 2}
    (tmp_path / "rm" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(OncurveError, match="3 labels"):
        iterate(recipe_of(reward_model={"path": str(tmp_path / "rm")}), quiet)


def test_another_recipe_is_refused_in_the_same_directory(recipe_of, quiet):
    iterate(recipe_of(iterate={"iterations": 1}), quiet)
    with pytest.raises(OncurveError, match=r"iterate.replay: 0.25 there, 0.5 here"):
        iterate(recipe_of(iterate={"iterations": 1, "replay": 0.5}), quiet)


def test_the_command(recipe_of, tmp_path, capsys):
    path = tmp_path / "recipe.toml"
    path.write_text(dump_toml(recipe_of(iterate={"iterations": 1})))
    assert main(["iterate", str(path), "--dry-run", "--quiet"]) == 0
    assert main(["iterate", str(path), "--quiet"]) == 0
    assert main(["iterate", str(path), "--iterate.label=nothing"]) == 2
    assert "iterate.label is 'nothing'" in capsys.readouterr().err

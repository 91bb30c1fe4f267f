"""``oncurve label``: the policy's own samples, labelled by a rule, in the form that `oncurve reward-model` reads."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from oncurve.data.labelled import build_labelled
from oncurve.rewards import NamedReward
from oncurve.rewards.splitting import step_splitter
from oncurve.train.label import Labelling, label_command
from oncurve.train.labelling import Collected, collect_pairs, collect_points, collect_steps
from oncurve.train.monte_carlo import monte_carlo_labels
from oncurve.train.reward_run import train_reward_model
from oncurve.train.setup import prepare
from oncurve.types import Completion, Group, OncurveError, Prompt, SamplingParams


def group_of(*texts, raw="two"):
    return Group(Prompt(0, raw, "two", (6,)), tuple(Completion((7,), text, (0.0,), False) for text in texts))


def test_pairs_are_right_against_wrong_each_used_once():
    found = Collected()
    groups = [group_of("a", "b", "c", "d", "e"), group_of("a", "b"), group_of("x", "x", " ", "y")]
    collect_pairs(found, groups, [[0.0, 1.0, 0.0, 1.0, 0.0], [1.0, 1.0], [1.0, 1.0, 0.0, None]], "prompt")
    assert [(row["chosen"], row["rejected"]) for row in found.rows] == [("b", "e"), ("d", "c")]
    assert +found.dropped == Counter({"prompts without a pair": 2, "repeated": 1, "empty": 1, "unscored": 1})


def test_points_are_what_the_measure_says():
    found = Collected()
    messages = ({"role": "user", "content": "two"},)
    collect_points(found, [group_of("a", "b", "b", raw=messages)], [[1.0, 0.25, 0.25]], ("ask", "said"))
    assert found.rows == [
        {"ask": [{"role": "user", "content": "two"}], "said": "a", "label": 1.0},
        {"ask": [{"role": "user", "content": "two"}], "said": "b", "label": 0.25},
    ]
    with pytest.raises(OncurveError, match="a label lies between 0 and 1"):
        collect_points(found, [group_of("c")], [[1.5]], ("ask", "said"))


def test_steps_that_are_not_found_or_are_no_labels():
    found = Collected()
    collect_steps(
        found, [group_of("a\nb", "c", "d")], [[[(2, 1.0), (3, None)], [], [(1, None)]]], ("prompt", "completion")
    )
    assert found.rows == [{"prompt": "two", "completion": "a\nb", "steps": [[2, 1.0], [3, None]]}]
    assert found.dropped == Counter({"without steps": 2})
    with pytest.raises(OncurveError, match="is labelled -1"):
        collect_steps(found, [group_of("e")], [[[(1, -1.0)]]], ("prompt", "completion"))


@pytest.fixture
def recipe(tiny):
    return lambda **sections: tiny(**({"sft": None, "rewards": {"functions": ["format"], "weights": None}} | sections))


def even_length(completions, **_):
    """A rule that an untrained model keeps half of the time."""
    return [float(len(text) % 2 == 0) for text in completions]


def test_a_continuation_is_of_the_sampled_tokens_and_as_long_as_it_could_have_been(recipe, quiet):
    parts = prepare(recipe(sampling={"max_new_tokens": 8}), quiet, ())
    groups = parts.engine.sample(parts.train_prompts[:4], 3, SamplingParams(8), seed=1, iteration=0)
    seen: list[tuple[str, list[int]]] = []

    def even(completions, completion_ids, prompts, **_):
        seen.extend(zip(prompts, completion_ids, strict=True))
        return [float(len(ids) % 2 == 0) for ids in completion_ids]

    measure = NamedReward("even", 1.0, even)
    values = [[float(len(c.token_ids) % 2 == 0) for c in group.completions] for group in groups]
    split = step_splitter(" ")

    def labels(soft, rows=256):
        sampling = parts.recipe.sampling.model_copy(update={"max_rows": rows})
        changed = type(parts)(**{**vars(parts), "recipe": parts.recipe.model_copy(update={"sampling": sampling})})
        return monte_carlo_labels(changed, groups, values, measure, split, completions=4, soft=soft, seed=1)

    hard, soft = labels(False), labels(True)
    sampled = {(group.prompt.raw, c.token_ids) for group in groups for c in group.completions}
    for raw, ids in seen:
        assert len(ids) <= 8
        assert any(raw == prompt and tuple(ids[:1]) == known[:1] for prompt, known in sampled)
    steps = 0
    for p, group in enumerate(groups):
        for g, completion in enumerate(group.completions):
            assert [end for end, _ in hard[p][g]] == split(completion.text)
            for (_, whether), (_, share) in zip(hard[p][g], soft[p][g], strict=True):
                assert share in (0.0, 0.25, 0.5, 0.75, 1.0)
                assert whether == float(share > 0)
                steps += 1
            if hard[p][g]:
                assert hard[p][g][-1][1] == values[p][g]  # what came of the completion itself
    assert steps > 8
    assert labels(True, rows=4) == soft  # the draws do not depend on the batch


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("pairwise", {}),
        ("pointwise", {}),
        ("process", {}),
        ("process", {"monte_carlo": 2, "soft": True}),
        ("process", {"checker": "oncurve.tasks.letters:letters_steps"}),
    ],
)
def test_what_is_written_is_what_reward_model_reads(recipe, quiet, tmp_path, kind, how):
    out = tmp_path / "labels.jsonl"
    asked = recipe(
        rewards={"functions": [f"inline:{__file__}:even_length"], "weights": None},
        reward_model={"kind": kind, "steps": " ", "held_out": 3, "rows_per_step": 4, "data": str(out)},
    )
    found = label_command(asked, None, out, Labelling(prompts=20, samples=4, **how), quiet)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == found.rows
    tokenizer = prepare(asked, quiet, ()).tokenizer
    assert len(build_labelled(rows, tokenizer, asked.data, kind, limit=None).rows) == len(rows) > 3
    again = label_command(asked, None, out, Labelling(prompts=20, samples=4, **how), quiet)
    assert again.rows == rows
    result = train_reward_model(asked, quiet)
    assert result.after["accuracy"].n == 3


def test_a_file_that_is_there_stays_until_all_is_done(recipe, quiet, tmp_path, monkeypatch):
    out = tmp_path / "labels.jsonl"
    out.write_text("old\n")
    with pytest.raises(OncurveError, match=r"there is nothing to write: .*prompts without a pair"):
        label_command(recipe(), None, out, Labelling("pairwise", prompts=3, samples=2), quiet)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("oncurve.train.label.collect_points", interrupted)
        with pytest.raises(KeyboardInterrupt):
            label_command(recipe(), None, out, Labelling("pointwise", prompts=3, samples=2), quiet)
    assert out.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"prompts": 0}, r"--prompts is 0; it must be a number from 1"),
        ({"kind": "pairwise", "samples": 1}, r"--samples is 1; it must be a number from 2 to 4096"),
        ({"samples": 5000}, r"--samples is 5000"),
        ({"monte_carlo": -1, "kind": "process"}, r"--monte-carlo is -1"),
        ({"kind": "pairwise", "monte_carlo": 4}, r"label steps, and the kind is pairwise"),
        ({"kind": "process", "monte_carlo": 4, "checker": "x"}, "two ways to label steps"),
        ({"kind": "process", "soft": True}, "--soft is about --monte-carlo"),
        ({"kind": "process", "checker": "format"}, r"'format' gives whole completions a number, and no steps"),
        ({"kind": "process", "checker": "nowhere"}, r"there is no reward 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_said(recipe, quiet, tmp_path, how, said):
    with pytest.raises(OncurveError, match=said):
        label_command(recipe(), None, tmp_path / "a.jsonl", Labelling(**({"prompts": 2, "samples": 2} | how)), quiet)


def test_the_name_of_the_file(recipe, quiet, tmp_path):
    (tmp_path / "dir.jsonl").mkdir()
    for name, said in (("a.csv", "ends in .jsonl"), ("dir.jsonl", "is a directory")):
        with pytest.raises(OncurveError, match=said):
            label_command(recipe(), None, tmp_path / name, Labelling(prompts=2), quiet)


def test_nothing_says_which_steps_are_right(recipe, quiet, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n} apples"}) + "\n" for n in range(20)))
    asked = recipe(data={"train": str(rows), "eval_size": 2, "size": 20})
    with pytest.raises(OncurveError, match=r"nothing says which steps are right .*--checker FUNC or --monte-carlo N"):
        label_command(asked, None, tmp_path / "a.jsonl", Labelling("process", prompts=2, samples=2), quiet)

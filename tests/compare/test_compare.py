"""Several methods on one task: what is refused, what is run once, and that the numbers in the table are the runs'."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncurve.compare import read_plan, run_all, write_report
from oncurve.recipe import dump_toml
from oncurve.runlog import RunLog
from oncurve.types import OncurveError


@pytest.fixture
def plan(tmp_path: Path, tiny):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(dump_toml(tiny(grpo={"iterations": 2})))

    def build(methods: str, seeds: str = "[0]", more: str = "") -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(f'recipe = "{recipe}"\nseeds = {seeds}\n{more}\n{methods}')
        return path

    return build


TWO = '[methods.plain]\n[methods.dr]\n"grpo.preset" = "dr-grpo"\n'


@pytest.mark.parametrize(
    ("methods", "seeds", "more", "message"),
    [
        (TWO, "[]", "", r"plan\.toml: seeds = \[\]: must be a list of different whole numbers"),
        (TWO, "[0, 0]", "", "different whole numbers"),
        (TWO, "[-1]", "", "from 0 on"),
        (TWO, "[0]", "sedes = 1", "sedes: no such key; there are: methods, recipe, seeds"),
        ("", "[0]", "", "methods is missing"),
        ('[methods]\n"a b" = {}', "[0]", "", r"methods\.a b: the name becomes a directory"),
        ("[methods.a]\ngrpo.preset = 'ppo'", "[0]", "", r"methods\.a: must be options, with their whole names"),
        ('[methods.a]\n"grpo.gruop_size" = 2', "[0]", "", r"no such option; did you mean --grpo\.group_size"),
        (
            '[methods.a]\n[methods.b]\n"grpo.iterations" = 3',
            "[0]",
            "",
            "do not sample the same number of completions .*: a [0-9]+, b [0-9]+; give each the same budget",
        ),
    ],
)
def test_refused(plan, methods, seeds, more, message):
    with pytest.raises(OncurveError, match=message):
        read_plan(plan(methods, seeds, more))


@pytest.mark.parametrize("text", ["recipe = ", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text):
    path = tmp_path / "plan.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OncurveError, match=r"plan\.toml: "):
        read_plan(path)


def test_methods_begin_from_one_fine_tuned_model_and_are_not_run_twice(plan, tmp_path: Path):
    chosen = read_plan(plan(TWO))
    said: list[str] = []
    out = tmp_path / "out"
    runs = run_all(chosen, out, said.append)
    assert [(run.method, run.seed) for run in runs] == [("plain", 0), ("dr", 0)]
    assert [line for line in said if line.startswith("fine-tuning")] == [
        "fine-tuning with seed 0, once for all methods"
    ]
    reference = set()
    for run in runs:
        with RunLog.open(run.path, readonly=True) as log:
            reference.add(log.get_meta("digest/reference"))
        assert run.cpu_seconds > 0
        assert run.peak_gib > 0.05
    assert len(reference) == 1
    again = run_all(chosen, out, said.append)
    assert again == runs
    page = write_report(chosen, runs, out)
    text = (out / "compare.md").read_text()
    with RunLog.open(runs[0].path, readonly=True) as log:
        last = [row for row in log.eval_rows() if row.iteration == 2 and (row.kind, row.name) == ("greedy", "accuracy")]
        sampled = sum(len(log.outcomes("train", "grpo", i)) for i in (1, 2))
    assert f"{last[0].value:.3f}" in text
    assert f"| completions sampled | {sampled:,} | {sampled:,} |" in text
    assert "<svg" in page.read_text()


def test_a_run_that_fails_ends_the_comparison_with_its_words(plan, tmp_path: Path):
    chosen = read_plan(plan('[methods.a]\n"rewards.functions" = ["nowhere.py:none"]\n"rewards.weights" = [1.0]\n'))
    with pytest.raises(OncurveError, match=r"(?s)oncurve grpo .* ended with 2:.*nowhere\.py"):
        run_all(chosen, tmp_path / "out", lambda _: None)

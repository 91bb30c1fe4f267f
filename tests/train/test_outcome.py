"""What stands at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncurve.terminal import Terminal
from oncurve.train import run, show_result


@pytest.fixture
def graded(tmp_path: Path) -> dict:
    file = tmp_path / "graded.py"
    file.write_text("def graded(completion_ids, **_):\n    return [sum(ids) % 7 / 7 for ids in completion_ids]\n")
    return {"functions": ["accuracy", f"{file}:graded"], "weights": None}


def test_before_and_after_stand_side_by_side(tiny, quiet, graded, capsys):
    result = run(tiny(sft=None, rewards=graded, grpo={"iterations": 2}), terminal=quiet)
    show_result(result, Terminal())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "held-out, with 95% intervals"
    assert lines[1].split() == ["before", "GRPO", "after", "GRPO", "prompts"]
    assert [" ".join(line.split()[:2]) for line in lines[2:]] == [
        "greedy accuracy",
        "greedy graded",
        "sampled accuracy",
        "sampled graded",
        "sampled pass@1",
        "sampled pass@2",
    ]
    before, after = result.before["greedy"]["graded"], result.after["greedy"]["graded"]
    assert lines[3].split() == [
        *("greedy", "graded"),
        *(f"{before.value:.3f}", f"({before.low:.3f}", "to", f"{before.high:.3f})"),
        *(f"{after.value:.3f}", f"({after.low:.3f}", "to", f"{after.high:.3f})"),
        "6",
    ]


def test_without_grpo_or_evaluation_there_is_no_table(tiny, quiet, graded, capsys):
    for number, sections in enumerate(({"grpo": None}, {"sft": None, "data": {"eval_size": 0}})):
        show_result(run(tiny(run={"name": f"run{number}"}, rewards=graded, **sections), terminal=quiet), Terminal())
    assert capsys.readouterr().out == ""


def test_a_run_that_changed_nothing_says_so(tiny, quiet, tmp_path, capsys):
    file = tmp_path / "flat.py"
    file.write_text("def flat(completions, **_):\n    return [0.5] * len(completions)\n")
    rewards = {"functions": [f"{file}:flat"], "weights": None}
    result = run(tiny(sft=None, rewards=rewards, data={"eval_size": 0}, grpo={"iterations": 2}), terminal=quiet)
    show_result(result, Terminal())
    assert capsys.readouterr().out == "warning: GRPO has changed nothing: every update of every iteration was skipped\n"

"""A run that has nothing to learn from says so at once."""

from __future__ import annotations

from oncurve.terminal import Terminal
from oncurve.train import run


def test_a_first_iteration_without_any_spread_is_told(tiny, tmp_path, capsys):
    file = tmp_path / "flat.py"
    file.write_text("def flat(completions, **_):\n    return [0.5] * len(completions)\n")
    recipe = tiny(grpo={"iterations": 2}, rewards={"functions": [f"{file}:flat"], "weights": None}, eval={"samples": 0})
    run(recipe, terminal=Terminal())
    said = capsys.readouterr().out
    assert said.count("nothing to learn from (mean reward 0.5)") == 1


def test_evaluating_all_wrong_is_no_certainty():
    from oncurve.train.evaluate import estimate

    found = estimate("accuracy", [[0.0, 0.0]] * 8)
    assert (found.value, found.low) == (0.0, 0.0)
    assert 0.32 < found.high < 0.33

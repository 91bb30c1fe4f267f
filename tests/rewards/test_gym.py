"""The scorers of reasoning-gym, asked where they can do no harm. What is right follows from the rules of the tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from oncurve.data.readers import read_rows
from oncurve.rewards import gym
from oncurve.rewards.gym import evaluates, reasoning_gym_reward
from oncurve.rewards.pool import Pool
from oncurve.rewards.sandbox.levels import Way
from oncurve.types import OncurveError
from sandboxes import lacking

EVALUATING = (
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
    "simple_integration", "spiral_matrix", "string_insertion",
)  # fmt: skip
"""Those of 0.1.25 that were seen to run an answer that is code."""


@pytest.fixture(autouse=True)
def held() -> None:
    pytest.importorskip("reasoning_gym")
    reason = lacking(Way("landlock", None)) if sys.platform == "linux" else "scorers are held in on Linux only"
    if reason:
        pytest.skip(reason)


def said(rows: list[dict[str, Any]], answers: list[str]) -> tuple[list[float | None], list[Any], dict[str, float]]:
    """The scores of ``answers`` in an answer block, what stands beside them, and what is counted."""
    status: dict[str, list[Any]] = {}
    counts: dict[str, float] = {}
    scores = reasoning_gym_reward(
        [f"<answer>{answer}</answer>" for answer in answers],
        prompts=[row["prompt"] for row in rows],
        log_extra=status.__setitem__,
        log_metric=counts.__setitem__,
        **{name: [row[name] for row in rows] for name in ("answer", "metadata", "reasoning_gym")},
    )
    return scores, status["reasoning_gym/status"], counts


def rows_of(name: str, size: int = 2, **options: Any) -> list[dict[str, Any]]:
    return read_rows(f"reasoning_gym:{name}", size=size, seed=3, options=options)


@pytest.mark.parametrize(
    "name",
    ["chain_sum", "countdown", "spell_backward", "coin_flip", "prime_factorization", "knights_knaves", "n_queens"],
)
def test_a_newline_costs_nothing_and_junk_gets_next_to_nothing(name: str) -> None:
    rows = rows_of(name)
    assert said(rows, [f"\n{row['answer']}\n " for row in rows])[0] == [1.0, 1.0]
    assert all(score is not None and score < 0.1 for score in said(rows, ["junk {[( 7", "perhaps"])[0])


def test_a_scorer_that_raises_has_said_0_and_is_counted() -> None:
    """prime_factorization raises ValueError on what is no number."""
    scores, status, counts = said(rows_of("prime_factorization"), ["two times three", "?"])
    assert (scores, status) == ([0.0, 0.0], ["error", "error"])
    assert counts["reasoning_gym/error"] == 2.0


def test_numbers_that_are_not_in_the_list_make_no_countdown() -> None:
    rows = rows_of("countdown", 3)
    targets = [str(row["metadata"]["target"]) for row in rows]
    assert all(score is not None and score < 0.1 for score in said(rows, targets)[0])
    assert all(score is not None and score < 0.1 for score in said(rows, [f"{target} + 0" for target in targets])[0])


def test_a_scorer_that_takes_nonsense_for_right_is_not_believed() -> None:
    scores, status, counts = said(rows_of("game_of_life_halting"), ["junk", "True"])
    assert (scores, status) == ([None, None], ["not believed", "not believed"])
    assert counts["reasoning_gym/not_believed"] == 2.0


def test_options_reach_the_scorer() -> None:
    rows = rows_of("puzzle24", 2, max_value=6)
    assert said(rows, [row["answer"] for row in rows])[0] == [1.0, 1.0]


def test_no_answer_is_0_and_a_row_of_another_data_set_is_unscored() -> None:
    rows = rows_of("chain_sum")
    arguments: dict[str, Any] = {name: [row[name] for row in rows] for name in ("answer", "metadata", "reasoning_gym")}
    arguments["reasoning_gym"][1] = None
    prompts = [row["prompt"] for row in rows]
    right = rows[0]["answer"]
    assert reasoning_gym_reward([f"It is {right}.", "4"], prompts=prompts, **arguments) == [0.0, None]
    assert reasoning_gym_reward([f"\\boxed{{{right}}}", "4"], prompts=prompts, **arguments) == [1.0, None]
    chat = [[{"role": "assistant", "content": f"#### {right}"}], ""]
    assert reasoning_gym_reward(chat, prompts=prompts, **arguments) == [1.0, None]
    assert said(rows, ["9" * 30_000, "9" * 30_000])[0] == [0.0, 0.0]


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_that_is_code_does_nothing(name: str, tmp_path: Path) -> None:
    assert evaluates(name)
    (row,) = rows_of(name, 1)
    marker = tmp_path / "marker"
    numbers = " ".join(str(n) for n in row["metadata"].get("numbers", ()))
    attacks = [
        f"__import__('os').system('touch {marker}')",
        f"[__import__('os').system('touch {marker}')]",
        f"{numbers} __import__('pathlib').Path('{marker}').touch()",
        f"\\pi + __import__('os').mkdir('{marker}')",
    ]
    scores, _, _ = said([row] * len(attacks), attacks)
    assert all(score is not None and score < 0.5 for score in scores)
    assert not marker.exists()


def test_a_poisoned_answer_forges_nothing_that_follows() -> None:
    """One answer replaces the scorer itself; the wrong one after it is wrong, and the right one right."""
    (row,) = rows_of("string_insertion", 1)
    poison = (
        "[setattr(__import__('reasoning_gym.algorithmic.string_insertion', fromlist=['x']).StringInsertionDataset,"
        " 'score_answer', lambda *a: 1.0)]"
    )
    said([row], [poison])
    scores, _, _ = said([row, row, row], ["WRONG", "ZZZ", row["answer"]])
    assert scores[0] is not None
    assert scores[0] < 0.5
    assert scores[1] is not None
    assert scores[1] < 0.5
    assert scores[2] == 1.0


def test_what_takes_for_ever_costs_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool("oncurve.rewards.gym_scorer:score", seconds=2.0, memory_mb=2048, hold="yes", fresh=True)
    monkeypatch.setattr(gym, "_pool", lambda fresh: pool)
    rows = rows_of("countdown", 2)
    with pool:
        scores, status, _ = said(rows, ["9**9**9**9**9", rows[1]["answer"]])
    assert scores == [0.0, 1.0]
    assert status[0] in ("timeout", "memory", "error")


def test_what_evaluates_is_read_from_its_source() -> None:
    assert all(evaluates(name) for name in EVALUATING)
    assert not any(evaluates(name) for name in ("chain_sum", "spell_backward", "sudoku", "arc_agi", "word_ladder"))
    assert evaluates("a_task_that_nobody_knows")


def test_without_the_package_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gym._sources.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    try:
        with pytest.raises(OncurveError, match=r"pip install 'oncurve\[gym\]'"):
            evaluates("chain_sum")
    finally:
        gym._sources.cache_clear()

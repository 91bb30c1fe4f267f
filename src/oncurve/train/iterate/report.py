"""The table at the end of `oncurve iterate`."""

from __future__ import annotations

import math

from oncurve.terminal import Terminal
from oncurve.train.iterate.chain import IterateResult

COLUMNS = (
    ("right", "policy/label"),
    ("reward before", "policy/reward_before"),
    ("reward after", "policy/reward_after"),
    ("accuracy, new: before", "reward_model/accuracy_new_before"),
    ("after", "reward_model/accuracy_new_after"),
    ("accuracy, old: before", "reward_model/accuracy_old_before"),
    ("after", "reward_model/accuracy_old_after"),
)


def show_iterate_result(result: IterateResult, terminal: Terminal) -> None:
    """A row for each outer iteration, and where things are. Before and after are the reward model's refresh."""
    terminal.table(
        "held-out prompts, by outer iteration; before and after the reward model's refresh",
        ["", *(title for title, _ in COLUMNS)],
        [
            [number, *(_shown(metrics.get(name, math.nan)) for _, name in COLUMNS)]
            for number, metrics in result.metrics.items()
        ],
    )
    terminal.say(f"policy        {result.policy} (a transformers directory)")
    terminal.say(f"reward model  {result.reward_model} (for AutoModelForSequenceClassification)")


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"

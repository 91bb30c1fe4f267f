"""Collecting: completions of the present policy, labelled by a rule, as rows that a reward model learns from.

The rows of every outer iteration stay on disk in a file of their own, ``NN/samples/rows.jsonl``: together these files
are the reservoir that replay draws from. ``held_out.jsonl`` beside it has rows about held-out prompts, always the same
ones, on which no model is ever trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncurve.config import Recipe
from oncurve.data.order import permutation
from oncurve.rewards import score
from oncurve.runlog import replacing
from oncurve.terminal import Terminal
from oncurve.train.setup import Parts, prepare
from oncurve.train.step import check_sampled
from oncurve.types import OncurveError, Prompt, SamplingParams

# Streams of random numbers apart from those of training and of evaluation.
SEED_OFFSET = 1 << 41
HELD_OUT_SEED_OFFSET = 1 << 42

ROWS, HELD_OUT = "rows.jsonl", "held_out.jsonl"

LabelledRow = dict[str, Any]
"""``prompt``, ``completion``, ``label`` and the outer ``iteration`` it comes from; the first two under the names that
`data.prompt_column` and `data.completion_column` have."""


def collect(recipe: Recipe, number: int, directory: Path, terminal: Terminal) -> None:
    """Sample from `model.path` of ``recipe`` and write the rows of outer iteration ``number`` into ``directory``.

    ``rows.jsonl`` is written last: where it is, all is. Raises OncurveError for a label that is not from 0 to 1, and
    if there are fewer training prompts than `iterate.prompts`.
    """
    assert recipe.iterate is not None
    assert recipe.reward_model is not None
    parts = prepare(recipe, terminal, ())
    wanted = recipe.iterate.prompts
    if wanted > len(parts.train_prompts):
        raise OncurveError(
            f"iterate.prompts is {wanted}, but there are only {len(parts.train_prompts)} training prompts; lower it or "
            "give more"
        )
    order = permutation(len(parts.train_prompts), f"iterate/{recipe.run.seed}/{number}")
    chosen = [parts.train_prompts[index] for index in order[:wanted]]
    held_out = parts.eval_prompts[: recipe.reward_model.held_out]
    write_rows(directory / HELD_OUT, _labelled(parts, held_out, number, HELD_OUT_SEED_OFFSET))
    rows = _labelled(parts, chosen, number, SEED_OFFSET)
    write_rows(directory / ROWS, rows)
    missing = wanted * _group_size(recipe) - len(rows)
    dropped = f" ({missing} were empty or could not be scored and are left out)" if missing else ""
    terminal.say(f"{len(rows)} completions labelled by {recipe.iterate.label}, {share_right(rows):.3f} right{dropped}")


def _labelled(parts: Parts, prompts: Sequence[Prompt], number: int, offset: int) -> list[LabelledRow]:
    recipe = parts.recipe
    assert recipe.iterate is not None
    params = SamplingParams(recipe.sampling.max_new_tokens, recipe.sampling.temperature)
    seed, size = recipe.run.seed + offset, _group_size(recipe)
    groups = parts.engine.sample(list(prompts), size, params, seed=seed, iteration=number)
    check_sampled(groups)
    found = score(groups, parts.measures, trainer_state={"iteration": number}, combination=parts.combination)
    rows: list[LabelledRow] = []
    for group, labels in zip(groups, found.parts[recipe.iterate.label], strict=True):
        for completion, label in zip(group.completions, labels, strict=True):
            if label is None or not completion.text.strip():
                continue
            if not 0.0 <= label <= 1.0:
                raise OncurveError(
                    f"iterate.label: {recipe.iterate.label} gave {label:g} for a completion of prompt "
                    f"{group.prompt.id}; a label is a number from 0 to 1"
                )
            raw = group.prompt.raw
            rows.append(
                {
                    recipe.data.prompt_column: raw if isinstance(raw, str) else list(raw),
                    recipe.data.completion_column: completion.text,
                    "label": label,
                    "iteration": number,
                }
            )
    return rows


def _group_size(recipe: Recipe) -> int:
    assert recipe.grpo is not None
    return recipe.grpo.group_size


def share_right(rows: Sequence[LabelledRow]) -> float:
    """The mean label; nan without rows."""
    return math.fsum(row["label"] for row in rows) / len(rows) if rows else math.nan


def all_alike(rows: Sequence[LabelledRow]) -> bool:
    """Whether nothing tells a right one from a wrong one here: no rows, or all with the same label."""
    return len({row["label"] for row in rows}) < 2


def write_rows(path: Path, rows: Sequence[LabelledRow]) -> None:
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def stored_rows(path: Path) -> list[LabelledRow]:
    """Raises OncurveError if the file, which an earlier part of the command wrote, is not there any more or damaged."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise OncurveError(f"{path}, which this run wrote, cannot be read ({error}); put it back") from error

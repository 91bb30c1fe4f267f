"""Which completions a report shows: held-out prompts before and after, and whole training groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oncurve.board.charts import rounded
from oncurve.board.text import shown
from oncurve.runlog import CompletionRow, Outcome, RunLog
from oncurve.runlog.listing import main_measure

MAX_PROMPTS = 8
MAX_SAMPLED = 3
GROUPS_PER_ITERATION = 2
MAX_GROUP_ROWS = 16

# How many of the held-out prompts shown are of each kind, if there are as many; the rest is filled up in this order.
_SHARES = {"mended": 3, "wrong": 2, "lost": 1, "right": 2, "rose": 3, "same": 3, "fell": 2}


def held_out(log: RunLog) -> dict[str, Any] | None:
    """Before and after for the same held-out prompts, how many of each outcome there are, and a few to read."""
    iterations = log.iterations("eval_greedy", "grpo")
    if not iterations:
        return None
    first, last = iterations[0], iterations[-1]
    measure = main_measure([row for row in log.eval_rows() if row.kind == "greedy"])
    before = _marks(log.outcomes("eval_greedy", "grpo", first), measure)
    after = _marks(log.outcomes("eval_greedy", "grpo", last), measure) if last != first else {}
    kinds = _kinds(before, after)
    chosen = _chosen(kinds) if kinds else sorted(before)[:MAX_PROMPTS]
    greedy = {i: _by_prompt(log.completion_rows("eval_greedy", "grpo", i, prompt_ids=chosen)) for i in (first, last)}
    sampled = {i: _by_prompt(log.completion_rows("eval_sampled", "grpo", i, prompt_ids=chosen)) for i in (first, last)}
    return {
        "measure": measure,
        "counts": {kind: len(ids) for kind, ids in kinds.items()},
        "labels": ["before GRPO" if first == 0 else f"iteration {first}"]
        + ([f"after iteration {last}"] if last != first else []),
        "prompts": [
            {
                "id": prompt_id,
                "prompt": shown(greedy[first][prompt_id][0].prompt),
                "outcome": next((kind for kind, ids in kinds.items() if prompt_id in ids), None),
                "sides": [
                    {
                        "greedy": [_completion(row) for row in greedy[i].get(prompt_id, [])[:1]],
                        "sampled": [_completion(row) for row in sampled[i].get(prompt_id, [])[:MAX_SAMPLED]],
                    }
                    for i in dict.fromkeys((first, last))
                ],
            }
            for prompt_id in chosen
            if prompt_id in greedy[first]
        ],
    }


def training_groups(log: RunLog) -> list[dict[str, Any]]:
    """The first groups with any spread of the first, the middle and the last iteration, with all that GRPO saw."""
    iterations = log.iterations("train", "grpo")
    if not iterations:
        return []
    picked = dict.fromkeys((iterations[0], iterations[len(iterations) // 2], iterations[-1]))
    return [_iteration(log, iteration) for iteration in picked]


def _iteration(log: RunLog, iteration: int) -> dict[str, Any]:
    groups: dict[int, list[Outcome]] = {}
    for outcome in log.outcomes("train", "grpo", iteration):
        groups.setdefault(outcome.prompt_id, []).append(outcome)
    teaching = [prompt_id for prompt_id, rows in groups.items() if any(row.advantage for row in rows)]
    chosen = (teaching or list(groups))[:GROUPS_PER_ITERATION]
    rows = _by_prompt(log.completion_rows("train", "grpo", iteration, prompt_ids=chosen))
    return {
        "iteration": iteration,
        "groups": len(groups),
        "teaching": len(teaching),
        "shown": [_group(rows[prompt_id]) for prompt_id in chosen],
    }


def _group(rows: list[CompletionRow]) -> dict[str, Any]:
    rewards = [row.reward for row in rows if row.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else math.nan
    # Best first: one sees at once what was pushed up and what down. Of a large group, both ends.
    alike: dict[tuple[Any, ...], list[CompletionRow]] = {}
    for row in sorted(rows, key=lambda row: (-(row.advantage or 0.0), row.sample)):
        alike.setdefault((row.completion, row.reward, row.advantage, row.truncated), []).append(row)
    order = list(alike.values())
    half = MAX_GROUP_ROWS // 2
    seen = order if len(order) <= MAX_GROUP_ROWS else order[:half] + order[-half:]
    return {
        "id": rows[0].prompt_id,
        "prompt": shown(rows[0].prompt),
        "mean": rounded(mean),
        "spread": rounded(_std(rewards)),
        "hidden": len(rows) - sum(map(len, seen)),
        "largest": rounded(max(abs(row.advantage or 0.0) for row in rows)),
        "completions": [_completion(*same) for same in seen],
    }


def _completion(row: CompletionRow, *alike: CompletionRow) -> dict[str, Any]:
    """``row``, and the numbers of those that say and earned the same."""
    return {
        "samples": [row.sample, *(other.sample for other in alike)],
        "text": shown(row.completion),
        "reward": None if row.reward is None else rounded(row.reward),
        "advantage": None if row.advantage is None else rounded(row.advantage),
        "parts": [[name, None if value is None else rounded(value)] for name, value in row.parts.items()],
        "tokens": len(row.token_ids),
        "truncated": row.truncated,
    }


def _marks(outcomes: Sequence[Outcome], measure: str | None) -> dict[int, float]:
    """Prompt -> its greedy completion's mark; unscored ones are left out."""
    values = {o.prompt_id: o.parts.get(measure, o.reward) if measure else o.reward for o in outcomes}
    return {prompt_id: value for prompt_id, value in values.items() if value is not None}


def _kinds(before: dict[int, float], after: dict[int, float]) -> dict[str, list[int]]:
    """Outcome -> prompts. ``mended, lost, right, wrong`` where a mark is 0 or 1, else ``rose, same, fell``."""
    binary = {*before.values(), *after.values()} <= {0.0, 1.0}
    found: dict[str, list[int]] = {}
    for prompt_id in sorted(before.keys() & after.keys()):
        was, is_now = before[prompt_id], after[prompt_id]
        if binary:
            kind = {(0, 1): "mended", (1, 0): "lost", (1, 1): "right", (0, 0): "wrong"}[int(was), int(is_now)]
        else:
            kind = "rose" if is_now > was else "fell" if is_now < was else "same"
        found.setdefault(kind, []).append(prompt_id)
    return {kind: found[kind] for kind in _SHARES if kind in found}


def _chosen(kinds: dict[str, list[int]]) -> list[int]:
    """Up to MAX_PROMPTS prompts: some of every outcome, evenly from each, not the best."""
    counts = {kind: min(_SHARES[kind], len(ids)) for kind, ids in kinds.items()}
    for kind, ids in kinds.items():
        counts[kind] += min(MAX_PROMPTS - sum(counts.values()), len(ids) - counts[kind])
    return [ids[i * len(ids) // counts[kind]] for kind, ids in kinds.items() for i in range(counts[kind])]


def _by_prompt(rows: Sequence[CompletionRow]) -> dict[int, list[CompletionRow]]:
    found: dict[int, list[CompletionRow]] = {}
    for row in rows:
        found.setdefault(row.prompt_id, []).append(row)
    return found


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))

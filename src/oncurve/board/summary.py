"""The head of a report: how far the run came, what it reached, and what stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oncurve.board.charts import ends, rounded
from oncurve.runlog import EvalRow, RunLog
from oncurve.runlog.listing import main_measure

Recipe = Mapping[str, Any]


def summary(log: RunLog, evals: Sequence[EvalRow]) -> dict[str, Any]:
    """Everything above the curves, ready for JSON."""
    recipe: Recipe = log.recipe()
    return {
        "created": log.get_meta("created"),
        "oncurve": log.get_meta("oncurve"),
        **_progress(log, recipe),
        "estimates": estimates(evals),
        "findings": findings(log, evals),
        "facts": _facts(log),
        "recipe": _recipe_rows(recipe),
    }


def estimates(evals: Sequence[EvalRow]) -> list[dict[str, Any]]:
    """Every held-out measure at the first and the last evaluation of its kind, the main one first."""
    rows: list[dict[str, Any]] = []
    for kind in ("greedy", "sampled"):
        mine = [row for row in evals if row.kind == kind and row.stage == "grpo" and not row.name.startswith("time/")]
        if not mine:
            continue
        first, last = mine[0].iteration, mine[-1].iteration
        main = "pass@1" if kind == "sampled" and any(row.name == "pass@1" for row in mine) else main_measure(mine)
        names = sorted(dict.fromkeys(row.name for row in mine), key=lambda name: name != main)
        for name in names:
            at = {row.iteration: row for row in mine if row.name == name}
            rows.append(
                {
                    "kind": kind,
                    "name": name,
                    "main": name == main,
                    "labels": [_label(first), *([_label(last)] if last != first else [])],
                    "before": _interval(at.get(first)),
                    "after": _interval(at.get(last)) if last != first else None,
                }
            )
    return rows


def findings(log: RunLog, evals: Sequence[EvalRow]) -> list[dict[str, str]]:
    """Plain sentences, each from one simple rule, with its tone: ``good``, ``bad`` or ``note``."""
    found = [_verdict(row) for row in estimates(evals) if row["main"] and row["before"] and row["after"]]
    found += _reward_finding(log) or _sft_finding(log)
    if (truncated := _ends(log, "completions/clipped_ratio")) and truncated[1] > 0.1:
        found.append(_finding("bad", f"{_percent(truncated[1])} of the last completions were cut at the token limit."))
    if (idle := _ends(log, "frac_reward_zero_std")) and idle[1] > 0.5:
        found.append(
            _finding("note", f"{_percent(idle[1])} of the last groups had equal rewards and taught nothing more.")
        )
    if unscored := _sum(log, "unscored", "grpo"):
        found.append(_finding("bad", f"{unscored:,.0f} completions could not be scored; they were left out."))
    if skipped := _sum(log, "skipped_updates", "grpo"):
        found.append(_finding("note", f"{skipped:,.0f} optimizer steps were skipped: every advantage in them was 0."))
    return found


def _verdict(row: Mapping[str, Any]) -> dict[str, str]:
    before, after = row["before"], row["after"]
    what = f"Held-out {row['name']}, {row['kind']}"
    change = f"{_number(before['value'])} to {_number(after['value'])}"
    if None in (*before.values(), *after.values()):
        return _finding("note", f"{what}: {change}; there is no interval to judge it by.")
    if after["low"] > before["high"]:
        return _finding("good", f"{what} rose from {change}: the 95% intervals do not overlap.")
    if after["high"] < before["low"]:
        return _finding("bad", f"{what} fell from {change}: the 95% intervals do not overlap.")
    return _finding("note", f"{what} went from {change}: the 95% intervals overlap, so this may be chance.")


def _reward_finding(log: RunLog) -> list[dict[str, str]]:
    reward = _ends(log, "reward")
    if reward is None or len(log.series("reward", "grpo", last=2)) < 2:
        return []
    parts = {
        name.removeprefix("rewards/").removesuffix("/mean"): at[1] - at[0]
        for name in log.metric_names("grpo")
        if name.startswith("rewards/") and name.endswith("/mean") and (at := _ends(log, name)) is not None
    }
    listed = ", ".join(
        f"{name} {change:+.2f}" for name, change in sorted(parts.items(), key=lambda item: -abs(item[1]))
    )
    text = f"Training reward went from {_number(reward[0])} to {_number(reward[1])} (first and last tenth)"
    return [_finding("note", f"{text}; its parts, unweighted: {listed}." if listed else f"{text}.")]


def _sft_finding(log: RunLog) -> list[dict[str, str]]:
    loss = ends([value for _, _, value in log.series("loss", "sft")])
    if loss is None or log.last_position("grpo") is not None:
        return []
    text = f"SFT loss went from {_number(loss[0])} to {_number(loss[1])} nats per token (first and last tenth)."
    return [_finding("note", text)]


def _progress(log: RunLog, recipe: Recipe) -> dict[str, Any]:
    status = log.get_meta("status") or "unknown"
    sft, grpo = log.last_position("sft"), log.last_position("grpo")
    planned = _whole(_get(recipe, "grpo", "iterations"))
    if grpo is not None:
        at = f"GRPO iteration {grpo[0]}" + (f" of {planned}" if planned else "")
        done = planned is None or grpo[0] >= planned
    elif sft is not None:
        of = log.get_meta("sft_steps") or _get(recipe, "sft", "steps")
        at = f"SFT step {sft[1]}" + (f" of {of}" if of else "")
        done = planned is None and status == "finished"
    else:
        at, done = "nothing trained yet", False
    if status == "finished":
        said = f"{at}; GRPO has not been run" if planned and grpo is None else at
    else:
        said = f"{at}, {'stopped' if status == 'stopped' else 'running, or killed while it was'}"
    return {"status": status, "complete": status == "finished" and done, "progress": said}


def _facts(log: RunLog) -> list[list[str]]:
    """Small numbers for the head: ``[[label, value], ...]``."""
    sft = _sum(log, "time/step", "sft")
    grpo = _sum(log, "step_time", "grpo")
    tokens = log.series("num_tokens", "grpo", last=1)
    facts = [["SFT", _duration(sft)]] if sft else []
    facts += [["GRPO", _duration(grpo)]] if grpo else []
    facts += [["sampled for training", f"{tokens[-1][2]:,.0f} tokens"]] if tokens else []
    return facts


def _recipe_rows(recipe: Recipe) -> list[list[str]]:
    """The settings one asks for first: ``[[label, value], ...]``; what is not there is left out."""
    functions = _list(_get(recipe, "rewards", "functions"))
    weights = _list(_get(recipe, "rewards", "weights")) or [1.0] * len(functions)
    rewards = ", ".join(f"{name} × {_weight(weight)}" for name, weight in zip(functions, weights, strict=False))
    sft, grpo, sampling = recipe.get("sft"), recipe.get("grpo"), recipe.get("sampling")
    texts = {
        "model": _get(recipe, "model", "path"),
        "data": _get(recipe, "data", "train"),
        "rewards": rewards,
        "SFT": sft and _settings(sft, "steps", "epochs", "rows_per_step", "learning_rate"),
        "GRPO": grpo
        and _settings(
            grpo,
            "iterations",
            "prompts_per_iteration",
            "group_size",
            "learning_rate",
            "kl_coef",
            "clip_low",
            "clip_high",
        ),
        "sampling": sampling and _settings(sampling, "temperature", "max_new_tokens"),
        "seed": _get(recipe, "run", "seed"),
    }
    return [[label, str(text)] for label, text in texts.items() if text not in (None, "")]


def _settings(section: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{name} {section[name]}" for name in names if section.get(name) is not None)


def _get(recipe: Recipe, section: str, key: str) -> Any:
    return (recipe.get(section) or {}).get(key)


# The recipe of an older or newer Oncurve may hold something else than is expected here; it is then shown as it is.


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _weight(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _sum(log: RunLog, name: str, stage: str) -> float:
    """Of what was measured: NaN is left out."""
    return sum(value for _, _, value in log.series(name, stage) if math.isfinite(value))


def _ends(log: RunLog, name: str) -> tuple[float, float] | None:
    return ends([value for _, _, value in log.series(name, "grpo")])


def _interval(row: EvalRow | None) -> dict[str, float | None] | None:
    if row is None:
        return None
    # Rounded here as the sentences and the terminal round, so that no two places show different numbers.
    value, low, high = (rounded(float(f"{each:.3f}")) for each in (row.value, row.low, row.high))
    return {"value": value, "low": low, "high": high, "n": row.n}


def _label(iteration: int) -> str:
    return "before GRPO" if iteration == 0 else f"after iteration {iteration}"


def _finding(tone: str, text: str) -> dict[str, str]:
    return {"tone": tone, "text": text}


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"

"""The curves of a report, read from the record and thinned to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oncurve.board.catalogue import LEARNS, OTHER, SECTIONS, Chart
from oncurve.runlog import TIMINGS, EvalRow, RunLog

MAX_POINTS = 400
MAX_OTHERS = 24

Points = dict[int, float]
"""Iteration (GRPO) or optimizer step (SFT) -> value."""


# Shown elsewhere, or the sum of what is shown.
_NOT_CHARTED = frozenset({"num_tokens", "step_time", "completions/min_length", "completions/max_length", "time/step"})


def charts(log: RunLog, evals: Sequence[EvalRow]) -> list[dict[str, Any]]:
    """``[{"section", "charts": [...]}]``, ready for JSON: only what this run recorded."""
    known = {stage: log.metric_names(stage) for stage in ("sft", "grpo")}
    used: set[str] = set()
    found: dict[str, list[dict[str, Any]]] = {}
    for section, members in SECTIONS.items():
        for chart in members:
            names = [name for pattern in chart.names for name in known[chart.stage] if _matches(name, pattern)]
            names = [name for name in dict.fromkeys(names) if name not in _NOT_CHARTED]
            used.update(names if chart.stage == "grpo" else ())
            if names:
                found.setdefault(section, []).append(_metric_chart(log, chart, names))
    if held_out := _held_out_chart(evals):
        found.setdefault(LEARNS, []).insert(0, held_out)
    rest = [name for name in known["grpo"] if name not in used | _NOT_CHARTED and not name.startswith(TIMINGS)]
    for name in rest[:MAX_OTHERS]:
        found.setdefault(OTHER, []).append(_metric_chart(log, Chart(name, (name,), "", ""), [name]))
    order = [*SECTIONS, OTHER]
    return [{"section": section, "charts": found[section]} for section in order if section in found]


def _metric_chart(log: RunLog, chart: Chart, names: Sequence[str]) -> dict[str, Any]:
    lines: dict[str, Points] = {}
    for name in names:
        rows = log.series(name, chart.stage)
        lines[name] = {(step if chart.stage == "sft" else iteration): value for iteration, step, value in rows}
    xs = thinned(sorted(set().union(*lines.values())))
    return {
        "title": chart.title,
        "look_for": chart.look_for,
        "glossary": chart.glossary,
        "x": xs,
        "x_label": "iteration" if chart.stage == "grpo" else "step",
        "stacked": chart.stacked,
        "smooth": chart.smooth,
        "series": [
            {"label": _label(name), "y": [rounded(points.get(x)) for x in xs]} for name, points in lines.items()
        ],
    }


def _held_out_chart(evals: Sequence[EvalRow]) -> dict[str, Any] | None:
    greedy = [row for row in evals if row.kind == "greedy" and row.stage == "grpo" and not row.name.startswith(TIMINGS)]
    xs = thinned(sorted({row.iteration for row in greedy}))
    lines: dict[str, dict[int, EvalRow]] = {}
    for row in greedy:
        lines.setdefault(row.name, {})[row.iteration] = row
    if not xs:
        return None
    series = [
        {
            "label": name,
            "y": [rounded(rows[x].value) if x in rows else None for x in xs],
            "low": [rounded(rows[x].low) if x in rows else None for x in xs],
            "high": [rounded(rows[x].high) if x in rows else None for x in xs],
        }
        for name, rows in lines.items()
    ]
    return {
        "title": "Held-out prompts, greedy",
        "look_for": "The measure of success: prompts it never trained on. A reward that rises while this does not is "
        "memory or a loophole.",
        "glossary": "Mean over the held-out prompts, taking the most likely token; the band is the 95% interval.",
        "x": xs,
        "x_label": "iteration",
        "stacked": False,
        "smooth": False,
        "series": series,
    }


def thinned(values: Sequence[int], most: int = MAX_POINTS) -> list[int]:
    """At most ``most`` of ``values``, evenly spaced, first and last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def rounded(value: float | None) -> float | None:
    """Five significant digits: a chart shows no more. What is not a finite number is None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def ends(points: Sequence[float]) -> tuple[float, float] | None:
    """Mean of the first and of the last tenth of a series (at least one point each); None without a finite point."""
    finite = [value for value in points if math.isfinite(value)]
    if not finite:
        return None
    tenth = max(1, len(finite) // 10)
    return sum(finite[:tenth]) / tenth, sum(finite[-tenth:]) / tenth


def _matches(name: str, pattern: str) -> bool:
    before, star, after = pattern.partition("*")
    return name == pattern if not star else name.startswith(before) and name.endswith(after) and name != before + after


def _label(name: str) -> str:
    """Short, for the legend: the chart's title already says the rest."""
    if name.startswith("rewards/"):
        return name.removeprefix("rewards/").removesuffix("/mean")
    for prefix in ("time/", "perf/", "clip_ratio/", "completions/", "sampling/sampling_logp_difference/"):
        name = name.removeprefix(prefix)
    return name

"""The tables and the picture of a comparison: Markdown, and one self-contained page."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oncurve.compare.plan import Plan
from oncurve.compare.runs import Done
from oncurve.runlog import EvalRow, RunLog
from oncurve.runlog.listing import main_measure

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2")
_WIDTH, _HEIGHT, _MARGIN = 640, 300, 44


def write_report(plan: Plan, runs: Sequence[Done], out: Path) -> Path:
    """``OUT/compare.md`` and ``OUT/compare.html``; returns the page."""
    evals = {run.path: _evals(run.path) for run in runs}
    first = next(iter(evals.values()), [])
    main = main_measure([row for row in first if row.kind == "greedy"]) or "accuracy"
    by_method = {method.name: [run for run in runs if run.method == method.name] for method in plan.methods}
    tables = [_measures(by_method, evals), _costs(by_method)]
    title = f"{', '.join(by_method)} on {plan.recipe}, seeds {', '.join(map(str, plan.seeds))}"
    text = f"# Comparison\n\n{title}\n\n" + "\n\n".join(_markdown(*table) for table in tables) + "\n"
    (out / "compare.md").write_text(text, encoding="utf-8")
    page = out / "compare.html"
    body = _curves(by_method, evals, main) + "".join(_html(*table) for table in tables)
    page.write_text(_PAGE.format(title=html.escape(title), body=body), encoding="utf-8")
    return page


def _evals(path: Path) -> list[EvalRow]:
    with RunLog.open(path, readonly=True) as log:
        return [row for row in log.eval_rows() if row.stage == "grpo"]


Table = tuple[list[str], list[list[str]]]


def _measures(by_method: Mapping[str, Sequence[Done]], evals: Mapping[Path, list[EvalRow]]) -> Table:
    """Held out, after the last iteration: the mean over seeds, and the lowest and highest seed."""
    names = dict.fromkeys((row.kind, row.name) for rows in evals.values() for row in rows)
    lines = []
    for kind, name in names:
        cells = [f"{name}, {kind}"]
        before = [
            v for runs in by_method.values() for run in runs if (v := _at(evals[run.path], kind, name, first=True))
        ]
        cells.append(_range([value for _, value in before]))
        for runs in by_method.values():
            after = [v for run in runs if (v := _at(evals[run.path], kind, name, first=False))]
            cells.append(_range([value for _, value in after]))
        lines.append(cells)
    return ["held out: mean (lowest to highest seed)", "before", *by_method], lines


def _at(rows: Sequence[EvalRow], kind: str, name: str, *, first: bool) -> tuple[int, float] | None:
    found = sorted((row.iteration, row.value) for row in rows if (row.kind, row.name) == (kind, name))
    return (found[0] if first else found[-1]) if found else None


def _range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _costs(by_method: Mapping[str, Sequence[Done]]) -> Table:
    rows: list[tuple[str, Callable[[Done], float], str]] = [
        ("completions sampled", _sampled, "{:,.0f}"),
        ("processor seconds", lambda run: run.cpu_seconds, "{:,.0f}"),
        ("wall seconds", lambda run: run.wall_seconds, "{:,.0f}"),
        ("peak memory, GiB", lambda run: run.peak_gib, "{:.2f}"),
        ("seconds of an update", lambda run: _metric(run, "time/update"), "{:.2f}"),
    ]
    lines = [
        [what, *(form.format(statistics.median(map(value, runs))) for runs in by_method.values())]
        for what, value, form in rows
    ]
    return ["cost: median over seeds", *by_method], lines


def _sampled(run: Done) -> float:
    with RunLog.open(run.path, readonly=True) as log:
        return sum(len(log.outcomes("train", "grpo", iteration)) for iteration in log.iterations("train", "grpo"))


def _metric(run: Done, name: str) -> float:
    with RunLog.open(run.path, readonly=True) as log:
        return statistics.median([value for _, _, value in log.series(name, "grpo")])


def _curves(by_method: Mapping[str, Sequence[Done]], evals: Mapping[Path, list[EvalRow]], main: str) -> str:
    """Greedy held-out accuracy by iteration: a line a seed, a colour a method."""
    lines = [
        (number, sorted((r.iteration, r.value) for r in evals[run.path] if (r.kind, r.name) == ("greedy", main)))
        for number, runs in enumerate(by_method.values())
        for run in runs
    ]
    last = max((points[-1][0] for _, points in lines if points), default=1) or 1
    high = max((value for _, points in lines for _, value in points), default=1.0) or 1.0
    low = min(0.0, min((value for _, points in lines for _, value in points), default=0.0))

    def place(iteration: float, value: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * iteration / last
        y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="2" '
        f'points="{" ".join(place(*point) for point in points)}"/>'
        for number, points in lines
    )
    left, bottom = place(0, low).split(",")
    axes = (
        f'<path d="M{left},{_MARGIN} V{bottom} H{_WIDTH - _MARGIN}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<text x="{left}" y="{_MARGIN - 8}">{html.escape(main)}, greedy, held out (up to {high:.2f})</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 12}" text-anchor="end">iteration {last}</text>'
    )
    keys = "".join(
        f'<span><i style="background:{_COLOURS[number % len(_COLOURS)]}"></i>{html.escape(name)}</span>'
        for number, name in enumerate(by_method)
    )
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(main)}">{axes}{drawn}</svg>'
    return f'<p class="key">{keys}</p>{picture}'


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def _html(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(line, 'td') for line in lines)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Comparison</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1.5rem 0; display: block; overflow-x: auto; }}
td, th {{ padding: .3rem .8rem; text-align: left; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }}
svg {{ width: 100%; max-width: 44rem; }} svg text {{ font-size: 12px; fill: currentColor; }}
.key span {{ margin-right: 1.2rem; }}
.key i {{ display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }}
</style></head><body><h1>Comparison</h1><p>{title}</p>{body}</body></html>
"""

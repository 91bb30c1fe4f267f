"""The figure of a reward model's evaluation, as SVG: its reliability, and its scores against the length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from oncurve.functional.calibration import Bin

_SIZE, _LEFT, _TOP = 240, 50, 30
_MOST_POINTS = 1500
_RIGHT, _WRONG = "#0a7a3d", "#b3261e"


def reward_figure(table: Sequence[Bin], points: Sequence[tuple[int, float, float]], pairwise: bool) -> str:
    """``table`` and ``points`` as in ``RewardEvaluation``."""
    second = _LEFT + _SIZE + 80
    width, height = second + _SIZE + 20, _TOP + _SIZE + 50
    body = [
        *_frame(_LEFT, "Reliability", "predicted", "came true", (0.0, 1.0), (0.0, 1.0)),
        *_reliability(table),
        *_lengths(second, points),
        f'<text x="{second}" y="{height - 6}" fill="{_RIGHT}">{"chosen" if pairwise else "label above 0.5"}</text>',
        f'<text x="{second + 120}" y="{height - 6}" fill="{_WRONG}">{"rejected" if pairwise else "others"}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _reliability(table: Sequence[Bin]) -> Iterator[str]:
    """A dot for each bin, the larger the more predictions it has, and the line on which all should lie."""
    base = _TOP + _SIZE
    yield f'<path d="M{_LEFT} {base}L{_LEFT + _SIZE} {_TOP}" stroke="#999" stroke-dasharray="4 3" fill="none"/>'
    most = max((part.n for part in table), default=0)
    for part in table:
        if part.n:
            x, y = _LEFT + _SIZE * part.predicted, base - _SIZE * part.observed
            radius = 2 + 6 * math.sqrt(part.n / most)
            said = f"{part.n} predictions of {part.predicted:.2f} on average; {part.observed:.2f} came true"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#1a56b0"><title>{said}</title></circle>'


def _lengths(left: int, points: Sequence[tuple[int, float, float]]) -> Iterator[str]:
    lengths, scores = [float(n) for n, _, _ in points], [score for _, score, _ in points]
    across, up = (min(lengths), max(lengths)), (min(scores), max(scores))
    yield from _frame(left, "Score by length", "tokens of the completion", "score", across, up)
    step = max(1, math.ceil(len(points) / _MOST_POINTS))
    for tokens, score, label in points[::step]:
        x = left + _SIZE * _share(tokens, across)
        y = _TOP + _SIZE * (1 - _share(score, up))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{_RIGHT if label > 0.5 else _WRONG}" fill-opacity="0.5"/>'


def _frame(
    left: int, title: str, x_name: str, y_name: str, across: tuple[float, float], up: tuple[float, float]
) -> Iterator[str]:
    base = _TOP + _SIZE
    yield f'<text x="{left}" y="{_TOP - 12}" font-weight="bold">{title}</text>'
    yield f'<rect x="{left}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="#666"/>'
    yield f'<text x="{left}" y="{base + 14}">{across[0]:.3g}</text>'
    yield f'<text x="{left + _SIZE}" y="{base + 14}" text-anchor="end">{across[1]:.3g}</text>'
    yield f'<text x="{left + _SIZE / 2}" y="{base + 14}" text-anchor="middle">{x_name}</text>'
    yield f'<text x="{left - 4}" y="{base}" text-anchor="end">{up[0]:.3g}</text>'
    yield f'<text x="{left - 4}" y="{_TOP + 10}" text-anchor="end">{up[1]:.3g}</text>'
    middle = _TOP + _SIZE / 2
    yield f'<text transform="rotate(-90 {left - 30} {middle})" x="{left - 30}" y="{middle}">{y_name}</text>'


def _share(value: float, span: tuple[float, float]) -> float:
    return (value - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.5

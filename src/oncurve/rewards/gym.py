"""The reward ``reasoning_gym``: what a task of reasoning-gym says of an answer, asked where it can do no harm.

Some of its scorers evaluate the answer as code (``eval``, or ``parse_expr`` of sympy, which is ``eval`` as well), some
raise on an answer that they did not expect, and many give less than full marks for a newline at the end.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from oncurve.rewards.extract import completion_text, extract_answer
from oncurve.rewards.pool import Outcome, Pool
from oncurve.types import OncurveError

SECONDS = 10.0
"""Processor time for one answer."""
JUNK = "unanswered"
"""What no task takes for an answer."""
_GOLD = 0.99
_LONGEST = 20_000
"""Characters of an answer that are looked at: some answers are grids."""
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_MOST_KEPT = 20_000


class _Asked(NamedTuple):
    """An answer to an entry of a task. Options and entry are as Python writes them: the worker reads them again as
    literals, so that tuples, and numbers as keys, stay what they are."""

    name: str
    options: str
    entry: str
    answer: str


def reasoning_gym_reward(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    prompts: Sequence[Any],
    answer: Sequence[Any],
    metadata: Sequence[Any],
    reasoning_gym: Sequence[Mapping[str, Any] | None],
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The score, mostly from 0.0 to 1.0, that the row's own task gives the completion's answer.

    The answer is found by ``extract_answer``, without white space around it; none, or one over 20,000 characters, is
    0.0. The columns are those of ``reasoning_gym:NAME``. Scorers run in killable processes that can read nothing but
    Python's packages and write nothing; one whose source evaluates anything gets a new process for every answer.

    A scorer that raises, takes over 10 s or too much memory has said 0.0, and is counted. A row is unscored, and
    counted, where its scorer cannot be believed: it gives the right answer less than 0.99, or as much to nonsense.

    Raises:
        OncurveError: reasoning-gym is not installed, or the processes cannot be held in on this machine.
    """
    rows = [
        _Asked(task["name"], repr(_plain(task.get("options") or {})), _entry(question, right, more), "")
        if task
        else None
        for question, right, more, task in zip(prompts, answer, metadata, reasoning_gym, strict=True)
    ]
    asked: list[_Asked | None] = []
    for row, completion in zip(rows, completions, strict=True):
        text = (extract_answer(completion_text(completion)) or "").strip()
        asked.append(row and row._replace(answer=text if len(text) <= _LONGEST else ""))
    known = [
        row._replace(answer=text.strip())
        for row, right in zip(rows, answer, strict=True)
        if row is not None
        for text in (right, JUNK)
        if isinstance(text, str)
    ]
    outcomes = _outcomes([*dict.fromkeys([*(each for each in asked if each is not None and each.answer), *known])])

    scores: list[float | None] = []
    said: list[str | None] = []
    for each, right in zip(asked, answer, strict=True):
        status, score = (None, None) if each is None else _verdict(each, right, outcomes)
        scores.append(score)
        said.append(status)
    if log_extra is not None:
        log_extra("reasoning_gym/status", said)
    if log_metric is not None:
        for status in ("error", "timeout", "memory", "not believed"):
            log_metric(f"reasoning_gym/{status.replace(' ', '_')}", float(said.count(status)))
    return scores


def evaluates(name: str) -> bool:
    """Whether the scorer of that task may evaluate an answer as code: the file that registers it calls something that
    does, or cannot be found."""
    named = re.compile(rf"""(?:DATASET_NAME = |register_dataset\(\s*)["']{re.escape(name)}["']""")
    defining = [text for text in _sources() if named.search(text)]
    return not defining or any(_EVALUATES.search(text) for text in defining)


@lru_cache(maxsize=1)
def _sources() -> tuple[str, ...]:
    found = importlib.util.find_spec("reasoning_gym")
    if found is None or not found.submodule_search_locations:
        raise OncurveError("the reward `reasoning_gym` needs the package reasoning-gym: pip install 'oncurve[gym]'")
    folder = Path(next(iter(found.submodule_search_locations)))
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))


@lru_cache(maxsize=2)
def _pool(fresh: bool) -> Pool:
    return Pool("oncurve.rewards.gym_scorer:score", seconds=SECONDS, memory_mb=2048, hold="yes", fresh=fresh)


_may_evaluate = lru_cache(maxsize=None)(evaluates)
_kept: OrderedDict[_Asked, Outcome] = OrderedDict()


def _outcomes(wanted: Sequence[_Asked]) -> dict[_Asked, Outcome]:
    """What the scorers say: of each answer to each entry, once."""
    new = [key for key in wanted if key not in _kept]
    for fresh in (False, True):
        items = [key for key in new if _may_evaluate(key.name) is fresh]
        if items:
            _kept.update(zip(items, _pool(fresh).map([list(key) for key in items]), strict=True))
    found = {key: _kept[key] for key in wanted}
    for key, outcome in found.items():
        _kept.move_to_end(key)
        if outcome.status == "lost":
            del _kept[key]
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _verdict(asked: _Asked, right: Any, outcomes: Mapping[_Asked, Outcome]) -> tuple[str, float | None]:
    junk = _number(outcomes[asked._replace(answer=JUNK)])
    gold = _number(outcomes[asked._replace(answer=right.strip())]) if isinstance(right, str) else 1.0
    if gold is None or gold < _GOLD or (junk is not None and junk >= gold):
        return "not believed", None
    if not asked.answer:
        return "no answer", 0.0
    outcome = outcomes[asked]
    if outcome.status == "lost":
        return "lost", None
    score = _number(outcome)
    if score is not None:
        return "ok", score
    return outcome.status if outcome.status != "ok" else "error", 0.0


def _number(outcome: Outcome) -> float | None:
    value = outcome.value
    if outcome.status == "ok" and isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _entry(question: Any, answer: Any, metadata: Any) -> str:
    return repr({"question": question, "answer": answer, "metadata": _plain(metadata)})


def _plain(value: Any) -> Any:
    """Numbers and texts of numpy as Python's own."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_plain(item) for item in value)
    return value.item() if hasattr(value, "item") and not hasattr(value, "items") else value

"""The accuracy reward: is the answer the model commits itself to the right one?"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncurve.rewards.answer import Answer, read_answer, read_gold
from oncurve.rewards.extract import completion_text, extract_answer
from oncurve.rewards.pool import Outcome, Pool
from oncurve.types import OncurveError

log = logging.getLogger(__name__)

FORMULA_SECONDS = 2.0
"""Processor time for comparing two formulas."""
FORMULA_MB = 1024
_MOST_KEPT = 16384

_RIGHT = {"right": 1.0, "unscored": None, "lost": None}


def accuracy(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    answer: Sequence[Any],
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    box_in_thoughts: bool = False,
    **kwargs: Any,
) -> list[float | None]:
    r"""1.0 for each completion whose answer equals the one in the data set's ``answer`` column, else 0.0.

    The completion's answer is found by ``extract_answer``: only after the last ``</think>``; the last balanced
    ``\boxed{...}``, else the line after the last ``####``, else the last ``<answer>`` block, else the line after the
    last ``Final Answer:``; none of these is 0.0. First it is compared exactly, with these verdicts:

    * equal to 42: ``42.``, ``42.0``, ``+42``, ``$42``, ``\$42``, ``**42**``, ``\text{42}``
    * equal fractions and decimals: ``0.5``, ``.5``, ``1/2``, ``\frac{1}{2}``, ``\frac12``, ``\dfrac{2}{4}``, ``5e-1``
    * equal with separated thousands: ``12345``, ``12,345``, ``12{,}345``, ``12\,345``, ``12 345``
    * equal powers of ten: ``1500``, ``1.5e3``, ``1.5 \times 10^{3}``; an exponent has at most three digits
    * equal in any script: ``-42`` and ``−42`` (U+2212, also hyphens and the en dash); decimal digits of every script
    * per cent: ``50%`` and ``50\%`` equal ``50`` and also ``0.5``, since data sets differ in who writes the sign
    * units in ``\text`` and degrees: ``42\text{ cm}`` equals ``42`` and not ``42\text{ m}``; ``90^\circ`` equals ``90``
    * not equal: ``0.333`` and ``1/3`` (no tolerance); ``(1,2)`` and ``1,2``; ``x=5`` and ``5``; ``3,14`` and ``3.14``;
      ``42 apples`` and ``42``; ``B`` and ``b`` (case counts); ``B`` and ``(B)``

    Where neither settles it and both sides read like formulas (at most 512 characters, no words), they are compared as
    such, if the extra ``math`` is installed (see ``oncurve.rewards.formulas``): in a process that may take 2 s of
    processor time and a gigabyte.

    * equal: ``\sqrt{16}`` and ``4``; ``x^2+2x+1`` and ``(x+1)^2``; ``1\frac12`` and ``1.5``; ``1,2`` and ``2,1``, as
      sets; ``2x-y+1=0`` and ``y=2x+1``; ``x>1`` and ``1<x``
    * not equal: ``\sqrt{2}`` and ``1.41421``; ``(1,2)`` and ``(2,1)``; ``(0,1)`` and ``0<x<1``; ``[0,1)`` and ``(0,1)``
    * not read: numbers in other bases, two numbers side by side, an ellipsis

    All else is compared as text without its cosmetics (spaces, ``$``, full stop): texts over 512 characters are equal
    if they are the same to the character.

    What came of each completion is logged as ``accuracy/outcome``: "right"; "wrong"; "no_answer", in none of the forms;
    "unparseable", an answer that could not be read where the right one is a number or a formula; "timeout", one that
    could not be compared within the limits. These are 0.0, for nobody who reads it could say that it is right. "lost",
    where the process that compares ended twice by itself, and "unscored", without a right answer, are None.

    Args:
        completions: texts, or lists of messages (the last assistant message counts).
        answer: for each completion the right answer: a number, or a text that is it or carries it as ``#### 72`` or
            ``\boxed{72}``. None leaves the completion unscored.
        box_in_thoughts: a ``\boxed{...}`` in the thoughts counts where it is the only one and no answer follows them.

    Returns:
        One float per completion, None where it is unscored.

    Raises:
        OncurveError: an ``answer`` is empty or neither text nor number (the row is named), or the lengths differ.
    """
    if isinstance(answer, str) or len(answer) != len(completions):
        given = repr(answer) if isinstance(answer, str) else f"{len(answer)} values"
        raise OncurveError(f"`answer` must be a list of {len(completions)} values, one per completion; got {given}")
    outcomes: list[str] = []
    undecided: dict[int, tuple[str, str]] = {}
    for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
        if gold is None:
            outcomes.append("unscored")
            continue
        try:
            right = read_gold(gold)
        except OncurveError as error:
            raise OncurveError(f"row {row}, column `answer`: {error}") from error
        found = extract_answer(completion_text(completion), box_in_thoughts=box_in_thoughts)
        given = None if found is None else read_answer(found)
        outcomes.append(_outcome(right, given))
        if outcomes[-1] == "undecided" and given is not None:
            undecided[row] = (right.as_formula, given.as_formula)
    verdicts, queued = _compared(list(undecided.values()))
    for row, outcome in zip(undecided, verdicts, strict=True):
        outcomes[row] = outcome
    if log_extra is not None:
        log_extra("accuracy/outcome", outcomes)
    if log_metric is not None:
        for outcome in ("no_answer", "unparseable", "timeout"):
            log_metric(f"accuracy/{outcome}", float(outcomes.count(outcome)))
        log_metric("time/rewards/accuracy/queue", queued)
    return [_RIGHT.get(outcome, 0.0) for outcome in outcomes]


def _outcome(right: Answer, given: Answer | None) -> str:
    """What can be said without a library of formulas."""
    if given is None or not given.text:
        return "no_answer"
    if given.same_as(right):
        return "right"
    if right.number is not None and given.number is not None:
        return "wrong"
    if not (right.number is not None or right.formula):
        return "wrong"  # a word, or a letter to choose
    return "undecided" if given.number is not None or given.formula else "unparseable"


# -- formulas ---------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_pool: Pool | None = None
_kept: OrderedDict[tuple[str, str], str] = OrderedDict()
"""Verdicts on pairs: the answers of a group are often the same."""
_told = False


def formulas_can_be_compared() -> bool:
    """Whether the extra ``math`` is installed."""
    return importlib.util.find_spec("math_verify") is not None


def _compared(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """Outcomes, and the seconds that a pair waited for a process, on average."""
    if not pairs:
        return [], 0.0
    if not formulas_can_be_compared():
        _tell_once()
        return ["unparseable"] * len(pairs), 0.0
    with _lock:
        known = {pair: _kept[pair] for pair in pairs if pair in _kept}
    wanted = [pair for pair in dict.fromkeys(pairs) if pair not in known]
    compared = _formula_pool().map(wanted)
    known |= {pair: _verdict(outcome) for pair, outcome in zip(wanted, compared, strict=True)}
    with _lock:
        _kept.update({pair: known[pair] for pair in wanted if known[pair] != "lost"})
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    queued = sum(outcome.queued for outcome in compared) / max(1, len(compared))
    return [known[pair] for pair in pairs], queued


def _verdict(outcome: Outcome) -> str:
    if outcome.status == "ok":
        if outcome.value["equal"]:
            return "right"
        # A right answer that is no formula after all can only be met as text.
        return "wrong" if outcome.value["answer"] or not outcome.value["gold"] else "unparseable"
    return {"timeout": "timeout", "memory": "timeout", "error": "unparseable"}.get(outcome.status, "lost")


def _formula_pool() -> Pool:
    global _pool  # a plain function has no other place for processes that outlive its calls
    with _lock:
        if _pool is None:
            _pool = Pool("oncurve.rewards.formulas:compare", seconds=FORMULA_SECONDS, memory_mb=FORMULA_MB)
        return _pool


def _tell_once() -> None:
    global _told
    if not _told:
        _told = True
        log.warning(
            "some answers are formulas, and only numbers and texts can be compared here; "
            'for formulas: pip install "oncurve[math]"'
        )

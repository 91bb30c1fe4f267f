"""A judge's reply, read: one JSON object with a number for every criterion. Linear in the length of the reply."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from oncurve.rewards.extract import after_thinking
from oncurve.rewards.judge.rubric import Rubric

_SIGN = re.compile(r'[{}"\\]')
_BEGIN = re.compile(r'\{\s*["}]')
_FENCED = re.compile(r"```[A-Za-z]*\s*(?P<inside>\{.*\})\s*```", re.DOTALL)
_LONGEST = 100_000


class BadAnswer(ValueError):
    """A reply that does not grade; the text says what is wrong with it, in words that the judge may be told."""


def read_answer(reply: str, rubric: Rubric, shown: Sequence[str] = ()) -> dict[str, float]:
    """The score of every criterion.

    Only what follows the last ``</think>`` counts. In it every outermost JSON object is looked at, whether it stands
    alone, in a fence or within prose; those without any criterion are passed over. What remains must be one object, or
    several that give the same scores. Beside other text an object that equals one in ``shown``, what the judge was
    shown, is a quotation and is passed over as well.

    Raises:
        BadAnswer: no such object or two that differ; a criterion that is missing, given twice, not a number (text,
            true, NaN and Infinity are none) or outside its scale.
    """
    if len(reply) > _LONGEST:
        raise BadAnswer(f"it has {len(reply)} characters")
    text, spans = _after_thoughts(reply)
    names = {each.name for each in rubric.criteria}
    found = [_parsed(span) for span in spans if any(f'"{name}"' in span for name in names)]
    found = [each for each in found if names & each.keys()]
    if found and not (len(spans) == 1 and _alone(text, spans[0])):
        quoted = [_quietly_parsed(span) for span_text in shown for span in objects_in(span_text)]
        own = [each for each in found if each not in quoted]
        if not own:
            raise BadAnswer("its only JSON object is a quotation of what was to be graded")
        found = own
    if not found:
        raise BadAnswer("it has no JSON object with the criteria")
    answers = [_scores(each, rubric) for each in found]
    if any(answer != answers[0] for answer in answers):
        raise BadAnswer(f"it has {len(answers)} JSON objects that differ")
    return answers[0]


def _after_thoughts(reply: str) -> tuple[str, list[str]]:
    """The reply after its thoughts, and what may be objects in it."""
    text = after_thinking(reply).strip()
    spans = objects_in(text)
    if spans or "</think>" not in reply:
        return text, spans
    # The tag may stand within the answer itself: {"clarity": 3, "why": "there is no </think>"}
    text = reply.strip()
    spans = objects_in(text)
    return text, [span for span in spans[-1:] if "</think>" in span]


def objects_in(text: str) -> list[str]:
    """What may be an outermost JSON object, in order: from a brace that a quotation mark or its own closing brace
    follows, to the brace that closes it. Each character is looked at once; after one that is never closed nothing
    more is found."""
    spans: list[str] = []
    start, depth, in_string, after = 0, 0, False, 0
    for sign in _SIGN.finditer(text):
        at, kind = sign.start(), sign.group()
        if at < after:
            continue
        if depth == 0:
            if kind == "{" and _BEGIN.match(text, at):
                start, depth = at, 1
        elif kind == "\\":
            after = at + 2 if in_string else after
        elif kind == '"':
            in_string = not in_string
        elif not in_string:
            depth += 1 if kind == "{" else -1
            if depth == 0:
                spans.append(text[start : at + 1])
    return spans


def _alone(text: str, span: str) -> bool:
    if text == span:
        return True
    fenced = _FENCED.fullmatch(text)
    return fenced is not None and fenced["inside"] == span


def _parsed(span: str) -> Mapping[str, Any]:
    try:
        return _strict(span)
    except RecursionError:
        raise BadAnswer("its JSON is nested too deeply") from None
    except BadAnswer:
        raise
    except ValueError as error:  # JSONDecodeError, and a number of more than 4,300 digits
        raise BadAnswer(f"its JSON cannot be read: {str(error)[:100]}") from None


def _quietly_parsed(span: str) -> Mapping[str, Any] | None:
    """What was shown need be no JSON at all."""
    try:
        return _strict(span)
    except (ValueError, RecursionError):
        return None


def _strict(span: str) -> Mapping[str, Any]:
    if span.count("{") + span.count("[") > 10_000:
        raise BadAnswer("its JSON is nested too deeply")
    value = json.loads(span, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    if not isinstance(value, dict):
        raise BadAnswer("it is no JSON object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadAnswer(f"its JSON gives {twice[:80]!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadAnswer(f"its JSON holds {name}, which is no number")


def _scores(given: Mapping[str, Any], rubric: Rubric) -> dict[str, float]:
    scores: dict[str, float] = {}
    for each in rubric.criteria:
        if each.name not in given:
            raise BadAnswer(f"{each.name!r} is missing")
        value = given[each.name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_float(value)):
            raise BadAnswer(f"{each.name!r} is {_short(value)}, not a number from {each.low} to {each.high}")
        if not each.low <= value <= each.high:
            raise BadAnswer(f"{each.name!r} is {_short(value)}, outside its scale of {each.low} to {each.high}")
        scores[each.name] = float(value)
    return scores


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _short(value: Any) -> str:
    text = "a huge number" if isinstance(value, int) and abs(value) > 10**30 else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

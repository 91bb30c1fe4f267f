r"""Where an answer stands in a text: linear scans for boxes and tags, no pattern that can stall.

Every function reads a text once from left to right (or uses ``str`` methods that do), so the time is proportional to
its length whatever a model writes: 200 kB of unclosed braces or of repeated tags costs milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# A box (also with its backslash doubled, as in text that was escaped twice), an escaped backslash or brace, or a brace.
# Each alternative starts at a backslash or brace, and none can match the same stretch in two ways.
_BRACES = re.compile(r"(?P<box>\\{1,2}boxed\s*\{)|\\[\\{}]|(?P<open>\{)|(?P<close>\})")
_FINAL_ANSWER = re.compile(r"final answer\**\s?:", re.IGNORECASE)


class Box(NamedTuple):
    r"""One ``\boxed{...}``; the content is ``text[start:end]``, and ``end`` is None if it is never closed."""

    start: int
    end: int | None


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """What the model said: the text itself, or the content of the last assistant message ("" if there is none).

    A content that is a list of parts (``{"type": "text", "text": ...}``) gives the text parts, joined.
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("role") == "assistant":
            content = message.get("content") or ""
            if isinstance(content, str):
                return content
            return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return ""


def after_thinking(text: str) -> str:
    """The text after the last ``</think>``; the whole text if there is no such tag."""
    return text.rpartition("</think>")[2]


def boxes(text: str) -> list[Box]:
    r"""Every ``\boxed{...}`` in the order in which they open.

    ``\boxed {5}`` is one, ``\fbox{5}`` and ``\boxed 5`` are not. Escaped braces (``\{``) are text. A closing brace that
    nothing opened is skipped. Positions are returned and not contents: the contents of n nested boxes would take
    n^2 memory.
    """
    first = text.find("\\boxed")
    if first < 0:
        return []
    starts: list[int] = []
    ends: list[int | None] = []
    unclosed: list[int] = []  # for each open brace the index of its box, or -1 for a plain brace
    for token in _BRACES.finditer(text, first):
        kind = token.lastgroup
        if kind == "box":
            unclosed.append(len(starts))
            starts.append(token.end())
            ends.append(None)
        elif kind == "open":
            unclosed.append(-1)
        elif kind == "close" and unclosed:
            index = unclosed.pop()
            if index >= 0:
                ends[index] = token.start()
    return list(map(Box, starts, ends))


def extract_answer(text: str, *, box_in_thoughts: bool = False) -> str | None:
    r"""The answer that a text commits itself to, or None if it holds none in a known form.

    Only the text after the last ``</think>`` is searched, if there is such a tag. The first form present decides, even
    if what it holds is empty:

    1. the last balanced ``\boxed{...}`` (of nested boxes the one that opens last). A box never closed does not count:
       ``\boxed{4}, no: \boxed{5`` says 4;
    2. the rest of the line after the last ``####``;
    3. the last ``<answer>...</answer>``, both tags present;
    4. the rest of the line after the last ``Final Answer:`` (in any case, stars of emphasis allowed).

    A number that merely stands somewhere in the text is not an answer.

    Args:
        box_in_thoughts: where the text after ``</think>`` holds none of these, a balanced box in the thoughts counts,
            if it is the only one.
    """
    whole, text = text, after_thinking(text)
    found = _answer_in(text)
    if found is None and box_in_thoughts and len(text) < len(whole):
        closed = [box for box in boxes(whole) if box.end is not None]
        if len(closed) == 1:
            return whole[closed[0].start : closed[0].end]
    return found


def _answer_in(text: str) -> str | None:
    for box in reversed(boxes(text)):
        if box.end is not None:
            return text[box.start : box.end]
    _, mark, rest = text.rpartition("####")
    if mark:
        return rest.partition("\n")[0]
    before, closing, _ = text.rpartition("</answer>")
    _, opening, inside = before.rpartition("<answer>")
    if closing and opening:
        return inside
    phrases = list(_FINAL_ANSWER.finditer(text))
    return text[phrases[-1].end() :].partition("\n")[0] if phrases else None

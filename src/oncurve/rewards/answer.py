"""The accuracy reward: is the answer the model commits itself to the right one? Exact, in linear time, no sympy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from oncurve.rewards.extract import completion_text, extract_answer
from oncurve.rewards.number import MAX_CHARACTERS, Number, parse_number, squeeze, tidy
from oncurve.types import OncurveError


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer ready to be compared: its text without cosmetics, and the number it is, if it is one."""

    text: str
    number: Number | None

    def same_as(self, other: Answer) -> bool:
        """Equal as text, or equal as numbers. An empty answer equals nothing."""
        if not (self.text and other.text):
            return False
        if self.text == other.text:
            return True
        return self.number is not None and other.number is not None and self.number.same_as(other.number)


def read_answer(text: str) -> Answer:
    """Read the bare text of an answer (see ``extract_answer`` for finding it in a completion)."""
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        return Answer(text, None)
    text = tidy(text)
    return Answer(squeeze(text), parse_number(text))


def read_gold(gold: Any) -> Answer:
    r"""Read the right answer as a data set gives it: a number, or a text that is the answer or carries it
    (``... #### 72``, ``\boxed{72}``, by the rules of ``extract_answer``).

    A float stands for the shortest decimal that gives it: 0.1 is 1/10.

    Raises:
        OncurveError: it is empty, NaN, infinite, or neither text nor number. True and False are refused as well, since
            a data set that holds them does not say what the model shall write.
    """
    if isinstance(gold, str):
        found = extract_answer(gold)
        answer = read_answer(gold if found is None else found)
        if not answer.text:
            raise OncurveError(f"{gold!r} is empty; give the right answer, or null to leave the row unscored")
        return answer
    if isinstance(gold, bool) or not isinstance(gold, numbers.Real | Decimal):
        raise OncurveError(f"{gold!r} is a {type(gold).__name__}; give text or a number")
    if not isinstance(gold, numbers.Rational) and not math.isfinite(gold):
        raise OncurveError(f"{gold!r} is no finite number; give the right answer, or null to leave the row unscored")
    return read_answer(str(gold))


def accuracy(
    completions: Sequence[str | Sequence[Mapping[str, Any]]], answer: Sequence[Any], **kwargs: Any
) -> list[float | None]:
    r"""1.0 for each completion whose answer equals the one in the data set's ``answer`` column, else 0.0.

    The completion's answer is found by ``extract_answer``: only after the last ``</think>``; the last balanced
    ``\boxed{...}``, else the line after the last ``####``, else the last ``<answer>`` block, else the line after the
    last ``Final Answer:``; none of these is 0.0. The comparison is exact, with these verdicts:

    * equal to 42: ``42.``, ``42.0``, ``+42``, ``$42``, ``\$42``, ``**42**``, ``\text{42}``
    * equal fractions and decimals: ``0.5``, ``.5``, ``1/2``, ``\frac{1}{2}``, ``\frac12``, ``\dfrac{2}{4}``, ``5e-1``
    * equal with separated thousands: ``12345``, ``12,345``, ``12{,}345``, ``12\,345``, ``12 345``
    * equal powers of ten: ``1500``, ``1.5e3``, ``1.5 \times 10^{3}``; an exponent has at most three digits
    * equal in any script: ``-42`` and ``−42`` (U+2212, also hyphens and the en dash); decimal digits of every script
    * per cent: ``50%`` and ``50\%`` equal ``50`` and also ``0.5``, since data sets differ in who writes the sign
    * units in ``\text`` and degrees: ``42\text{ cm}`` equals ``42`` and not ``42\text{ m}``; ``90^\circ`` equals ``90``
    * not equal: ``0.333`` and ``1/3`` (no tolerance); ``(1,2)`` and ``1,2``; ``x=5`` and ``5``; ``3,14`` and ``3.14``;
      ``1\frac12`` and ``1.5``; ``42 apples`` and ``42``; ``B`` and ``b`` (case counts); ``B`` and ``(B)``

    What is no number by ``parse_number`` is compared as text without its cosmetics (spaces, ``$``, full stop): nothing
    is simplified, so two equations are equal only if they read the same. Texts over 512 characters are equal if they
    are the same to the character.

    Args:
        completions: texts, or lists of messages (the last assistant message counts).
        answer: for each completion the right answer: a number, or a text that is it or carries it as ``#### 72`` or
            ``\boxed{72}``. None leaves the completion unscored.

    Returns:
        One float per completion, None where the answer is None.

    Raises:
        OncurveError: an ``answer`` is empty or neither text nor number (the row is named), or the lengths differ.
    """
    if isinstance(answer, str) or len(answer) != len(completions):
        given = repr(answer) if isinstance(answer, str) else f"{len(answer)} values"
        raise OncurveError(f"`answer` must be a list of {len(completions)} values, one per completion; got {given}")
    scores: list[float | None] = []
    for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
        if gold is None:
            scores.append(None)
            continue
        try:
            right = read_gold(gold)
        except OncurveError as error:
            raise OncurveError(f"row {row}, column `answer`: {error}") from error
        found = extract_answer(completion_text(completion))
        scores.append(float(found is not None and read_answer(found).same_as(right)))
    return scores

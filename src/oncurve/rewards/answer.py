"""Answers read, and compared exactly: in linear time, without sympy."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from oncurve.rewards.extract import extract_answer
from oncurve.rewards.number import MAX_CHARACTERS, Number, parse_number, squeeze, tidy
from oncurve.types import OncurveError

# Words of three letters and more that formulas have; others make a text of what holds them.
_COMMAND = re.compile(r"\\[A-Za-z]+")
_FUNCTION = re.compile(
    r"\b(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?\b|\b(?:log|exp|max|min|gcd|lcm|mod|det|lim|sqrt|pmatrix|bmatrix|vmatrix)\b"
)
_WORD = re.compile(r"[^\W\d_]{3,}")
_MATHEMATICAL = re.compile(r"[0-9\\^_=<>+*/|∞π≤≥]|(?<=.)-|^-")
# What data sets have where an answer is not given: nobody could be right.
_NO_ANSWER = re.compile(
    r"(?:see|refer to|as shown in|given in) (?:the )?(?:figure|diagram|picture|image|graph|table|solution|explanation)"
    r"s?(?: (?:above|below))?|proof|not ?found|n/a|no answer",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer ready to be compared: its text without cosmetics, and the number it is, if it is one."""

    text: str
    number: Number | None
    spaced: str = ""
    """As ``text``, with its spaces: ``1, 234`` is not ``1,234``."""

    @property
    def formula(self) -> bool:
        """It reads like a formula, for a library of formulas to compare: short, mathematical signs, no words."""
        if len(self.text) > MAX_CHARACTERS or not _MATHEMATICAL.search(self.text):
            return False
        return not _WORD.search(_FUNCTION.sub(" ", _COMMAND.sub(" ", self.spaced)))

    @property
    def as_formula(self) -> str:
        """For that library: numbers exactly, everything else as it is spelt."""
        if self.number is None:
            return self.spaced
        value = self.number.value / (100 if self.number.unit == "%" else 1)
        if value.denominator == 1:
            return str(value.numerator)
        sign = "-" if value < 0 else ""
        return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"

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
        return Answer(text, None, text)
    return _read_short(text)


@lru_cache(4096)
def _read_short(text: str) -> Answer:
    text = tidy(text)
    return Answer(squeeze(text), parse_number(text), text)


def read_gold(gold: Any) -> Answer:
    r"""Read the right answer as a data set gives it: a number, or a text that is the answer or carries it
    (``... #### 72``, ``\boxed{72}``, by the rules of ``extract_answer``).

    A float stands for the shortest decimal that gives it: 0.1 is 1/10.

    Raises:
        OncurveError: it is empty, NaN, infinite, neither text nor number, or says that there is no answer ("see
            figure", "proof", "not found"). True and False are refused as well, since a data set that holds them does
            not say what the model shall write.
    """
    if isinstance(gold, str):
        return _read_gold_text(gold)
    if isinstance(gold, bool) or not isinstance(gold, numbers.Real | Decimal):
        raise OncurveError(f"{gold!r} is a {type(gold).__name__}; give text or a number")
    if not isinstance(gold, numbers.Rational) and not math.isfinite(gold):
        raise OncurveError(f"{gold!r} is no finite number; give the right answer, or null to leave the row unscored")
    return read_answer(str(gold))


@lru_cache(4096)
def _read_gold_text(gold: str) -> Answer:
    found = extract_answer(gold)
    answer = read_answer(gold if found is None else found)
    if not answer.text:
        raise OncurveError(f"{gold!r} is empty; give the right answer, or null to leave the row unscored")
    if _NO_ANSWER.fullmatch(answer.spaced):
        raise OncurveError(f"{gold!r} is no answer; give the right one, or null to leave the row unscored")
    return answer

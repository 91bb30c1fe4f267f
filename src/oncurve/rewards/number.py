r"""Numbers as people and models write them, read exactly into fractions. No tolerance, no evaluation, bounded work.

The grammar is closed: what it does not know is not a number, and nothing is ever computed beyond one fraction and one
power of ten, so ``10^{10^{10}}`` or ``\frac{1}{2004!}`` cost nothing.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 512
"""Nothing longer is read as a number."""

_SPACES = re.compile(r"\s+")
_LOOSE_SPACES = re.compile(r" (?=\W)|(?<=\W) ")
_TEXT_COMMAND = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox)"
_WHOLE_TEXT_COMMAND = re.compile(_TEXT_COMMAND + r" ?\{([^{}]*)\}")

# TeX that changes how an answer looks, not what it says. `\,` and its kin may separate thousands: they become spaces.
# A line break (`\\`) is matched first, so that its second half is not taken for the start of a command.
_COSMETIC = re.compile(r"\\\\|\\[!$()\[\]]|\$|\\[,;: ]|~|\{,\}|\\%|\\[dt]frac(?![A-Za-z])")
_COSMETIC_TO = {"\\\\": "\\\\", "\\,": " ", "\\;": " ", "\\:": " ", "\\ ": " ", "~": " ", "{,}": ",", "\\%": "%"}
_COSMETIC_TO |= {"\\dfrac": "\\frac", "\\tfrac": "\\frac"}

# Hyphens and dashes that are written for a minus. (The em dash is not: it is punctuation.)
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")

_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:[+-] ?)?(?:{_WHOLE}(?:\.\d*)?|\.\d+)"
_EXPONENT = r"[+-]?\d{1,3}"  # three digits bound the size of the result
_TEN_TO_THE = rf"10 ?\^ ?(?:(?P<bare>{_EXPONENT})|\{{ ?(?P<braced>{_EXPONENT}) ?\}})"
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_DECIMAL})(?:[eE](?P<e>{_EXPONENT})| ?(?:\\times|\\cdot|[x*×·]) ?{_TEN_TO_THE})?", re.ASCII
)
_POWER_OF_TEN = re.compile(rf"(?P<sign>[+-]?) ?{_TEN_TO_THE}", re.ASCII)
_SLASH = re.compile(rf"(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})", re.ASCII)
_FRAC = re.compile(
    rf"(?P<sign>[+-]?) ?\\frac ?(?:\{{ ?(?P<top>{_DECIMAL}) ?\}}|(?P<top1>\d))"
    rf" ?(?:\{{ ?(?P<bottom>{_DECIMAL}) ?\}}|(?P<bottom1>\d))",
    re.ASCII,
)
_UNIT = re.compile(
    rf" ?(?:(?P<percent>%)|(?P<degree>°|\^ ?(?:\\circ|\{{ ?\\circ ?\}}))"
    rf"|{_TEXT_COMMAND} ?\{{(?P<words>[^{{}}\d]*)\}}(?P<power>(?: ?\^ ?(?:\d|\{{\d\}}))?))\Z"
)
# Words that change the number they follow, so they are no units.
_SCALES = frozenset({"hundred", "thousand", "million", "billion", "trillion", "dozen"})


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value and the unit written behind it ("" for none). 50% is ``Number(Fraction(50), "%")``."""

    value: Fraction
    unit: str = ""

    def same_as(self, other: Number) -> bool:
        """Equal values, and units that agree or of which one is missing.

        A percentage without a partner sign may stand for itself or for its hundredth: 50% is the same as 50 and as 0.5,
        because data sets differ in whether they leave the sign to the question.
        """
        if self.unit and other.unit and self.unit != other.unit:
            return False
        if self.value == other.value:
            return True
        if self.unit == other.unit:
            return False
        return (self.unit == "%" and self.value / 100 == other.value) or (
            other.unit == "%" and other.value / 100 == self.value
        )


def tidy(text: str) -> str:
    r"""A text without what only concerns its looks.

    Removed are math delimiters and ``$``, spacing commands, emphasis stars, one ``\text{...}`` around the whole,
    trailing full stops and runs of space; digits and minus signs of every script become ASCII.
    """
    if not text.isascii():
        # Decimal digits of every script, but not superscripts: 10² is not 102.
        text = "".join(str(unicodedata.decimal(c, c)) for c in text).translate(_MINUS)
    text = _COSMETIC.sub(lambda found: _COSMETIC_TO.get(found[0], ""), text)
    text = _trim(_SPACES.sub(" ", text))
    whole = _WHOLE_TEXT_COMMAND.fullmatch(text)
    return _trim(whole[1]) if whole else text


def squeeze(text: str) -> str:
    """``text`` without the spaces that do not part two words: ``(1, 2)`` becomes ``(1,2)``."""
    return _LOOSE_SPACES.sub("", text)


def parse_number(text: str) -> Number | None:
    """Read a ``tidy`` text of at most ``MAX_CHARACTERS`` as one number; None if it is anything else.

    Integers and decimals with sign; thousands in groups of three after commas or spaces (all the same); ``a/b`` and
    ``\\frac{a}{b}`` of those; scientific notation (``1.5e3``, ``1.5 \\times 10^{3}``, ``10^3``) with an exponent of at
    most three digits; then at most one unit: per cent, degrees, or words in ``\\text{...}``. Not read, and so compared
    as text: mixed numbers, powers other than of ten, roots, sums, intervals, ``x = 5``, bare words after a number.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    unit = ""
    if found := _UNIT.search(text):
        if found["percent"]:
            unit = "%"
        elif found["degree"]:
            unit = "degrees"
        else:
            unit = found["words"].strip() + found["power"].translate({ord(c): None for c in " {}"})
            if not _SCALES.isdisjoint(unit.lower().split()):
                return None
            unit = "%" if unit in ("percent", "per cent") else unit
        text = text[: found.start()]
    value = _value(text)
    return None if value is None else Number(value, unit)


def _trim(text: str) -> str:
    return text.lstrip(" *`").rstrip(" *`.")


def _value(text: str) -> Fraction | None:
    if found := _SCIENTIFIC.fullmatch(text):
        exponent = found["e"] or found["bare"] or found["braced"] or "0"
        return _decimal(found["mantissa"]) * Fraction(10) ** int(exponent)
    if found := _POWER_OF_TEN.fullmatch(text):
        return int(found["sign"] + "1") * Fraction(10) ** int(found["bare"] or found["braced"])
    if found := _SLASH.fullmatch(text):
        return _ratio(found["top"], found["bottom"])
    if found := _FRAC.fullmatch(text):
        value = _ratio(found["top"] or found["top1"], found["bottom"] or found["bottom1"])
        return -value if value is not None and found["sign"] == "-" else value
    return None


def _ratio(top: str, bottom: str) -> Fraction | None:
    denominator = _decimal(bottom)
    return _decimal(top) / denominator if denominator else None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))

r"""Are two formulas equal? math-verify's parser and comparison, with its known wrong verdicts closed. For workers only.

math-verify 0.9.0 takes the part of a text that it can parse for the whole (``4\sqrt(2)`` for 4), and compares numbers
with an absolute tolerance (``1/2004!`` equals ``1/2006!``). Here a text is parsed to its end or not at all, and nothing
is equal that is not also equal at 30 digits, relative to its size, for some values of its variables.

Importing this module needs the extra ``math`` and takes a second; what it compares may take minutes and gigabytes. So
it is imported by the processes of a pool, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

DIGITS = 30
MOST_NESTED = 40
TOLERANCE = 1e-12
"""Relative. Decimals that are no exact value are not equal to one: 1.414214 is not the root of 2."""

_UNICODE = {
    "π": r"\pi ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "×": r"\times ",
    "÷": r"\div ",
    "∈": r"\in ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
}
_ROMAN = re.compile(r"\\(?:mathrm|text|textrm|mathit|operatorname) ?(?:\{ ?([A-Za-z]) ?\}|([A-Za-z])(?![A-Za-z]))")
# What the parser reads as something else: a number in another base, two numbers side by side, an ellipsis, a tower of
# powers without braces, a ratio of three, a box, a double factorial.
_MISREAD = re.compile(
    r"\d ?_|(?<![_\d])\d+ +[\d.]|\\[a-z]?dots|…|\.\.\.|\^ ?(?:[A-Za-z0-9]|\\[A-Za-z]+) ?\^|:.*:|\\f?boxed|__|!!"
)
_SPACING = re.compile(r"\\[,;:! ]|~|\\(?:left|right|displaystyle|limits)(?![A-Za-z])|\\q?quad(?![A-Za-z])")
# The values of variables at which formulas are compared: no small integers, which hide differences.
_POINTS = (("1.7320508", "0.9"), ("2.6457513", "1.3"), ("0.5772156", "2.1"))

Compared = dict[str, Any]
"""``gold`` and ``answer``: could they be read? ``equal``."""


def _comparison() -> Callable[[Sequence[str]], Compared]:
    # Where the extra is missing, importing Oncurve must still work; here, in a worker, it is missing only by mistake.
    import latex2sympy2_extended.latex2sympy2 as latex  # noqa: PLC0415
    import sympy  # noqa: PLC0415
    from antlr4 import Token  # noqa: PLC0415
    from latex2sympy2_extended.logic import And  # noqa: PLC0415
    from math_verify import verify  # noqa: PLC0415
    from sympy.core.relational import Relational  # noqa: PLC0415

    settings = latex.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    kinds: tuple[tuple[str, Any], ...] = (
        ("relation", (Relational, And)),
        ("interval", (sympy.Interval, sympy.Union)),
        ("tuple", sympy.Tuple),
        ("set", sympy.Set),
        ("matrix", sympy.MatrixBase),
        ("number", sympy.Expr),
    )

    def read(text: str) -> Any:
        """The formula that the whole of ``text`` is, or None."""
        text = tidied(text)
        if not text or _MISREAD.search(text) or _depth(text) > MOST_NESTED:
            return None
        parsers: list[Any] = []
        converter = latex._Latex2Sympy()
        create = converter.create_parser

        def remembered(latex_str: str) -> Any:
            parsers.append(create(latex_str))
            return parsers[-1]

        converter.create_parser = remembered  # type: ignore[method-assign]
        try:
            found = converter.parse(latex.normalize_latex(text, settings))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  the parser raises whatever it likes
            found = None
        ended = parsers and parsers[-1].getTokenStream().LT(1).type == Token.EOF
        known = isinstance(found, sympy.Basic | sympy.MatrixBase) and not found.has(sympy.zoo, sympy.nan)
        return found if ended and known else None

    def kind_of(formula: Any) -> str:
        return next((name for name, kind in kinds if isinstance(formula, kind)), "other")

    def at(expression: Any, names: Sequence[Any], point: tuple[str, str]) -> Any:
        first, step = (sympy.Rational(text) for text in point)
        values = {name: first + number * step for number, name in enumerate(names)}
        return sympy.N(expression.subs(values) if values else expression, DIGITS)

    def close(first: Any, second: Any) -> bool:
        if first == second:
            return True
        if not (first.is_number and second.is_number and first.is_finite and second.is_finite):
            return False
        return bool(abs(first - second) <= TOLERANCE * max(abs(first), abs(second)))

    def same_value(gold: Any, answer: Any) -> bool:
        names = sorted(gold.free_symbols | answer.free_symbols, key=str)
        points = _POINTS if names else _POINTS[:1]
        return all(close(at(gold, names, point), at(answer, names, point)) for point in points)

    def same_relation(gold: Any, answer: Any) -> bool:
        """Both sides' difference is the same but for a factor; of an inequality a positive one."""
        if isinstance(gold, And) or isinstance(answer, And):
            parts = [getattr(side, "_unsorted_args", side.args) for side in (gold, answer)]
            return (
                isinstance(gold, And)
                and isinstance(answer, And)
                and len(parts[0]) == len(parts[1])
                and all(map(same_relation, *parts))
            )
        if gold.rel_op in (">", ">="):
            gold = gold.reversed
        if answer.rel_op in (">", ">="):
            answer = answer.reversed
        if gold.rel_op != answer.rel_op:
            return False
        sides = [gold.lhs, gold.rhs, answer.lhs, answer.rhs]
        if not all(isinstance(side, sympy.Expr) for side in sides):
            return gold == answer
        names = sorted(gold.free_symbols | answer.free_symbols, key=str)
        ratios = []
        for point in _POINTS:
            ours, theirs = (at(side.lhs - side.rhs, names, point) for side in (gold, answer))
            if not (ours.is_finite and theirs.is_finite) or ours == 0 or theirs == 0:
                return bool(gold == answer)
            ratios.append(theirs / ours)
        directed = gold.rel_op in ("<", "<=")
        return all(close(ratio, ratios[0]) for ratio in ratios) and not (directed and not ratios[0] > 0)

    def same(gold: Any, answer: Any) -> bool:
        kind = kind_of(gold)
        if kind != kind_of(answer) or kind == "other":
            return False
        if kind == "number":
            return same_value(gold, answer)
        if kind == "relation":
            return same_relation(gold, answer)
        if kind == "matrix":
            return gold.shape == answer.shape and all(map(same_value, gold, answer))
        if kind == "tuple":
            return len(gold) == len(answer) and all(map(same, gold, answer))
        if kind == "interval":
            if not (isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval)):
                return type(gold) is type(answer)  # a union; left to math-verify
            open_alike = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
            return bool(open_alike) and same_value(gold.start, answer.start) and same_value(gold.end, answer.end)
        if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
            rest = list(answer.args)
            for member in gold.args:
                found = next((other for other in rest if same(member, other)), None)
                if found is None:
                    return False
                rest.remove(found)
            return not rest
        return bool(gold == answer)

    def compare(pair: Sequence[str]) -> Compared:
        gold, answer = read(pair[0]), read(pair[1])
        if gold is None or answer is None:
            return {"gold": gold is not None, "answer": answer is not None, "equal": False}
        try:
            # Of relations ``same`` knows more: it allows for a factor.
            equal = same(gold, answer) and (kind_of(gold) == "relation" or verify(gold, answer, timeout_seconds=None))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  sympy raises whatever it likes on formulas that mean nothing
            equal = False
        return {"gold": True, "answer": True, "equal": bool(equal)}

    return compare


def tidied(text: str) -> str:
    r"""``text`` in the words that the parser knows: no Unicode signs, no spacing commands, ``\sqrt(2)`` as
    ``\sqrt{(2)}``, ``\mathrm{e}`` as ``e``."""
    for sign, command in _UNICODE.items():
        text = text.replace(sign, command)
    text = _ROMAN.sub(lambda found: found[1] or found[2], _SPACING.sub(" ", text))
    return _roots(" ".join(text.split()))


def _depth(text: str) -> int:
    """How deep brackets are nested. The parser's time doubles with every few."""
    deepest = depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _roots(text: str) -> str:
    r"""``\sqrt(...)`` with braces around the parentheses."""
    mark = "\\sqrt("
    start = text.find(mark)
    while start >= 0:
        depth, end = 0, -1
        for index in range(start + len(mark) - 1, len(text)):
            depth += (text[index] == "(") - (text[index] == ")")
            if depth == 0:
                end = index
                break
        if end < 0:
            return text
        inner = text[start + len(mark) - 1 : end + 1]
        text = f"{text[:start]}\\sqrt{{{inner}}}{text[end + 1 :]}"
        start = text.find(mark, start + 6)
    return text


compare = _comparison()
"""``[gold, answer]``, texts without cosmetics, to whether they are equal. Runs as long as it likes: see ``Pool``."""

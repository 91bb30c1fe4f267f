"""Text that a model wrote, made fit to look at: nothing hidden in it, and not too long."""

from __future__ import annotations

import unicodedata

# Controls, invisible formatting (bidi overrides, zero-width marks, tags), lone surrogates, line and paragraph ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_WELCOME = frozenset("\n\t\u200c\u200d")  # The last two join letters and emoji as their writers mean it.

Shown = str | dict[str, str | int]
"""Text, or ``{"head", "cut", "tail"}`` with the number of characters left out between."""


def visible(text: str) -> str:
    """``text`` with every character that would not show, or would change how others show, made visible: ESC is ␛, a
    right-to-left override ⟨U+202E⟩."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in _WELCOME or unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def shown(text: str, head: int = 1000, tail: int = 500) -> Shown:
    """``text``, visible and at most ``head + tail`` characters of it: its beginning and, since answers stand there, its
    end."""
    cut = len(text) - head - tail
    if cut <= 0:
        return visible(text)
    return {"head": visible(text[:head]), "cut": cut, "tail": visible(text[-tail:])}

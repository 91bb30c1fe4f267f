"""Which language a sentence is in, by lingua. For the workers of a pool only: it needs the extra ``lang``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Asked = tuple[Sequence[tuple[str, int]], str, Sequence[str]]
"""Sentences with the number of their words, the target, and all languages that come into question."""


def _teller() -> Callable[[Asked], float]:
    # Where the extra is missing, importing Oncurve must still work; here, in a worker, it is missing only by mistake.
    from lingua import Language, LanguageDetectorBuilder  # noqa: PLC0415

    @lru_cache(4)
    def detector(names: tuple[str, ...]) -> Any:
        known = []
        for name in names:
            try:
                known.append(Language.from_str(name))
            except ValueError:
                raise ValueError(f"Unknown language {name!r}; lingua knows them by their English names") from None
        return LanguageDetectorBuilder.from_languages(*known).build()

    def share(asked: Asked) -> float:
        """The share of the words that stand in sentences of the target language."""
        sentences, target, languages = asked
        tell = detector(tuple(languages))
        wanted = Language.from_str(target)
        total = sum(words for _, words in sentences)
        return sum(words for text, words in sentences if tell.detect_language_of(text) == wanted) / total

    return share


share = _teller()

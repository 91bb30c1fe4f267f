"""The language reward: which share of the words is in the target language?"""

from __future__ import annotations

import importlib.util
import math
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from oncurve.rewards.extract import completion_text
from oncurve.rewards.pool import Pool
from oncurve.types import OncurveError

FEWEST_WORDS = 3
"""With fewer, nobody can say."""

SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "Latin": ("LATIN",),
    "Han": ("CJK",),
    "Japanese": ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "Hangul": ("HANGUL",),
    "Cyrillic": ("CYRILLIC",),
    "Greek": ("GREEK",),
    "Arabic": ("ARABIC",),
    "Hebrew": ("HEBREW",),
    "Devanagari": ("DEVANAGARI",),
    "Bengali": ("BENGALI",),
    "Tamil": ("TAMIL",),
    "Telugu": ("TELUGU",),
    "Thai": ("THAI",),
    "Georgian": ("GEORGIAN",),
    "Armenian": ("ARMENIAN",),
    "Ethiopic": ("ETHIOPIC",),
    "Khmer": ("KHMER",),
    "Burmese": ("MYANMAR",),
}
"""Targets that need no library, and how the names of their letters begin in Unicode."""

# Letters of a word where words are not written apart: about what a dictionary has on average.
_LETTERS_A_WORD = {
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), 2),
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR"), 4),
}
# What is no prose. An alternative that is not closed takes a line at most, or all the rest, so the time is linear.
_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)"
    r"|`[^`\n]*`"
    r"|\$\$.*?(?:\$\$|\Z)"
    r"|\$[^$\n]*\$"
    r"|\\\[.*?(?:\\\]|\Z)"
    r"|\\\(.*?(?:\\\)|\Z)"
    r"|\\begin\{.*?(?:\\end\{[^{}\n]*\}|\Z)"
    r"|\\[A-Za-z]+"
    r"|<[^<>\n]*>"
    r"|https?://\S+",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]+(?:['’ʼ-][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?。！？\n]+")


def language_reward(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    target: str = "Latin",
    languages: Sequence[str] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The ``language`` reward: the share of the completion's words that are in the target language, from 0.0 to 1.0.

    Words are counted in the whole completion, thoughts and answer, without code (fenced or in backticks), LaTeX, tags,
    addresses and digits. A word is a run of letters, apostrophes and hyphens within it allowed; where words are not
    written apart, two letters of Chinese or Japanese make one, four of Thai, Lao, Khmer or Burmese. A word that mixes
    scripts counts for the one of most of its letters.

    * By script: ``target`` is one of ``SCRIPTS`` ("Latin", "Han", "Cyrillic", "Japanese", ...). That tells English from
      Chinese, and not from German.
    * By language: ``languages`` are two to six English names of languages, and ``target`` one of them; lingua (extra
      ``lang``) says for each sentence which it is, in a process of its own. Sentences of fewer than three words go with
      the one before.

    None where fewer than three words are left, or the process that tells languages failed.

    Source: DeepSeek-R1 (arXiv 2501.12948) section 2.3.2, "the proportion of target language words in the CoT".
    Deviations: the answer counts as well, and formulas and code do not, whose letters are of no language; a text of too
    few words is not scored.

    Raises:
        OncurveError: an unknown target, fewer than two or more than six languages, or the extra is not installed.
    """
    _check(target, languages)
    texts = [_NO_PROSE.sub(" ", completion_text(completion)) for completion in completions]
    words = [_WORD.findall(text) for text in texts]
    if languages:
        shares = _by_language(texts, words, target, list(languages))
    else:
        wanted = SCRIPTS[target]
        shares = [_share_by_script(found, wanted) for found in words]
    if log_metric is not None:
        log_metric("language/abstained", float(sum(share is None for share in shares)))
    return shares


def _check(target: str, languages: Sequence[str]) -> None:
    if languages:
        if isinstance(languages, str) or not 2 <= len(set(languages)) <= 6:
            raise OncurveError(f"languages = {languages!r}: give two to six names, such as ['English', 'German']")
        if target not in languages:
            raise OncurveError(f"target = {target!r} must be one of languages = {list(languages)}")
        if importlib.util.find_spec("lingua") is None:
            raise OncurveError('languages of the same script need lingua: pip install "oncurve[lang]"')
    elif target not in SCRIPTS:
        raise OncurveError(
            f"target = {target!r} is no script; give one of {', '.join(SCRIPTS)}, or languages as well, such as "
            "target = 'German', languages = ['English', 'German']"
        )


@lru_cache(16384)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _words_by_script(words: Sequence[str]) -> dict[str, int]:
    """How many words there are of each script, by the first word of its letters' names."""
    counts: dict[str, int] = {}
    for word in words:
        runs = [(script, len(list(run))) for script, run in groupby(map(_script, filter(str.isalpha, word)))]
        dense = [(script, size) for script, size in runs if script in _LETTERS_A_WORD]
        sparse = [(script, size) for script, size in runs if script not in _LETTERS_A_WORD]
        for script, size in dense:
            counts[script] = counts.get(script, 0) + math.ceil(size / _LETTERS_A_WORD[script])
        if sparse:
            most = max(sparse, key=lambda run: run[1])[0]
            counts[most] = counts.get(most, 0) + 1
    return counts


def _share_by_script(words: Sequence[str], wanted: Sequence[str]) -> float | None:
    counts = _words_by_script(words)
    total = sum(counts.values())
    return None if total < FEWEST_WORDS else sum(counts.get(script, 0) for script in wanted) / total


def _by_language(
    texts: Sequence[str], words: Sequence[Sequence[str]], target: str, languages: Sequence[str]
) -> list[float | None]:
    sizes = [sum(_words_by_script(found).values()) for found in words]
    rows = [row for row, size in enumerate(sizes) if size >= FEWEST_WORDS]
    outcomes = _language_pool().map([[_sentences(texts[row]), target, languages] for row in rows])
    shares: list[float | None] = [None] * len(texts)
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome.status == "error" and "Unknown language" in outcome.error:
            raise OncurveError(outcome.error)
        shares[row] = outcome.value if outcome.status == "ok" else None
    return shares


def _sentences(text: str) -> list[tuple[str, int]]:
    """Sentences and the number of their words; none shorter than ``FEWEST_WORDS`` but a single one."""
    found: list[tuple[str, int]] = []
    for sentence in _SENTENCE_END.split(text):
        size = sum(_words_by_script(_WORD.findall(sentence)).values())
        if not size:
            continue
        if found and (size < FEWEST_WORDS or found[-1][1] < FEWEST_WORDS):
            before, words = found.pop()
            found.append((f"{before}. {sentence}", words + size))
        else:
            found.append((sentence, size))
    return found


_lock = threading.Lock()
_pool: Pool | None = None


def _language_pool() -> Pool:
    global _pool  # a plain function has no other place for processes that outlive its calls
    with _lock:
        if _pool is None:
            _pool = Pool("oncurve.rewards.tongues:share", seconds=5.0, memory_mb=2048)
        return _pool

"""Made-up words that can be said aloud, drawn from a seed and split so that nothing held out was seen in training.

A word is drawn for the question asked about it: a letter, and how often the word holds it. The letter, the repeats of
the *other* letters and (where a word is long enough) the length are drawn alike for every count, so that neither of
them gives the count away.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from oncurve.types import OncurveError

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
LENGTHS = range(3, 11)
COUNTS = range(5)
SIZES = {"eval": 1000, "validation": 500, "train": 8000}
"""Words in each split. The held-out ones are drawn first; training words must then stay clear of them."""

SHOWCASE = ("strawberry", "r")
"""The question everyone asks. Neither the word nor a relative of it is in any split."""

SUFFIXES = ("ings", "edly", "ing", "ers", "est", "ies", "ed", "er", "es", "ly", "ry", "s", "d", "e", "y")
SHORTEST_NEAR = 5
"""From this many letters on, one letter apart counts as related. (Shorter words are all neighbours of one another.)"""


@dataclass(frozen=True, slots=True)
class Question:
    """How often does ``word`` hold ``letter``?"""

    word: str
    letter: str

    @property
    def count(self) -> int:
        return self.word.count(self.letter)


def stem(word: str) -> str:
    """The word without its inflection: ``baker``, ``bakes``, ``baking`` and ``bake`` all give ``bak``.

    At least three letters stay, so that short words are not all one family."""
    for suffix in SUFFIXES:  # longest first
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def kinship(word: str) -> Iterator[str]:
    """Keys of which related words share at least one: equal words, the same stem, one inflected from the other, or
    (from ``SHORTEST_NEAR`` letters on) a single letter changed, added or left out."""
    yield f"stem:{word}"
    yield f"stem:{stem(word)}"
    if len(word) >= SHORTEST_NEAR:
        yield f"near:{word}"
        for i in range(len(word)):
            yield f"near:{word[:i]}?{word[i + 1 :]}"  # another letter here
            yield f"near:{word[:i]}{word[i + 1 :]}"  # one letter fewer


def draw_question(rng: random.Random, count: int) -> Question:
    """A question whose answer is ``count``. Tries words until one fits, so it takes about 10 draws."""
    while True:
        letter = rng.choice(VOWELS if rng.random() < 0.3 else CONSONANTS)
        length = rng.choice([n for n in LENGTHS if count <= (n + 1) // 2])
        word = _draw_word(rng, length, letter, count)
        if word.count(letter) == count:
            return Question(word, letter)


def _draw_word(rng: random.Random, length: int, letter: str, count: int) -> str:
    """Consonants and vowels in turn, sometimes two of a kind in a row, from a small alphabet: letters come back."""
    vowels = rng.sample(VOWELS.replace(letter, ""), rng.randint(1, 3))
    consonants = rng.sample(CONSONANTS.replace(letter, ""), rng.randint(2, 5))
    own = vowels if letter in VOWELS else consonants
    if count:
        own[:] = [letter] * count + own
    word, in_a_row, vowel = "", 0, rng.random() < 0.4
    while len(word) < length:
        word += rng.choice(vowels if vowel else consonants)
        in_a_row += 1
        if in_a_row == 2 or rng.random() < 0.8:
            vowel, in_a_row = not vowel, 0
    return word


@lru_cache(maxsize=8)
def questions(seed: int) -> dict[str, tuple[tuple[Question, ...], ...]]:
    """For each split, one tuple of questions for each count in ``COUNTS``, equally many, every word used once.

    A word related to one in another split (or to the showcase) is thrown away while drawing."""
    rng = random.Random(f"oncurve words {seed}")
    seen = {SHOWCASE[0]}
    elsewhere = set(kinship(SHOWCASE[0]))
    splits: dict[str, tuple[tuple[Question, ...], ...]] = {}
    for split, size in SIZES.items():
        own: set[str] = set()
        by_count: list[list[Question]] = [[] for _ in COUNTS]
        for i in range(size):
            while True:
                question = draw_question(rng, COUNTS[i % len(COUNTS)])
                keys = set(kinship(question.word))
                if question.word not in seen and not keys & elsewhere:
                    break
            seen.add(question.word)
            own |= keys
            by_count[question.count].append(question)
        elsewhere |= own
        splits[split] = tuple(tuple(column) for column in by_count)
    return splits


def related(words: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Every pair (word, other) that is the same word, shares a stem, is an inflection of the other, or (both having at
    least ``SHORTEST_NEAR`` letters) is one letter apart."""
    by_key: dict[str, list[str]] = {}
    for other in others:
        for key in set(kinship(other)):
            by_key.setdefault(key, []).append(other)
    found = {(word, other) for word in words for key in set(kinship(word)) for other in by_key.get(key, ())}
    return sorted(pair for pair in found if _are_related(*pair))


def _are_related(a: str, b: str) -> bool:
    if stem(a) == stem(b) or stem(a) == b or stem(b) == a:
        return True
    return min(len(a), len(b)) >= SHORTEST_NEAR and _one_apart(a, b)


def _one_apart(a: str, b: str) -> bool:
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b, strict=True)) <= 1
    short, long = sorted((a, b), key=len)
    return len(long) - len(short) == 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def check_split(seed: int) -> dict[str, int]:
    """Look at the words of ``seed`` as they are and confirm that the splits are clean; returns the size of each.

    Raises OncurveError naming the words if one occurs twice or has a relative in another split."""
    splits = {split: [q.word for column in columns for q in column] for split, columns in questions(seed).items()}
    splits["showcase"] = [SHOWCASE[0]]
    for split, words in splits.items():
        if len(set(words)) != len(words):
            raise OncurveError(f"words of seed {seed}: a word occurs twice in the split {split!r}")
    names = list(splits)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if pairs := related(splits[one], splits[other]):
                raise OncurveError(
                    f"words of seed {seed}: {pairs[0][0]!r} ({one}) and {pairs[0][1]!r} ({other}) are related, "
                    f"and {len(pairs) - 1} more pairs; held-out words must have no relative in another split"
                )
    return {split: len(words) for split, words in splits.items()}

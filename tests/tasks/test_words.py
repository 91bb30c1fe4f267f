import random

import pytest

from oncurve.tasks import words
from oncurve.types import OncurveError


def test_splits_are_clean_large_enough_and_balanced():
    assert words.check_split(0) == {"eval": 1000, "validation": 500, "train": 8000, "showcase": 1}
    for columns in words.questions(0).values():
        assert len({len(column) for column in columns}) == 1
        for count, column in enumerate(columns):
            assert all(q.count == count and 3 <= len(q.word) <= 10 for q in column)


def test_words_follow_from_the_seed_alone():
    first = words.questions(3)
    words.questions.cache_clear()
    random.seed(99)
    assert words.questions(3) == first
    assert words.questions(4) != first


@pytest.mark.parametrize(
    ("a", "b"),
    [("bake", "bakes"), ("bake", "baked"), ("bakes", "baking"), ("toxe", "toxer"), ("mudon", "mudonly"),
     ("tary", "tar"), ("plonk", "plank"), ("plonk", "ploonk"), ("same", "same"), ("tomato", "tomatoes")],
)  # fmt: skip
def test_relatives_are_found(a, b):
    assert words.related([a], [b]) == [(a, b)]
    assert words.related([b], [a]) == [(b, a)]


@pytest.mark.parametrize(("a", "b"), [("bat", "bit"), ("plonk", "plon"), ("plonk", "blank"), ("tomato", "potato")])
def test_strangers_are_not(a, b):
    assert words.related([a], [b]) == []


def test_kinship_keys_find_what_the_pairwise_definition_finds():
    """The keys make the search fast; the definition is ``_are_related``. Compare them on every pair of 150 words."""
    some = [q.word for column in words.questions(0)["train"] for q in column[:25]]
    some += [w + "s" for w in some[:10]] + [w[1:] for w in some[10:20]]
    some = sorted(set(some))
    slow = sorted((a, b) for a in some for b in some if words._are_related(a, b))
    assert words.related(some, some) == slow


def test_a_word_in_two_splits_is_an_error(monkeypatch: pytest.MonkeyPatch):
    found = words.questions(0)
    word = found["train"][1][0]
    monkeypatch.setattr(words, "questions", lambda seed: {**found, "eval": ((), (word,))})
    with pytest.raises(OncurveError, match=f"'{word.word}' \\(eval\\) and '{word.word}' \\(train\\) are related"):
        words.check_split(0)


def test_neither_letter_nor_length_gives_the_count_away():
    """The best guess from the letter alone, or from the length alone, is right in fewer than 35 of 100 cases."""
    asked = [q for column in words.questions(0)["train"] for q in column]
    for feature in (lambda q: q.letter, lambda q: len(q.word)):
        table: dict[object, list[int]] = {}
        for q in asked:
            table.setdefault(feature(q), [0] * 5)[q.count] += 1
        assert sum(max(row) for row in table.values()) / len(asked) < 0.35

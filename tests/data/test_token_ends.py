"""Places in a text as places in its tokens, without tokenising anything."""

from __future__ import annotations

from oncurve.data.token_ends import token_ends

PIECES = {0: "a", 1: "bcd", 2: "", 3: "ef", 9: "\n"}


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def test_a_place_within_a_token_belongs_to_the_whole_token():
    assert token_ends([0, 1, 3], [1, 2, 4, 5, 6], decode) == [1, 2, 2, 3, 3]


def test_tokens_without_text_come_after_what_ended_before_them():
    assert token_ends([0, 2, 2, 1, 2], [1, 4], decode) == [1, 4]


def test_bytes_of_one_character_over_several_tokens():
    text = "é€x".encode()
    ids = list(text)
    ends = token_ends(ids, [1, 2, 3], lambda some: bytes(some).decode("utf-8", "replace"))
    # the replacement character of a part counts as the character: at most one character too early
    assert ends[0] in (1, 2)
    assert ends[1] in (3, 4, 5)
    assert ends[2] == 6


def test_nothing_to_place():
    assert token_ends([0, 1], [], decode) == []

"""Values and messages as bytes, and what is right of a value, by literals."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import pytest

from oncurve.rewards.sandbox import same, same_output
from oncurve.rewards.sandbox.inside.wire import WireError, decode, encode, pack, unpack

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (-0.5, -0.5),
        ("a\ud800", "a\ud800"),
        ([1, [2]], ["l", 1, ["l", 2]]),
        ((1, 2), ["t", 1, 2]),
        ({"a": [1]}, ["d", "a", ["l", 1]]),
        ({1}, ["s", 1]),
        (frozenset([1]), ["z", 1]),
        (2**70, ["i", "400000000000000000"]),
        (-(2**70), ["i", "-400000000000000000"]),
        (math.inf, ["f", "inf"]),
        (b"\x00\xff", ["b", "00ff"]),
        (1 + 2j, ["c", "1.0", "2.0"]),
    ],
)
def test_values_there_and_back(value: Any, wire: Any) -> None:
    assert encode(value) == wire
    back = decode(unpack(pack(wire)[4:]))
    assert back == value
    assert type(back) is type(value)
    assert same(value, wire)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
    ],
)
def test_subclasses_cross_as_the_plain_type(value: Any, plain: Any) -> None:
    back = decode(encode(value))
    assert back == plain
    assert type(back) is type(plain)


def test_what_cannot_cross() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (object(), print, (n for n in ()), deep, {"a": {1: object()}}):
        with pytest.raises(WireError):
            encode(value)


@pytest.mark.parametrize(
    "wire",
    [[], [1], ["x"], ["i", "g"], ["i", 5], ["d", 1], ["s", ["l"]], ["b", "0"], ["f"], {"a": 1}, ["l", {}]],
)
def test_what_is_no_value(wire: Any) -> None:
    with pytest.raises(WireError):
        decode(wire)
    for expected in (1, 1.0, "x", [], {}, set(), None, b"", [1]):
        assert not same(expected, wire)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"9" * 5000, b"NaN", b"\xff", b"[1,]"])
def test_what_is_no_message(body: bytes) -> None:
    with pytest.raises(WireError):
        unpack(body)


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        (1, True, True),
        (1, 1.0, True),
        (0.3, 0.1 + 0.2, True),
        (1.0, 1.0 + 1e-6, False),
        (10**400, 1.0, False),
        (2**70, float(2**70), True),
        ("a", "a", True),
        ("1", 1, False),
        (None, 0, False),
        (0, None, False),
        (math.inf, ["f", "inf"], True),
        (math.nan, ["f", "nan"], False),
        ([1, 2], ["t", 1, 2], True),
        ((1, 2), ["l", 1, 2], True),
        ([1, 2], ["s", 1, 2], False),
        ([1], ["l", 1, 2], False),
        ({1, 2}, ["s", 2, 1], True),
        ({1, 2}, ["s", 1, 1], False),
        ({1, 2}, ["s", 1, ["l", 2]], False),
        ({"a": 1}, ["d", "a", 1], True),
        ({"a": 1}, ["d", "a", 2], False),
        ({"a": 1, "b": 1}, ["d", "a", 1, "a", 1], False),
        ({"a": 1}, ["d", ["l"], 1], False),
        ({(1, 2): [3.0]}, ["d", ["t", 1, 2], ["l", 3]], True),
    ],
)
def test_is_it_the_expected_value(expected: Any, got: Any, right: bool) -> None:
    assert same(expected, got) is right


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        ("1 2\n3\n", b"1  2 \n3", True),
        ("1 2", b"1 2\n\n\n", True),
        ("1 2\n3", b"1 2 3", False),
        ("ab", b"a b", False),
        ("1", b"1.0", False),
        ("", b"\n", True),
        ("1", b"", False),
        ("1\n\n2", b"1\n2", False),
        ("1", b"1\xff", False),
    ],
)
def test_is_it_the_expected_output(expected: str, got: bytes, right: bool) -> None:
    assert same_output(expected, got) is right

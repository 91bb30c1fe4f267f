from fractions import Fraction

import pytest

from oncurve.rewards.number import Number, parse_number, squeeze, tidy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-42", -42),
        ("- 42", -42),
        ("+42", 42),
        ("0042", 42),
        ("-0", 0),
        (".5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("42.50", Fraction(85, 2)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("12 345", 12345),
        ("1/2", Fraction(1, 2)),
        ("-1 / 2", Fraction(-1, 2)),
        ("1/-2", Fraction(-1, 2)),
        ("1.5/2", Fraction(3, 4)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\frac{1}{2}", Fraction(-1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac 1{20}", Fraction(1, 20)),
        ("1.5e3", 1500),
        ("1E-2", Fraction(1, 100)),
        (r"1.5 \times 10^{3}", 1500),
        (r"-2\cdot10^-1", Fraction(-1, 5)),
        ("3×10^2", 300),
        ("10^3", 1000),
        ("-10^{2}", -100),
        ("1e999", 10**999),
    ],
)
def test_numbers(text, value):
    assert parse_number(text) == Number(Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        ".",
        "x",
        "5x",
        "x=5",
        "42 apples",
        "42!",
        "--5",
        "1/0",
        r"\frac{5}{0}",
        r"\frac{1}{2004!}",
        r"\frac123",
        "1/2/3",
        "12,34",
        "0,123",
        "1,234 567",
        "1 2",
        "3,14",
        "(1,234)",
        "1e1000",
        "1e9999999999",
        "10^{10^{10}}",
        "2^{10}",
        "1\\frac{1}{2}",
        "10²",
        "٤٢",  # `tidy` makes these ASCII; the grammar is ASCII alone
        "nan",
        "inf",
        "1_000",
        "0x10",
        "9" * 513,
    ],
)
def test_no_numbers(text):
    assert parse_number(text) is None


def test_units():
    assert parse_number("50%") == Number(Fraction(50), "%")
    assert parse_number(r"50 \text{ percent}") == Number(Fraction(50), "%")
    assert parse_number(r"90^\circ") == Number(Fraction(90), "degrees")
    assert parse_number(r"90^{\circ}") == Number(Fraction(90), "degrees")
    assert parse_number(r"\frac{1}{2}\text{ cm}^2") == Number(Fraction(1, 2), "cm^2")
    assert parse_number(r"3\,\mathrm{m}^{2}".replace(r"\,", " ")) == Number(Fraction(3), "m^2")
    assert parse_number(r"5\text{ million}") is None
    assert parse_number(r"5\text{ or }6") is None
    assert parse_number(r"5\text{ or 6}") is None


def test_same_as():
    def number(value, unit=""):
        return Number(Fraction(value), unit)

    assert number(50, "%").same_as(number(50))
    assert number(50, "%").same_as(number("0.5"))
    assert number("0.5").same_as(number(50, "%"))
    assert not number("0.5", "%").same_as(number(50))
    assert not number("0.5", "%").same_as(number(50, "%"))
    assert number(42, "cm").same_as(number(42))
    assert not number(42, "cm").same_as(number(42, "m"))
    assert not number(42, "cm").same_as(number("0.42"))
    assert not number(42, "%").same_as(number(42, "cm"))


def test_tidy():
    assert tidy(" $\\$42.$ ") == "42"
    assert tidy("**73**.") == "73"
    assert tidy(r"\text{13}") == "13"
    assert tidy(r"\(x\)") == "x"
    assert tidy(r"12\,345") == "12 345"
    assert tidy("12\u202f345") == "12 345"
    assert tidy(r"12,\!345") == "12,345"
    assert tidy("12{,}345") == "12,345"
    assert tidy("\u2212٤٢") == "-42"
    assert tidy("４２") == "42"
    assert tidy("10²") == "10²"
    assert tidy(r"50\%") == "50%"
    assert tidy(r"\dfrac{1}{2}") == r"\frac{1}{2}"
    assert tidy(r"1 \\ 2") == r"1 \\ 2"
    assert tidy(" . ") == ""


def test_squeeze_keeps_the_space_between_words():
    assert squeeze("(1, 2)") == "(1,2)"
    assert squeeze("x + 1") == "x+1"
    assert squeeze("see figure 3") == "see figure 3"

"""What is printed, and that nothing a model writes is acted on."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncurve.terminal import Terminal, clean, show_number, show_seconds


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Tty()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain naïve 🍓 text\n\twith tab", "plain naïve 🍓 text\n\twith tab"),
        ("[/b] [bold red]x[/] :smile:", "[/b] [bold red]x[/] :smile:"),
        ("</script><b>x</b>", "</script><b>x</b>"),
        ("a\x1b[2Jb", "ab"),
        ("a\x1b[38;5;1mb\x1b[0m", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1bPq#0;2;0;0;0\x1b\\b", "ab"),
        ("a\x9b2Jb\x9d0;title\x9cc", "abc"),
        ("a\x1bcb\x1b(Bc\x1b7d", "abcd"),
        ("unterminated \x1b]0;title", "unterminated 0;title"),
        ("unterminated \x1b[12", "unterminated 12"),
        ("lone \x1b", "lone "),
        ("\x1b\x1b[2Jx", "x"),
        ("\x1b\u202e[2Jx", "[2Jx"),
        ("over\rwrite\r\nnext\x08\x00\x07\x7f", "overwrite\nnext"),
        ("\u202eabc\u202c \u2066x\u2069", "abc x"),
        ("half \ud83d of a pair", "half  of a pair"),
        ("zero width \u200d joiner and \u200f mark stay", "zero width \u200d joiner and \u200f mark stay"),
    ],
)
def test_clean(text: str, cleaned: str):
    assert clean(text) == cleaned


@given(st.text(st.sampled_from("\x1b[]P0;m\x07\\\x9b\x9d\x9c\ud800\u202e\r\n\tab")))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_nothing_that_is_cleaned_can_come_together_again(text: str):
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert not set(cleaned) & set("\x1b\x07\x9b\x9d\x9c\ud800\u202e\r")


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[1", "\x1b[ ", "\x1b", "\x1bP\x1b\\", "[/b]"])
def test_clean_takes_linear_time(piece: str):
    clean(piece * 200_000)


HOSTILE = "[/b] [red]:smile:\x1b[2J\x1b]0;t\x07</script> \u202eabc \ud800"
HARMLESS = "[/b] [red]:smile:</script> abc "


def test_say_writes_text_as_text_everywhere(tty: Tty):
    plain = io.StringIO()
    Terminal(stream=plain).say(HOSTILE)
    assert plain.getvalue() == HARMLESS + "\n"
    Terminal(stream=tty).say(HOSTILE)
    assert tty.getvalue().rstrip() == HARMLESS.rstrip()


def test_say_does_not_wrap_or_lose_long_lines(tty: Tty):
    Terminal(stream=tty).say("word " * 60 + "end")
    assert tty.getvalue() == "word " * 60 + "end\n"


def test_say_on_a_stream_that_knows_no_unicode():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Terminal(stream=stream).say("naïve 🍓")
    assert raw.getvalue() == rb"na\xefve \U0001f353" + b"\n"


def test_plain_table():
    stream = io.StringIO()
    Terminal(stream=stream).table(
        "held-out", ["name", "value"], [["a\nb [/b]", 0.123456], ["日本", 12345], ["x", None]]
    )
    assert stream.getvalue() == ("held-out\nname       value\na b [/b]  0.1235\n日本      12,345\nx              -\n")


def test_a_table_without_rows_or_title():
    stream = io.StringIO()
    Terminal(stream=stream).table("", ["a", "b"], [])
    assert stream.getvalue() == "a  b\n"


def test_table_on_a_terminal(tty: Tty):
    Terminal(stream=tty).table("[b]t[/b]", ["name", "[i]"], [["[/b]\x1b[2J:smile:", 1.5]])
    for text in ("[b]t[/b]", "[i]", "[/b]:smile:", "1.5"):
        assert text in tty.getvalue()
    assert "\x1b[2J" not in tty.getvalue()


def test_plain_progress_is_a_line_for_each_tenth():
    stream, clock = io.StringIO(), Clock()
    with Terminal(stream=stream, clock=clock).stage("grpo", 40) as stage:
        for iteration in range(40):
            clock.now += 1.5
            stage.advance(1, reward=iteration / 40, **{"held-out accuracy": 0.5})
    lines = stream.getvalue().split("\n")
    assert len(lines) == 11
    assert lines[0] == "grpo  4/40  6 s, about 54 s left  reward 0.075  held-out accuracy 0.5"
    assert lines[9] == "grpo  40/40  1 min 00 s  reward 0.975  held-out accuracy 0.5"
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_plain_progress_of_a_slow_stage_is_a_line_every_half_minute():
    stream, clock = io.StringIO(), Clock()
    with Terminal(stream=stream, clock=clock).stage("grpo", 10_000) as stage:
        for _ in range(100):
            clock.now += 1.0
            stage.advance()
    assert stream.getvalue().split("\n") == [
        "grpo  30/10,000  30 s, about 2 h 46 min left",
        "grpo  60/10,000  1 min 00 s, about 2 h 45 min left",
        "grpo  90/10,000  1 min 30 s, about 2 h 45 min left",
        "",
    ]


def test_progress_of_a_resumed_stage_estimates_from_its_own_pace():
    stream, clock = io.StringIO(), Clock()
    with Terminal(stream=stream, clock=clock).stage("sft", 100, done=85) as stage:
        for _ in range(5):
            clock.now += 2.0
            stage.advance()
    assert stream.getvalue() == "sft  90/100  10 s, about 20 s left\n"


def test_progress_with_nothing_to_do():
    stream = io.StringIO()
    with Terminal(stream=stream).stage("empty", 0) as stage:
        stage.advance(0)
    assert stream.getvalue() == ""


def test_progress_on_a_terminal_shows_count_numbers_and_what_is_said_meanwhile(tty: Tty):
    terminal = Terminal(stream=tty)
    with terminal.stage("[b]grpo", 4) as stage, terminal.stage("evaluation", 2) as inner:
        inner.advance(2, **{"acc[/b]": 0.25})
        stage.advance(3, reward=0.5)
        terminal.say("[/b] said \x1b[2Jmeanwhile")
    with terminal.stage("next", 1) as stage:
        stage.advance()
    shown = tty.getvalue()
    for text in ("[b]grpo", "3/4", "reward 0.5", "evaluation", "2/2", "acc[/b] 0.25", "[/b] said meanwhile\n", "next"):
        assert text in shown
    assert "\x1b[?25h" in shown  # the cursor is back


def test_progress_gives_the_terminal_back_after_an_error(tty: Tty):
    terminal = Terminal(stream=tty)
    with pytest.raises(ValueError, match="boom"), terminal.stage("grpo", 4):
        raise ValueError("boom")
    with terminal.stage("again", 1) as stage:
        stage.advance()
    assert tty.getvalue().rindex("\x1b[?25h") > tty.getvalue().rindex("again")


def test_a_dumb_terminal_gets_plain_lines(tty: Tty, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    with Terminal(stream=tty).stage("sft", 1) as stage:
        stage.advance()
    assert tty.getvalue() == "sft  1/1  0 s\n"


def test_color_forced_by_the_environment_does_not_make_a_pipe_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    terminal = Terminal(stream=stream)
    terminal.table("t", ["a"], [[1]])
    with terminal.stage("s", 1) as stage:
        stage.advance()
    assert "\x1b" not in stream.getvalue()


def test_quiet_says_nothing():
    stream = io.StringIO()
    terminal = Terminal(quiet=True, stream=stream)
    terminal.say("x")
    terminal.table("t", ["a"], [[1]])
    with terminal.stage("s", 1) as stage:
        stage.advance(1, loss=1.0)
    assert stream.getvalue() == ""


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]):
    Terminal().say("hello")
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (1234567, "1,234,567"),
        (0.5, "0.5"),
        (1.0, "1"),
        (12345.0, "12,345"),
        (12345.6, "1.235e+04"),
        (1e-6, "1e-06"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, "True"),
        ("x\x1b[2J", "x"),
    ],
)
def test_show_number(value: object, shown: str):
    assert show_number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (90061, "25 h 01 min"),
    ],
)
def test_show_seconds(seconds: float, shown: str):
    assert show_seconds(seconds) == shown

from __future__ import annotations

import importlib.util
import time

import pytest

from oncurve.rewards import RewardError, language_reward, load_functions
from oncurve.types import OncurveError


def share(text, target="Latin", **options):
    (value,) = language_reward([text], target, **options)
    return value


@pytest.mark.parametrize(
    ("text", "target", "value"),
    [
        ("First we add two and two.", "Latin", 1.0),
        ("First we add two and two.", "Han", 0.0),
        ("First we add two and 三", "Latin", 5 / 6),
        ("我们先把两个数加起来。", "Han", 1.0),
        ("我们先把两个数加起来。", "Latin", 0.0),
        ("First we add. 然后我们计算", "Latin", 3 / 6),  # six letters of Chinese are three words
        ("Сначала сложим два числа", "Cyrillic", 1.0),
        ("まず二つの数を足します", "Japanese", 1.0),
        ("まず二つの数を足します", "Han", 3 / 8),  # 二, 数, 足, and five words of kana
        ("먼저 두 수를 더합니다", "Hangul", 1.0),
        ("It's a well-known fact", "Latin", 1.0),
        ("ΑΒΓ and δεζ or not", "Greek", 2 / 5),
    ],
)
def test_shares_by_script(text, target, value):
    assert share(text, target) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "two words",
        "x = 3.",
        "```python\nfor i in range(3): print(i)\n```",
        r"$\alpha + \beta$ \frac{a}{b}",
        "三",
    ],
)
def test_it_abstains_on_too_few_words(text):
    assert share(text) is None


@pytest.mark.parametrize(
    "noise",
    [
        "```python\nfor counter in range(three): print(counter)\n```",
        "`print(counter)`",
        "$x_{first} + second$",
        "$$x_{first} + second$$",
        r"\[ first + second \]",
        r"\( first + second \)",
        r"\begin{align} first + second \end{align}",
        "<think>",
        "</answer>",
        "https://example.com/some/path",
        "12345 67890",
        "```python\nnever closed, to the end",
    ],
)
def test_what_is_no_prose_is_left_out(noise):
    assert share(f"然后我们计算这个数 {noise}", "Han") == 1.0


def test_prices_are_no_formulas():
    assert share("It costs $5 and then\nsome more of that", "Latin") == 1.0
    assert share("It costs $5 and then\n然后我们计算这个数", "Han") == pytest.approx(5 / 9)


def test_messages_and_counts():
    logged = {}
    completion = [{"role": "assistant", "content": "one two three"}]
    values = language_reward([completion, "1"], log_metric=lambda name, value: logged.update({name: value}))
    assert values == [1.0, None]
    assert logged == {"language/abstained": 1.0}


def test_hostile_lengths():
    texts = [
        "`" * 200_000,
        "$" * 200_001,
        "<" * 200_000,
        r"\(" * 100_000,
        "a" * 200_000,
        "a " * 100_000,
        "```a" * 50_000,
    ]
    texts += [r"\begin{" * 30_000, "$a\n" * 60_000, "a'" * 100_000, "http://" * 30_000]
    for text in texts:
        began = time.process_time()
        share(text)
        assert time.process_time() - began < 0.5, text[:10]


needs_lingua = pytest.mark.skipif(
    importlib.util.find_spec("lingua") is None, reason='needs pip install "oncurve[lang]"'
)
GERMAN = "Zuerst addieren wir die beiden Zahlen. Danach teilen wir das Ergebnis durch drei."
ENGLISH = "First we add up both of the numbers. Then we divide the result by three."


@needs_lingua
def test_shares_by_language():
    both = ["English", "German"]
    values = language_reward([GERMAN, ENGLISH, f"{GERMAN} {ENGLISH}", "Ja. Nein."], "German", both)
    assert values[:2] == [1.0, 0.0]
    assert values[2] == pytest.approx(13 / 28)
    assert values[3] is None
    assert language_reward([GERMAN], "English", both) == [0.0]
    assert language_reward([f"Also. {GERMAN}"], "German", both) == [1.0]  # a word alone goes with the next sentence


@needs_lingua
def test_a_language_that_lingua_does_not_know():
    with pytest.raises(OncurveError, match="Unknown language 'Germn'"):
        language_reward([GERMAN], "English", ["English", "Germn"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "English"}, "target = 'English' is no script; give one of Latin, Han"),
        ({"target": "German", "languages": ["German"]}, "give two to six names"),
        ({"target": "German", "languages": "German"}, "give two to six names"),
        ({"target": "French", "languages": ["English", "German"]}, "must be one of languages"),
    ],
)
def test_wrong_options_are_refused_when_it_is_loaded(options, said):
    with pytest.raises(RewardError, match=rf"rewards.options.language: .*{said}"):
        load_functions(["language"], options={"language": options})


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OncurveError, match=r'pip install "oncurve\[lang\]"'):
        language_reward(["a b c"], "German", ["English", "German"])

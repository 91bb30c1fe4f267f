"""Where steps end: after a text, or where a function says."""

from __future__ import annotations

import pytest

from oncurve.rewards.splitting import is_trusted, step_splitter
from oncurve.types import OncurveError


@pytest.mark.parametrize(
    ("steps", "text", "ends"),
    [
        ("\n", "a\nb\n", [2, 4]),
        ("\n", "a\nb", [2, 3]),
        ("\n", "\n\na\n \nb\n\n", [4, 8]),
        ("</step>", "one</step> two</step>rest", [10, 21, 25]),
        ("</step>", "</step>", []),
        ("\n", "", []),
        ("\n", " \n\t", []),
        ("\n", "x" * 100_000 + "\n" * 100_000, [100_001]),
    ],
)
def test_a_text_ends_steps(steps, text, ends):
    assert step_splitter(steps)(text) == ends


def test_a_function_says_where(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def halves(text):\n    return [len(text) // 2, len(text)]\ndef wrong(text):\n    return [3, 2]\n")
    assert step_splitter(f"{file}:halves")("abcd") == [2, 4]
    assert not is_trusted(f"{file}:halves")
    assert is_trusted("\n")
    with pytest.raises(OncurveError, match=r"step 1 ends at 2 .*from 4 to 5"):
        step_splitter(f"{file}:wrong")("abcde")
    with pytest.raises(OncurveError, match=r"reward_model\.steps = .*has no 'thirds'"):
        step_splitter(f"{file}:thirds")
    file.write_text("def halves(text):\n    return 1 / 0\n")
    with pytest.raises(OncurveError, match=r"ZeroDivisionError"):
        step_splitter(f"{file}:halves")("abcd")
    file.write_text("def halves(text):\n    return 7\n")
    with pytest.raises(OncurveError, match=r"returned 7 \(a int\)"):
        step_splitter(f"{file}:halves")("abcd")


def test_a_text_with_a_colon_is_no_function():
    assert step_splitter("os:system")("aos:systemb") == [10, 11]

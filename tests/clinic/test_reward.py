"""The clinic finds what is wrong with a reward function, and nothing wrong with one that is sound."""

import io
import json
from pathlib import Path

import pytest

from oncurve.cli import main
from oncurve.clinic import cases
from oncurve.clinic.reward import check_reward
from oncurve.terminal import Terminal
from oncurve.types import OncurveError

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(10, 40)]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def examined(function, data, **options):
    stream = io.StringIO()
    findings = check_reward(function, data, [], Terminal(stream=stream), **options)
    failed = {each.check for each in findings if not each.passed}
    assert ("FAILED" in stream.getvalue()) == bool(failed)
    return failed, stream.getvalue()


def written(tmp_path: Path, body: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"import random\n\n\ndef mine(completions, answer, **kwargs):\n{body}\n")
    return f"{path}:mine"


@pytest.mark.parametrize("name", ["accuracy", "oncurve.tasks.countdown:solved"])
def test_a_sound_function_passes(name, data):
    failed, shown = examined(name, data if name == "accuracy" else "task:countdown", rows=30)
    assert failed == set()
    assert shown.endswith(": sound\n")


def test_form_is_judged_as_form(data):
    failed, _ = examined("format", data)
    assert failed == {"answers sprayed", "another row's answer"} or failed == {"another row's answer"}
    assert examined("format", data, form_only=True)[0] == set()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    return [float(str(a) in c) for c, a in zip(completions, answer)]", {"answers sprayed"}),
        ("    return [1.0] * len(completions)", {"junk", "empty", "prompt echoed", "cut in half", "answers sprayed",
                                                   "another row's answer", "text bombs"}),
        ("    return [0.0] * len(completions)", {"right answer"}),
        ("    return [None] * len(completions)", {"right answer"}),
        ("    return [0.5 * c.endswith(f'{{{a}}}') for c, a in zip(completions, answer)]", {"right answer"}),
        ("    return [c.endswith(f'{{{a}}}') - random.SystemRandom().random() for c, a in zip(completions, answer)]",
         {"right answer", "asked twice", "order reversed", "one at a time"}),
        ("    return [float(n % 2 == 0) for n, c in enumerate(completions)]",
         {"right answer", "junk", "empty", "prompt echoed", "answers sprayed", "text bombs", "one at a time",
          "order reversed"}),
        ("    return [float(c.endswith(f'{{{a}}}')) or float('9' in c) for c, a in zip(completions, answer)]", None),
    ],
)  # fmt: skip
def test_a_function_that_is_not_sound_is_found_out(body, found, data, tmp_path):
    failed, _ = examined(written(tmp_path, body), data)
    if found is None:
        assert "text bombs" in failed  # 9**9**9 is no answer
    else:
        assert failed == found


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return [1.0]", "1 values? for|got 1|returned"),
        ("    return {'a': 1}", "dict"),
        ("    return ['yes'] * len(completions)", "yes"),
        ("    return [float('nan')] * len(completions)", "nan"),
        ("    raise ValueError('no')", "ValueError: no"),
    ],
)
def test_a_function_that_breaks_the_contract_is_told_so(body, said, data, tmp_path):
    failed, shown = examined(written(tmp_path, body), data)
    if "nan" in said:
        assert "right answer" in failed
        return
    assert {"right answer", "the rest"} <= failed
    assert [line for line in shown.splitlines() if line.startswith("right answer: ") and "mine" in line]


def test_the_completions_of_the_data_are_tried_first_and_the_best_form_is_taken(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "completion": f"#### {row['answer']}"}) + "\n" for row in ROWS))
    assert "right answers as: the column `completion`" in examined("accuracy", str(path))[1]
    assert "right answers as: think block, then \\boxed{answer}" in examined("format", str(path), form_only=True)[1]


def test_what_is_given_to_it():
    gold, answers = ["A1", "B1", "C2"], ["1", "1", "2"]
    assert cases.shuffled(gold, answers) == ["C2", "C2", "A1"]
    assert cases.sprayed(gold, answers) == ["A1\nC2", "B1\nC2", "A1\nC2\nB1"]
    assert cases.truncated(["abcd", "x"]) == ["ab", ""]
    assert cases.echoed(["q", [{"role": "user", "content": "m"}]]) == ["q", "m"]


def test_the_command_ends_with_0_if_sound_and_1_if_not(data, tmp_path, capsys):
    assert main(["check", "reward", "accuracy", "--data", data, "--rows", "12"]) == 0
    assert "accuracy on 12 rows" in capsys.readouterr().out
    assert main(["check", "reward", written(tmp_path, "    return [1.0] * len(completions)"), "--data", data]) == 1
    assert main(["check", "reward", "accuracy"]) == 2
    assert "Give --data FILE" in capsys.readouterr().err
    assert main(["check", "reward", "acuracy", "--data", data]) == 2
    assert "did you mean 'accuracy'" in capsys.readouterr().err


def test_data_without_answers_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(OncurveError, match="neither a column 'completion' nor a column 'answer' in every row"):
        check_reward("format", str(path), [], Terminal(quiet=True))

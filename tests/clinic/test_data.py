import io
import json
from pathlib import Path

import pytest

from oncurve.cli import main
from oncurve.clinic.data import check_data
from oncurve.terminal import Terminal
from oncurve.types import OncurveError


def looked_at(rows, tmp_path: Path, flags=(), **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stream = io.StringIO()
    wrong = check_data(str(path), list(flags), Terminal(stream=stream), **options)
    return [str(each) for each in wrong], stream.getvalue()


def test_sound_data(tmp_path):
    wrong, shown = looked_at([{"prompt": f"{n}?", "answer": str(n), "level": n} for n in range(12)], tmp_path)
    assert wrong == []
    assert "12 rows" in shown
    assert "questions that were asked before: 0 of 12" in shown
    assert "`answer` can be read in 100.0% of the rows; 0 have none" in shown
    assert shown.endswith("nothing wrong was found\n")


def test_answers_that_no_reward_can_read(tmp_path):
    rows = [
        {"prompt": "a", "answer": ""},
        {"prompt": "b", "answer": "4"},
        {"prompt": "c"},
        {"prompt": "d", "answer": [1]},
    ]
    wrong, shown = looked_at(rows, tmp_path)
    assert "`answer` can be read in 25.0% of the rows; 1 have none" in shown
    (line,) = wrong
    assert line.startswith("column `answer` cannot be read ('' is empty")
    assert line.endswith("2 rows (0, 3)")
    assert looked_at([{"prompt": "a", "answer": None}], tmp_path)[0] == [
        "column `answer` is empty everywhere: 1 rows (0)"
    ]


def test_repeated_questions_are_counted_and_contradictions_are_wrong(tmp_path):
    rows = [{"prompt": "a b", "answer": "1"}, {"prompt": "a  b", "answer": "1"}, {"prompt": "a b", "answer": "2"}]
    wrong, shown = looked_at(rows, tmp_path)
    assert "asked before: 2 of 3" in shown
    assert wrong == ["asked before, with another answer: 1 rows (2)"]


def test_tests_of_programs_are_read(tmp_path):
    rows = [{"prompt": "a", "tests": ["assert f(1) == 2"]}, {"prompt": "b", "tests": ["assert f(1"]}]
    (line,) = looked_at(rows, tmp_path)[0]
    assert "column `tests` cannot be read" in line
    assert line.endswith("1 rows (1)")


def test_what_the_model_reads(tmp_path):
    rows = [{"prompt": "7 + 8", "answer": "15", "completion": "7 + 8 = 15"}, {"prompt": "1 + 2", "completion": "3"}]
    wrong, shown = looked_at(rows, tmp_path, ["--data.suffix", " = ?"], model="embedded:chain")
    assert wrong == []
    assert "7 + 8 = ?<<< generation starts here >>>" in shown
    assert "its last tokens: '7' ' + ' '8' ' = ' '?'" in shown
    lines = {line.split("  ")[0]: line.split()[-4:] for line in shown.splitlines()}
    assert lines["prompt"] == ["5", "5", "5", "10"] or lines["prompt"][-1] == "10"
    assert lines["completion with EOS"] == ["2", "4", "6", "8"]


def test_over_long_prompts_are_found(tmp_path):
    rows = [{"prompt": "1", "answer": "1"}, {"prompt": "1" + " + 1" * 90, "answer": "91"}]
    wrong, _ = looked_at(rows, tmp_path, model="embedded:chain")
    assert wrong == [
        "prompts over 127 tokens (the model's context of 128 less sampling.max_new_tokens = 1): 1 rows (1)"
    ]
    assert looked_at(rows, tmp_path, ["--data.over-long", "drop"], model="embedded:chain")[0] == []


def test_what_training_would_refuse_is_refused(tmp_path):
    with pytest.raises(OncurveError, match=r"data row 1 .*there is no column 'prompt'"):
        looked_at([{"prompt": "a"}, {"question": "b"}], tmp_path)
    with pytest.raises(OncurveError, match="embedded:chains: there is no task 'chains'"):
        looked_at([{"prompt": "a"}], tmp_path, model="embedded:chains")


def test_the_command_takes_a_task_or_a_recipe(tmp_path, capsys):
    assert main(["check", "data", "task:strings", "--model", "embedded:strings", "--rows", "20"]) == 0
    assert "task:strings: 20 rows" in capsys.readouterr().out
    recipe = tmp_path / "r.toml"
    recipe.write_text('[model]\npath = "embedded:chain"\n[data]\ntrain = "task:chain"\nsize = 30\n[sft]\n')
    assert main(["check", "data", str(recipe)]) == 0
    shown = capsys.readouterr().out
    assert "task:chain: 30 rows" in shown
    assert "as embedded:chain reads it" in shown
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": ""}\n')
    assert main(["check", "data", str(path)]) == 1
    assert "WRONG" in capsys.readouterr().out

import io
import sys

import pytest

from oncurve.clinic.tasks import list_tasks, show_task
from oncurve.tasks import TASKS
from oncurve.terminal import Terminal
from oncurve.types import OncurveError


def printed(function, *arguments):
    stream = io.StringIO()
    function(*arguments, Terminal(stream=stream))
    return stream.getvalue()


def test_every_task_is_listed_with_a_sample(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("oncurve.clinic.tasks.gym_names", lambda: ["chain_sum", "countdown"])
    text = printed(list_tasks)
    for name, task in TASKS.items():
        (line,) = [line for line in text.splitlines() if f"task:{name} " in line]
        assert task.showcase[0]["prompt"].strip() in line
    assert "one of 2:\nchain_sum, countdown\n" in text


def test_without_reasoning_gym_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'oncurve[gym]'" in printed(list_tasks)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_one_task_in_full(name):
    text = printed(show_task, f"task:{name}")
    row = TASKS[name].rows(1, 0, "train")[0]
    for column in row:
        assert f"\n{column}\n" in text
    assert row["prompt"].strip() in text
    assert f"{TASKS[name].steps}\n" in text
    assert TASKS[name].demonstrations(1000, 0)[0]["completion"].splitlines()[1] in text


def test_one_of_reasoning_gym():
    pytest.importorskip("reasoning_gym")
    text = printed(show_task, "reasoning_gym:chain_sum")
    assert "\nprompt\n" in text
    assert "\nanswer\n" in text


def test_no_such_task():
    with pytest.raises(OncurveError, match="did you mean 'chain'"):
        show_task("chains", Terminal(quiet=True))

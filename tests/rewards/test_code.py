"""The code rewards, on programs and verdicts written down here. What attacks the sandbox is in tests/faults/sandbox."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from oncurve.rewards import code as module
from oncurve.rewards.code import (
    code_partial_reward,
    code_reward,
    code_speed_reward,
    extract_code,
    sandbox_for,
)
from oncurve.rewards.code_tests import Code, Function, Grade, Program, read_tests
from oncurve.rewards.sandbox import Call, current_sandbox, use_sandbox
from oncurve.rewards.sandbox.levels import Way
from oncurve.types import OncurveError
from sandboxes import lacking


def fenced(program: str, mark: str = "python") -> str:
    return f"Here it is.\n```{mark}\n{program}\n```\n"


# -- the program in a completion --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (fenced("x = 1"), "x = 1\n"),
        (fenced("x = 1", ""), "x = 1\n"),
        (fenced("x = 1", "py"), "x = 1\n"),
        (fenced("x = 1", "Python3"), "x = 1\n"),
        (fenced("x = 1") + fenced("x = 2"), "x = 2\n"),
        (fenced("x = 1") + fenced("ls", "sh"), "x = 1\n"),
        (fenced("x = 1") + "```python\nx = 2", "x = 1\n"),
        ("~~~\nx = 1\n~~~", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("<think>" + fenced("x = 1") + "</think>" + fenced("x = 2"), "x = 2\n"),
        ("<think>" + fenced("x = 1") + "</think>x = 3", "x = 3"),
        ("x = 1", "x = 1"),
        ("```python\nx = 1", None),
        (fenced("ls", "sh"), None),
        ("", None),
        ("  \n", None),
    ],
)
def test_the_program_of_a_completion(text: str, program: str | None) -> None:
    assert extract_code(text) == program


# -- tests as data sets give them -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"stdin": "1", "stdout": "2"}, [Program("1", "2")]),
        ([{"input": "1", "output": "2"}], [Program("1", "2")]),
        ({"inputs": ["1", "3"], "outputs": ["2", "4"]}, [Program("1", "2"), Program("3", "4")]),
        ({"inputs": [[1]], "outputs": [2], "fn_name": "g"}, [Function(Call("g", (1,)), 2)]),
        ({"call": [1], "returns": 2}, [Function(Call("f", (1,)), 2)]),
        ({"call": [1], "returns": 2, "function": "g"}, [Function(Call("g", (1,)), 2)]),
        ({"input": "[1]\n2", "output": "3", "testtype": "functional"}, [Function(Call("f", ([1], 2)), 3)]),
        ("assert f(1) == 2", [Code("assert f(1) == 2")]),
        (["assert f(1) == 2", {"code": "assert f(2)"}], [Code("assert f(1) == 2"), Code("assert f(2)")]),
        ('[{"stdin": "1", "stdout": "2"}]', [Program("1", "2")]),
    ],
)
def test_the_forms_of_tests(given: Any, read: list[Any]) -> None:
    assert read_tests(given, "f") == read


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no test"),
        ("[]", "no test"),
        ("", "no test"),
        (3, "no test: 3"),
        ({"stdin": "1"}, "no test"),
        ("assert (", "no Python"),
        ("[1", "not JSON"),
        ({"inputs": ["1"], "outputs": []}, "same length"),
        ({"call": [1], "returns": 2}, "entry_point"),
        ({"call": [object()], "returns": 2, "function": "f"}, "object is no plain value"),
    ],
)
def test_what_is_no_test(given: Any, said: str) -> None:
    with pytest.raises(OncurveError, match=said):
        read_tests(given)


def test_errors_name_the_row() -> None:
    with pytest.raises(OncurveError, match=r"row 1, the tests: no test: 3"):
        code_reward(["a", "b"], tests=["assert 1", 3])
    with pytest.raises(OncurveError, match=r"`tests` must be a list of 2"):
        code_reward(["a", "b"], tests=["assert 1"])


# -- rewards ----------------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

RIGHT = fenced("def double(x):\n    return 2 * x")
SLOW = fenced("def double(x):\n    for _ in range(2_000_000): pass\n    return 2 * x")
WRONG = fenced("def double(x):\n    return x + 2")  # right for 2
CALLS = [{"call": [2], "returns": 4, "function": "double"}, {"call": [3], "returns": 6, "function": "double"}]
ASSERTS = ["assert double(2) == 4", "assert double(3) == 6"]
PRINTING = [{"stdin": "2\n", "stdout": "4"}, {"stdin": "3\n", "stdout": "6"}]


@pytest.fixture
def sandbox() -> Iterator[None]:
    """The level that most machines have; nothing of an earlier test is remembered."""
    reason = lacking(Way("landlock", None))
    if reason:
        pytest.skip(reason)
    use_sandbox("landlock")
    module._kept.clear()
    yield
    current_sandbox().close()


@linux
@pytest.mark.parametrize("tests", [CALLS, ASSERTS, json.dumps(CALLS)], ids=["calls", "asserts", "json"])
def test_right_and_wrong(sandbox: None, tests: Any) -> None:
    texts = [RIGHT, WRONG, fenced("def double(x"), fenced("def other(x): pass"), ""]
    assert code_reward(texts, tests=[tests] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert code_partial_reward(texts, tests=[tests] * 5) == [1.0, 0.5, 0.0, 0.0, 0.0]


@linux
def test_programs_that_read_and_print(sandbox: None) -> None:
    texts = [
        fenced("print(2 * int(input()))"),
        fenced("print(f'  {2 * int(input())} \\n\\n')"),
        fenced("print(2 + int(input()))"),
        fenced("print(2 * int(input())); raise ValueError"),
        fenced("print('4 ' + str(int(input())))"),
        fenced("import sys\nprint(2 * int(sys.stdin.read()))\nsys.exit()"),
        fenced("if __name__ == '__main__':\n    print(2 * int(input()))"),
        fenced("import threading\nthreading.Thread(target=lambda: print(2 * int(input()))).start()"),
        fenced("import atexit\nx = int(input())\natexit.register(lambda: print(2 * x))"),
    ]
    assert code_partial_reward(texts, tests=[PRINTING] * 9) == [1.0, 1.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


@linux
@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("class Solution:\n    def double(self, x): return 2 * x", CALLS[0]),
        ("def double(x): return 2.0 * x + 1e-13", CALLS[0]),
        ("def f(): return (1, [2, (3,)])", {"call": [], "returns": [1, [2, [3]]], "function": "f"}),
        (
            "from collections import Counter\ndef f(s): return Counter(s)",
            {"call": ["aab"], "returns": {"a": 2, "b": 1}},
        ),
        ("def f(): return {1, 2}", {"call": [], "returns": {1, 2}}),
        ("def f(): return 2**100", {"call": [], "returns": 2**100}),
        ("def f(): return '\\ud800'", {"call": [], "returns": "\ud800"}),
        ("def f(): return None", {"call": [], "returns": None}),
        ("def f(a, b=1): return a + b", "assert f(1) == f(a=1, b=1) == 2"),
        ("def f(x): raise ValueError('no')", "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'"),
        ("def f(x): raise TypeError('no')", "try:\n    f(1)\n    assert False\nexcept TypeError:\n    pass"),
        ("def f(x): return x", "assert math.isclose(f(0.1 + 0.2), 0.3)"),
        ("def f(x): return x", "def check(candidate):\n    for n in range(50):\n        assert candidate(n) == n"),
        ("import asyncio\nasync def g(): return 4\ndef f(): return asyncio.run(g())", {"call": [], "returns": 4}),
    ],
)
def test_right_by_the_rules(sandbox: None, program: str, test: Any) -> None:
    assert code_reward([fenced(program)], tests=[[test]], entry_point=["f"]) == [1.0]


@linux
@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): return '4'", {"call": [], "returns": 4}),
        ("def f(): return 4", {"call": [], "returns": "4"}),
        ("def f(): return [1, 2]", {"call": [], "returns": {1, 2}}),
        ("def f(): return [1, 2, 3]", {"call": [], "returns": [1, 2]}),
        ("def f(): return {'a': 1, 'b': 2}", {"call": [], "returns": {"a": 1}}),
        ("def f(): return None", {"call": [], "returns": 0}),
        ("def f(): return float('nan')", {"call": [], "returns": float("nan")}),
        ("def f(): return 1.001", {"call": [], "returns": 1.0}),
        ("def f(): return lambda: 1", {"call": [], "returns": 1}),
        ("def f(x): return x", "def check(candidate):\n    assert candidate(1) == 2"),
    ],
)
def test_wrong_by_the_rules(sandbox: None, program: str, test: Any) -> None:
    assert code_reward([fenced(program)], tests=[[test]], entry_point=["f"]) == [0.0]


@linux
def test_hidden_tests_count(sandbox: None) -> None:
    logged: dict[str, Any] = {}
    knows = fenced("def double(x):\n    return {2: 4, 3: 6}[x]")
    hidden = [{"call": [7], "returns": 14, "function": "double"}]
    rewards = code_reward(
        [RIGHT, knows, WRONG],
        tests=[CALLS] * 3,
        hidden_tests=[hidden] * 3,
        log_extra=logged.__setitem__,
        log_metric=logged.__setitem__,
    )
    assert rewards == [1.0, 0.0, 0.0]
    assert logged["code/hidden_failed"] == 1.0
    assert logged["code/passed"] == [3, 2, 1]
    assert logged["code/status"] == ["ok", "exception", "ok"]


@linux
def test_no_tests_is_unscored(sandbox: None) -> None:
    assert code_reward([RIGHT, RIGHT], tests=[None, CALLS]) == [None, 1.0]


@linux
def test_the_sandbox_at_fault_is_unscored(sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncurve.rewards.code.grade", lambda *_, **__: Grade((False,), "infra_error", None, 1))
    assert code_reward([RIGHT], tests=[CALLS]) == [None]
    assert code_partial_reward([RIGHT], tests=[CALLS]) == [None]
    assert code_speed_reward([RIGHT], tests=[CALLS]) == [None]
    monkeypatch.undo()
    assert code_reward([RIGHT], tests=[CALLS]) == [1.0], "a run of which nothing is known is not remembered"


@linux
def test_a_program_is_run_once(sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []

    def counted(source: str, *_: Any, **__: Any) -> Grade:
        sources.append(source)
        return Grade((True,), "ok", 0.0, 1)

    monkeypatch.setattr("oncurve.rewards.code.grade", counted)
    assert code_reward([RIGHT, RIGHT, WRONG], tests=[CALLS] * 3) == [1.0, 1.0, 1.0]
    assert code_partial_reward([RIGHT], tests=[CALLS]) == [1.0]
    assert len(sources) == 2


@linux
def test_speed_is_relative_to_the_fastest_of_the_group(sandbox: None) -> None:
    fast, slow, wrong = code_speed_reward([RIGHT, SLOW, WRONG], tests=[CALLS] * 3, prompts=["a"] * 3)
    assert fast == 1.0
    assert slow is not None
    assert 0.0 < slow < 0.5
    assert wrong == 0.0
    assert code_speed_reward([RIGHT, SLOW], tests=[CALLS] * 2, prompts=["a", "b"]) == [1.0, 1.0]
    assert code_speed_reward([WRONG], tests=[CALLS]) == [0.0]


@linux
def test_speed_is_relative_to_a_reference(sandbox: None) -> None:
    reference = "def double(x):\n    return 2 * x"
    (slow,) = code_speed_reward([SLOW], tests=[CALLS], reference_solution=[reference])
    assert slow is not None
    assert slow < 0.5
    assert code_speed_reward([RIGHT], tests=[CALLS], reference_solution=[extract_code(SLOW)]) == [1.0]
    with pytest.raises(OncurveError, match=r"row 0: `reference_solution` fails test 1"):
        code_speed_reward([RIGHT], tests=[CALLS], reference_solution=["def double(x): return x + 2"])


# -- the level --------------------------------------------------------------------------------------------------------


def test_only_code_needs_a_sandbox() -> None:
    assert sandbox_for([len], "no such level") is None


@linux
def test_the_level_is_told(sandbox: None) -> None:
    told = sandbox_for([len, code_reward], "landlock")
    assert told is not None
    assert told.startswith("landlock (Landlock ")
    assert current_sandbox().level == "landlock"

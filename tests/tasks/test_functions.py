import sys
from collections.abc import Iterator

import pytest

from oncurve.rewards import code_partial_reward, code_reward
from oncurve.rewards.sandbox import current_sandbox, use_sandbox
from oncurve.rewards.sandbox.levels import Way
from oncurve.tasks import functions
from sandboxes import lacking

NUMBERS = ("x", ("times 2", "subtract 3", "at least 4"))
LISTS = ("xs", ("keep over 3", "reverse", "the list"))


def test_programs_read_like_this():
    assert functions.said(NUMBERS) == "f(x): times 2, subtract 3, at least 4"
    assert functions.program(NUMBERS) == (
        "def f(x):\n    x = x * 2\n    x = x - 3\n    x = max(x, 4)\n    return x"
    )  # fmt: skip
    assert functions.program(NUMBERS, [False, True, True], returned=False) == (
        "def f(x):\n    x = x * 2\n    x = x + 3\n    x = min(x, 4)\n    x"
    )  # fmt: skip
    assert functions.program(LISTS) == "def f(xs):\n    xs = [x for x in xs if x > 3]\n    xs = xs[::-1]\n    return xs"
    (row,) = functions.TASK.showcase
    assert row["prompt"] == "f(x): square, subtract 4, at most 9. f(2) = 0\n"


@pytest.mark.parametrize(
    ("question", "value", "result"),
    [(NUMBERS, 5, 7), (NUMBERS, 1, 4), (LISTS, [1, 5, 9], [9, 5]), (("xs", ("drop first", "sum")), [], 0),
     (("xs", ("times 2 each", "sort", "count")), [3, 1], 2), (("x", ("halve", "modulo 3")), -5, 0),
     (("xs", ("add 2 to each", "the list")), [1], [3]), (("x", ("square", "at most 9")), -4, 9)],
)  # fmt: skip
def test_what_is_said_is_what_is_done(question, value, result):
    assert functions.run(question, value) == result


def test_every_program_does_what_its_tests_say():
    """Python's own word on the texts, not the table's that the tests were made of."""
    for row in functions.rows(600, 0, "eval"):
        space: dict = {}
        exec(row["answer"], space)
        assert len(row["tests"] + row["hidden_tests"]) == functions.TESTS
        for test in row["tests"] + row["hidden_tests"]:
            assert space["f"](*test["call"]) == test["returns"]
        (shown,) = row["tests"]
        assert row["prompt"] == f"{row['said']}. f({shown['call'][0]}) = {shown['returns']}\n"


def test_no_operation_is_without_effect_and_a_constant_does_not_pass():
    assert functions.inputs(("xs", ("reverse", "sum"))) is None
    assert functions.inputs(("xs", ("add 3 to each", "count"))) is None
    for row in functions.rows(300, 0, "train"):
        returns = [repr(test["returns"]) for test in row["tests"] + row["hidden_tests"]]
        assert len(set(returns)) >= 4


def test_held_out_questions_are_in_no_seed_s_training_rows():
    held_out = {row["said"] for row in functions.rows(1000, 1, "eval")}
    assert not held_out & {row["said"] for row in functions.demonstrations(4000, 0)}


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("def f(x):\n    x = x * 2\n    x = x - 3\n    x = max(x, 4)\n    return x", [1, 1, 1, 1, 1]),
        ("def f(x):\n    x = x * 2\n    x = x + 3\n    x = max(x, 4)\n    x", [1, 1, 0, 1, 0]),
        ("def f(xs):\n    x = x * 2\n\n    x = x - 3 \n", [0, 1, 1]),
        ("def f(x):\n  x = x * 2\n    x = max(x, 4)\n    return x\n    return x\n    return x", [1, 0, 0, 0, 1, 0]),
    ],
)
def test_a_line_is_a_step(text, rewards):
    (steps,) = functions.functions_steps(completions=[text], answer=[functions.program(NUMBERS)])
    assert [reward for _, reward in steps] == rewards
    assert steps[-1][0] == len(text)


@pytest.fixture
def sandbox() -> Iterator[None]:
    reason = lacking(Way("landlock", None)) if sys.platform == "linux" else "the sandbox needs Linux"
    if reason:
        pytest.skip(reason)
    use_sandbox("landlock")
    yield
    current_sandbox().close()


def test_code_rewards_the_right_program_and_no_single_slip(sandbox: None):
    asked = functions.rows(40, 0, "eval")
    completions: list[str] = []
    rows: list[dict] = []
    right: list[float] = []
    for row in asked:
        argument, _, parts = row["said"].removeprefix("f(").partition("): ")
        question = (argument, tuple(parts.split(", ")))
        count = len(question[1]) - (argument == "xs")
        slips = [tuple(i == k for i in range(count)) for k in range(count)]
        texts = [functions.program(question, slip) for slip in [(), *slips]] + [functions.program(question, (), False)]
        completions += texts
        rows += [row] * len(texts)
        right += [1.0] + [0.0] * (len(texts) - 1)
    columns = {name: [row[name] for row in rows] for name in ("tests", "hidden_tests", "entry_point")}
    assert code_reward(completions, **columns) == right
    partial = code_partial_reward(completions, **columns)
    assert all((share == 1.0) == (score == 1.0) for share, score in zip(partial, right, strict=True))


def test_what_a_small_model_may_write_gets_0_and_no_error(sandbox: None):
    (row,) = functions.rows(1, 0, "eval")
    texts = [
        "",
        "def f(",
        "def f(x):\n    return f(x)",
        "return x",
        "def f(x):\n    x = x // 0\n    return x",
        "f" * 900,
    ]
    columns = {name: [row[name]] * len(texts) for name in ("tests", "hidden_tests", "entry_point")}
    assert code_reward(texts, **columns) == [0.0] * len(texts)

"""A user's reward function in a process of its own: it is called as before, and cannot take the trainer with it."""

from __future__ import annotations

import math
import os
import random
import sys
import time

import pytest

from oncurve.rewards import NamedReward, RewardError, check_signature, load_functions, score
from oncurve.types import Completion, Group, OncurveError, Prompt


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(text, *names):
        (tmp_path / "mine.py").write_text(text)
        return load_functions([f"mine.py:{name}" for name in names or ("mine",)])

    return write


def group(prompt_id, texts, raw="2+3?", **columns):
    prompt = Prompt(id=prompt_id, raw=raw, text=f"<{raw}>", token_ids=(1,), columns=columns)
    return Group(prompt, tuple(Completion((len(text), 2), text, (-0.5, -0.5), False) for text in texts))


TEN = [group(0, list("abcde"), answer="5"), group(1, list("fghij"), answer="6")]

HANGS = """
import time, re
def mine(completions, **kwargs):
    for text in completions:
        if text in {bad!r}:
            {how}
    return [1.0] * len(completions)
mine.seconds = 0.1
"""


@pytest.mark.parametrize("how", ["time.sleep(1e6)", "re.match('(a+)+$', 'a' * 60 + 'b')", "exec('while True: pass')"])
def test_an_item_that_hangs_is_unscored_and_nothing_else_is(load, how, caplog):
    began = time.monotonic()
    scores = score(TEN, load(HANGS.format(bad="c", how=how)))
    assert scores.parts["mine"] == ((1.0, 1.0, None, 1.0, 1.0), (1.0,) * 5)
    assert scores.sums["rewards/mine/failed"] == scores.sums["rewards/mine/timeout"] == 1.0
    assert time.monotonic() - began < 15.0
    assert "gave no answer: nothing within 1 s" in caplog.text
    assert 'mine.py", line ' in caplog.text  # where it stood


def test_more_than_a_fifth_that_hang_stop_the_run(load):
    with pytest.raises(RewardError, match=r"reward 'mine' failed for 3 of the first 10 .*nothing within 0.1 s"):
        score(TEN, load(HANGS.format(bad="cij", how="time.sleep(1e6)")))


def test_one_that_ends_its_process_or_eats_memory(load, caplog):
    text = """
import os
def mine(completions, **kwargs):
    if "c" in completions: os._exit(7)
    if "h" in completions: hold = [bytearray(1 << 24) for _ in range(1000)]
    return [1.0] * len(completions)
mine.memory_mb = 300
"""
    scores = score(TEN, load(text))
    assert scores.parts["mine"] == ((1.0, 1.0, None, 1.0, 1.0), (1.0, 1.0, None, 1.0, 1.0))
    assert scores.sums["rewards/mine/failed"] == 2.0
    assert "rewards/mine/timeout" not in scores.sums
    assert "its process ended (exit code 7)" in caplog.text


EVERYTHING = """
import asyncio, os
def mine(prompts, completions, completion_ids, prompt_texts, answer, level, trainer_state, log_extra, log_metric):
    '''All that a function is offered.'''
    log_extra("seen", [str((p, c, i, t, a, l)) for p, c, i, t, a, l in
                       zip(prompts, completions, completion_ids, prompt_texts, answer, level)])
    log_metric("pid", os.getpid())
    log_metric("iteration", trainer_state["iteration"])
    return [float(len(text)) for text in completions]

async def waits(completions, **kwargs):
    await asyncio.sleep(0)
    return [None for _ in completions]

def tuples(completions): return tuple((1, 0.5) for _ in completions)
tuples.step_ends = "tokens"
tuples.whole_group = True
"""


def test_it_is_offered_what_it_would_be_here(load):
    rewards = load(EVERYTHING, "mine", "waits")
    groups = [group(0, ["a", "bb"], answer="5", level=(1, 2)), group(1, ["ccc"], answer=None)]
    scores = score(groups, rewards, trainer_state={"iteration": 7})
    assert scores.parts == {"mine": ((1.0, 2.0), (3.0,)), "waits": ((None, None), (None,))}
    assert scores.extras["seen"] == (
        ("('2+3?', 'a', [1, 2], '<2+3?>', '5', [1, 2])", "('2+3?', 'bb', [2, 2], '<2+3?>', '5', [1, 2])"),
        ("('2+3?', 'ccc', [3, 2], '<2+3?>', None, None)",),
    )
    assert scores.metrics["iteration"] == 7.0
    assert scores.metrics["pid"] != os.getpid()


def test_signature_and_attributes_are_the_functions_own(load):
    mine, waits, tuples = load(EVERYTHING, "mine", "waits", "tuples")
    with pytest.raises(RewardError, match="'mine' requires `level`"):
        check_signature(mine, ["answer"])
    check_signature(waits, [])
    assert (tuples.function.step_ends, tuples.function.whole_group) == ("tokens", True)
    assert tuples.function(completions=["a"]) == [[1, 0.5]]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("[1.0]", r"reward 'mine' \(.*\.py\) returned 1 value; expected 10"),
        ("None", r"returned None \(a NoneType\)"),
        ("object()", r"returned <object object at .*> \(a object\)"),
        ("[{1: 2}] * 10", r"returned \{1: 2\} \(a dict\)"),
        ("[1j] * 10", r"returned 1j \(a complex\)"),
        ("[True] * 10", r"returned True \(a bool\)"),
        ("[float('nan')] * 10", "returned nan"),
        ("['1'] * 10", r"returned '1' \(a str\)"),
    ],
)
def test_what_it_must_not_return(load, returned, said):
    with pytest.raises(RewardError, match=said):
        score(TEN, load(f"def mine(completions): return {returned}\n"))


@pytest.mark.parametrize(
    "returned",
    [
        "torch.ones(10, requires_grad=True)",
        "numpy.ones(10, dtype=numpy.float32)",
        "[torch.tensor(1.0)] * 10",
        "[fractions.Fraction(1)] * 10",
    ],
)
def test_numbers_of_other_kinds(load, returned):
    rewards = load(f"import torch, numpy, fractions\ndef mine(completions): return {returned}\n")
    assert score(TEN, rewards).parts["mine"] == ((1.0,) * 5, (1.0,) * 5)


def test_errors_say_where(load, caplog):
    text = "def mine(completions):\n    if len(completions) > 0:\n        return helper(completions)\n"
    text += "def helper(texts): return [1 / 0 for text in texts]\n"
    with pytest.raises(RewardError) as caught:
        score(TEN, load(text))
    said = str(caught.value)
    assert said.startswith("reward 'mine' failed: ")
    assert "mine.py, line 4 (`def helper(texts): return [1 / 0 for text in texts]`): ZeroDivisionError" in said
    assert "serve.py" not in caplog.text
    assert caplog.text.count("ZeroDivisionError: division by zero") == 1


def test_wrong_data_stops_at_once(load):
    text = "from oncurve.types import OncurveError\ndef mine(completions): raise OncurveError('row 3: empty')\n"
    with pytest.raises(RewardError, match=r"^reward 'mine' failed: row 3: empty"):
        score(TEN, load(text))


def test_a_column_that_cannot_be_sent_names_the_way_out(load):
    rewards = load("def mine(completions, picture): return [1.0] * len(completions)\n")
    with pytest.raises(RewardError, match=r"`picture` holds .* \(a object\).*`inline:`"):
        score([group(0, ["a"], picture=object())], rewards)


def test_inline_runs_here(load, tmp_path):
    load("import os\ndef mine(completions): return [float(os.getpid())] * len(completions)\n")
    (here,) = load_functions([f"inline:{tmp_path}/mine.py:mine"])
    (there,) = load_functions([f"{tmp_path}/mine.py:mine"])
    assert here.name == there.name == "mine"
    assert here.function(completions=["a"]) == [os.getpid()]
    assert there.function(completions=["a"]) != [os.getpid()]


def test_state_is_kept_between_calls_and_lost_with_the_process(load):
    text = """
import os, random, time
seen = []
def mine(completions, **kwargs):
    seen.extend(completions)
    random.random()
    os.chdir("/")
    if completions == ["stop"]: time.sleep(60)
    return [float(len(seen))] * len(completions)
def draw(completions): return [random.random()] * len(completions)
mine.seconds = 0.2
"""
    mine, draw = load(text, "mine", "draw")
    drawn = draw.function(completions=["a"])
    assert mine.function(completions=["a", "b"]) == [2.0, 2.0]
    assert mine.function(completions=["c"]) == [3.0]
    with pytest.raises(Exception, match=r"nothing within 0.2 s"):
        mine.function(completions=["stop"])
    assert mine.function(completions=["d"]) == [1.0]
    assert draw.function(completions=["a"]) == drawn  # the same draws each time, as a run that is resumed has them
    assert draw.function(completions=["a"]) == drawn


def test_it_sees_the_trainers_paths_and_directory(load, tmp_path):
    (tmp_path / "neighbour_of_supervised.py").write_text("ONE = 1.0\n")
    (tmp_path / "file.txt").write_text("2")
    rewards = load(
        "import neighbour_of_supervised\n"
        "def mine(completions):\n"
        "    return [float(open('file.txt').read()) + neighbour_of_supervised.ONE] * len(completions)\n"
    )
    assert score(TEN, rewards).totals[0][0] == 3.0


def test_a_fork_of_the_trainer_gets_a_process_of_its_own(load):
    (mine,) = load("import os\ndef mine(completions): return [float(os.getpid())] * len(completions)\n")
    ours = mine.function(completions=["a"])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(mine.function(completions=["a"]) != ours).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"True"
    assert mine.function(completions=["a"]) == ours


def test_functions_of_two_files_work_side_by_side(load, tmp_path):
    for name in ("one", "two"):
        text = f"import time\ndef {name}(completions): time.sleep(1); return [1.0] * len(completions)\n"
        (tmp_path / f"{name}.py").write_text(text)
    rewards = load_functions(["one.py:one", "two.py:two"])
    began = time.monotonic()
    assert score(TEN, rewards).totals[0][0] == 2.0
    assert time.monotonic() - began < 1.9


def test_the_limit_follows_what_a_function_takes(load):
    (mine,) = load("def mine(completions): return [1.0] * len(completions)\n")
    assert mine.function._seconds(100) == 300.0
    assert mine.function._seconds(10) == 60.0
    mine.function(completions=["a"] * 1000)
    assert 10.0 < mine.function._seconds(100) < 20.0


def test_a_file_that_never_ends_to_load(load, monkeypatch):
    monkeypatch.setattr("oncurve.rewards.pool.supervised.LOAD_SECONDS", 1.0)
    with pytest.raises(RewardError, match=r"reward 'mine.py:mine' failed on import: no answer: nothing within 1 s"):
        load("import time\ntime.sleep(60)\ndef mine(**_): return []\n")


def test_random_numbers_of_the_trainer_are_its_own(load):
    random.seed(5)
    state = random.getstate()
    score(
        TEN, load("import random\nrandom.seed(1)\ndef mine(completions): return [random.random()] * len(completions)\n")
    )
    assert random.getstate() == state


def test_columns_named_like_python_are_passed(load):
    rewards = load("def mine(completions, **columns): return [float(n) for n in columns['self']]\n")
    assert math.isclose(score([group(0, ["a"], self=2)], rewards).totals[0][0], 2.0)


def test_named_rewards_of_python_stay_here():
    called = []

    def mine(completions):
        called.append(completions)
        return [0.0] * len(completions)

    score(TEN, [NamedReward("mine", 1.0, mine)])
    assert called
    assert issubclass(OncurveError, Exception)

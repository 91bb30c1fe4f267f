"""Attacks on rewards that read answers, and reward functions that misbehave: texts, and what is right for each."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import random
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.rewards import (
    NamedReward,
    RewardError,
    accuracy,
    format_reward,
    load_functions,
    score,
    think_format_reward,
)
from oncurve.types import Completion, Group, Prompt

SECONDS = 20.0

Check = Callable[[str], list[str]]


@dataclass(frozen=True)
class ScorerAttack:
    number: int
    name: str
    check: Check
    """Called with the path of a file that must not appear; returns what is wrong."""


def run_limited(given: ScorerAttack, marker: str) -> list[str]:
    """What is wrong, found in a process that is ended if it takes longer than ``SECONDS``."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            problems = given.check(marker)
        except BaseException as error:  # noqa: BLE001  told below
            problems = [f"{type(error).__name__}: {error}"]
        os.write(write, json.dumps(problems).encode())
        os._exit(0)
    os.close(write)
    in_time = select.select([read], [], [], SECONDS)[0]
    said = os.read(read, 1 << 16) if in_time else b""
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not in_time:
        return [f"not done within {SECONDS:g} s"]
    return json.loads(said) if said else ["it ended without a word"]


def verdicts(cases: Sequence[tuple[str, Any, float]]) -> Check:
    """Texts, gold answers, and the accuracy that is right."""

    def check(_: str) -> list[str]:
        found = accuracy(completions=[text for text, _, _ in cases], answer=[gold for _, gold, _ in cases])
        return [
            f"{text[:40]!r} for {gold!r}: {value}, not {right}"
            for (text, gold, right), value in zip(cases, found, strict=True)
            if value != right
        ]

    return check


def hard_to_read(_: str) -> list[str]:
    texts = [
        "<think>" * 20_000,
        "</think>" * 20_000,
        "<think></think>" * 20_000,
        "<answer>" * 20_000,
        "<think>a</think>" + "<answer></answer>" * 20_000,
        " " * 60_000,
        "<think>" + " " * 60_000 + "</think>" + "\n" * 60_000,
        "\\boxed{" * 20_000,
        "{" * 100_000 + "}" * 100_000,
        "#### " * 40_000,
        "final answer" * 20_000,
        "`" * 60_000 + "\n```python\n" * 10_000,
    ]
    began = time.process_time()
    for text in texts:
        accuracy(completions=[text], answer=["5"])
        format_reward(completions=[text])
        think_format_reward(completions=[text])
    seconds = time.process_time() - began
    return [f"{seconds:.1f} s of processor time"] if seconds > 0.05 * 3 * len(texts) else []


def code_as_an_answer(marker: str) -> list[str]:
    problems = []
    for payload in (
        f"__import__('os').system('touch {marker}')",
        f"[__import__('os').system('touch {marker}')]",
        f"\\pi + __import__('os').system('touch {marker}')",
        f"open('{marker}', 'w')",
    ):
        texts = [f"<think>a</think>\\boxed{{{payload}}}", f"<answer>{payload}</answer>", f"#### {payload}"]
        if any(accuracy(completions=texts, answer=["5"] * 3)):
            problems.append(f"{payload} is right")
        format_reward(completions=texts)
        think_format_reward(completions=texts)
        if accuracy(completions=["\\boxed{4}", "\\boxed{5}"], answer=["5", "5"]) != [0.0, 1.0]:
            problems.append("the verdicts that follow are forged")
    return problems + (["it ran"] if os.path.exists(marker) else [])


def batch(texts: Sequence[str]) -> list[Group]:
    prompt = Prompt(0, "2 + 3?", "2 + 3?", (1,), {"answer": "5"})
    return [Group(prompt, tuple(Completion((1,), text, (0.0,), False) for text in texts))]


def refused(function: Callable[..., Any]) -> str | None:
    """None if the reward function is refused by name, or its completions are left unscored; else what came of it."""
    try:
        scores = score(batch(["a", "b"]), [NamedReward("mine", 1.0, function)])
    except RewardError as error:
        return None if "mine" in str(error) else f"an error that does not name it: {error}"
    return None if all(math.isnan(total) for total in scores.totals[0]) else f"scored {scores.totals}"


def raises(_: str) -> list[str]:
    def mine(completions: list[str], **__: Any) -> list[float]:
        raise ValueError("no")

    problem = refused(mine)
    return [problem] if problem else []


HANGS = """
import re, time
def mine(completions, **_):
    if "b" in completions: {how}
    return [1.0] * len(completions)
mine.seconds = 0.2
"""


def hangs(_: str) -> list[str]:
    """It waits, it computes, it is stuck where Python cannot be interrupted: one completion each is lost."""
    problems = []
    for how in ("time.sleep(1e6)", "exec('while True: pass')", "re.match('(a+)+$', 'a' * 60 + 'b')"):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "mine.py")
            file.write_text(HANGS.format(how=how))
            logging.getLogger("oncurve").setLevel(logging.ERROR)
            found = score(batch(["a", "b", "c", "d", "e"]), load_functions([f"{file}:mine"])).totals[0]
        if repr(found) != "(1.0, nan, 1.0, 1.0, 1.0)":
            problems.append(f"{how}: {found}")
    return problems


class _Array:
    def __init__(self, values: Any) -> None:
        self.values = values

    def tolist(self) -> Any:
        return self.values


def wrong_shapes(_: str) -> list[str]:
    returned = [[1.0], [1.0] * 3, 1.0, {"a": 1.0}, "ab", None, _Array([1.0]), ["1", "0"], [[1.0], [0.0]], [1j, 0]]
    found = [(value, refused(lambda value=value, **_: value)) for value in returned]
    return [f"{value!r}: {problem}" for value, problem in found if problem]


def wrong_numbers(_: str) -> list[str]:
    found = [(value, refused(lambda value=value, **_: [value, 1.0])) for value in (math.nan, math.inf, -math.inf)]
    problems = [f"{value!r}: {problem}" for value, problem in found if problem]
    totals = score(batch(["a", "b"]), [NamedReward("mine", 1.0, lambda **_: [None, 1.0])]).totals[0]
    if not (math.isnan(totals[0]) and totals[1] == 1.0):
        problems.append(f"None for one: {totals}")
    return problems


def side_effects(_: str) -> list[str]:
    def mine(completions: list[str], **__: Any) -> list[float]:
        print("noise")
        os.chdir("/")
        random.seed(1)
        random.random()
        return [1.0, 0.0]

    random.seed(7)
    state, directory = random.getstate(), os.getcwd()
    with contextlib.redirect_stdout(io.StringIO()):
        score(batch(["a", "b"]), [NamedReward("mine", 1.0, mine)])
    return ["random numbers"] * (random.getstate() != state) + ["working directory"] * (os.getcwd() != directory)


BOMBS = ("10^{10^{10}}", "9!!!", "100000000!", "\\binom{10^9}{5 \\cdot 10^8}", "\\sum_{n=1}^{10^{12}} n", "9**9**9**9")

SCORER_ATTACKS = (
    ScorerAttack(37, "numbers that blow up", verdicts([(f"\\boxed{{{bomb}}}", "5", 0.0) for bomb in BOMBS])),
    ScorerAttack(
        38,
        "braces and boxes",
        verdicts(
            [
                ("\\boxed" + "{" * 2000 + "5" + "}" * 2000, "6", 0.0),
                ("\\boxed{5", "5", 0.0),
                ("\\boxed{" * 5000, "5", 0.0),
                ("\\boxed {5}", "5", 1.0),
                ("\\fbox{5}", "5", 0.0),
                ("\\boxed{\\boxed{5}}", "5", 1.0),
                ("<think>\\boxed{5}</think>I do not know.", "5", 0.0),
            ]
        ),
    ),
    ScorerAttack(
        39,
        "many answers at once",
        verdicts(
            [
                ("\\boxed{4}, \\boxed{5}", "4", 0.0),
                ("\\boxed{4, 5}", "5", 0.0),
                ("\\boxed{4 or 5}", "5", 0.0),
                ("4 or 5", "5", 0.0),
            ]
        ),
    ),
    ScorerAttack(
        40,
        "digits and signs of other scripts",
        verdicts(
            [
                ("\\boxed{٥}", "5", 1.0),
                ("\\boxed{５}", "5", 1.0),
                ("\\boxed{²}", "2", 0.0),
                ("\\boxed{−42}", "-42", 1.0),
                ("\\boxed{\u00a05\u00a0}", "5", 1.0),
            ]
        ),
    ),
    ScorerAttack(41, "texts that stall patterns", hard_to_read),
    ScorerAttack(42, "code as an answer", code_as_an_answer),
    ScorerAttack(
        43, "long and empty texts", verdicts([("x" * 200_000, "5", 0.0), ("", "5", 0.0), ("</s><|im_end|>", "5", 0.0)])
    ),
    ScorerAttack(44, "a reward function that raises", raises),
    ScorerAttack(45, "a reward function that hangs", hangs),
    ScorerAttack(46, "a reward function of the wrong shape", wrong_shapes),
    ScorerAttack(47, "NaN, infinity, None", wrong_numbers),
    ScorerAttack(48, "a reward function with side effects", side_effects),
)

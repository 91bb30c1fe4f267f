"""``oncurve check reward``: what a reward function says to what is right, to what is wrong, and to what is neither."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oncurve.clinic import cases
from oncurve.clinic.rows import recipe_for, rows_of
from oncurve.data.prompts import bare_prompts, data_of
from oncurve.rewards import (
    NamedReward,
    RewardError,
    check_signature,
    judge_reward,
    load_functions,
    sandbox_for,
    score,
)
from oncurve.rewards.learned import ModelToLoad
from oncurve.terminal import Terminal
from oncurve.types import Completion, Group, OncurveError, Prompt

Values = list[float | None]

WRONG = 0.1
"""What is no answer may get so much on average: some scorers give a little for trying."""
_SLOW = 1.0
_ALONE = 8
_MOST_BOMBS = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the clinic's table."""

    check: str
    expected: str
    found: str
    passed: bool
    example: str = ""
    """A completion that was judged wrongly, and what was said of it."""


def check_reward(
    function: str, source: str, flags: Sequence[str], terminal: Terminal, *, rows: int = 64, form_only: bool = False
) -> list[Finding]:
    """Examine ``function`` (as ``rewards.functions`` has it) on the first ``rows`` rows of ``source``, print a table,
    and return it.

    ``form_only`` says that the function judges the form and not the answer: the checks with wrong answers are left out.

    Raises OncurveError if the function cannot be loaded or called on this data, or the data has no right answers.
    """
    recipe = recipe_for(source, flags)
    (reward,) = load_functions([function])
    if isinstance(reward.function, ModelToLoad):
        raise OncurveError(
            f"{function}: a reward model is examined on held-out rows, by `oncurve reward-model`; the cases of "
            "`oncurve check reward` are for functions"
        )
    if reward.function is judge_reward:
        raise OncurveError(
            f"{function}: the cases of `oncurve check reward` have one right answer each, and a judge has opinions, "
            "which cost a call each; score held-out prompts with it by `oncurve eval RECIPE.toml`, read what it said"
        )
    sandbox = sandbox_for([reward.function], recipe.rewards.sandbox)
    if sandbox is not None:
        terminal.say(f"programs run in the sandbox: {sandbox}")
    given = rows_of(recipe, rows)
    with data_of("data.train", recipe.data.train):
        prompts = [
            replace(prompt, text=prompt.raw if isinstance(prompt.raw, str) else prompt.raw[-1]["content"])
            for prompt in bare_prompts(given, recipe.data)
        ]
        check_signature(reward, list(prompts[0].columns))
    patient = _Patient(reward, prompts)
    shape, gold, values = _best_shape(patient, given, recipe.data.completion_column)
    findings = [_gold(values, gold)]
    if isinstance(values, str):
        findings.append(Finding("the rest", "", "not looked at", False))
    else:
        findings += _wrong(patient, gold, form_only)
        findings += _behaviour(patient, gold)
    terminal.table(
        f"{reward.name} on {len(given)} rows of {recipe.data.train}; right answers as: {shape}",
        ["", "expected", "found", ""],
        [[each.check, each.expected, each.found, "ok" if each.passed else "FAILED"] for each in findings],
    )
    for each in findings:
        if each.example and not each.passed:
            terminal.say(f"{each.check}: {each.example}")
    failed = sum(not each.passed for each in findings)
    terminal.say(f"{reward.name}: {f'{failed} of {len(findings)} checks failed' if failed else 'sound'}")
    return findings


class _Patient:
    """A reward function, and the prompts that it is asked about."""

    def __init__(self, reward: NamedReward, prompts: Sequence[Prompt]) -> None:
        self.reward, self.prompts = reward, list(prompts)
        self.seconds: list[float] = []
        """Of each call, for one completion."""

    def answers(self, gold: Sequence[str]) -> list[str]:
        """What tells right answers apart: the column `answer`, or else the completions themselves."""
        return [str(prompt.columns.get("answer") or text) for prompt, text in zip(self.prompts, gold, strict=True)]

    def say(self, texts: Sequence[str], prompts: Sequence[Prompt] | None = None) -> Values | str:
        """Its score of one completion for each prompt, through the code that training calls it by; or what is wrong
        with what it returned, in words."""
        groups = [
            Group(prompt, (Completion(tuple(text.encode("utf-8", "replace")), text, (), False),))
            for prompt, text in zip(prompts or self.prompts, texts, strict=True)
        ]
        began = time.perf_counter()
        try:
            return [value for (value,) in score(groups, [self.reward]).parts[self.reward.name]]
        except RewardError as error:
            return str(error)
        finally:
            self.seconds.append((time.perf_counter() - began) / len(texts))


def _best_shape(patient: _Patient, rows: Sequence[dict], column: str) -> tuple[str, list[str], Values | str]:
    """The form of a right completion that the function likes best, those completions, and what it said."""
    tried: list[tuple[float, str, list[str], Values | str]] = []
    for name, shape in cases.shapes(column).items():
        texts = cases.usable(shape, rows)
        if texts is None:
            continue
        values = patient.say(texts)
        mean = -1.0 if isinstance(values, str) else _mean(values)
        tried.append((mean, name, texts, values))
        if mean == 1.0:
            break
    if not tried:
        raise OncurveError(
            f"the data has neither a column {column!r} nor a column 'answer' in every row, so there is no right answer "
            "to try; set data.completion_column"
        )
    best = max(tried, key=lambda each: each[0])  # of equals the first
    return best[1], best[2], best[3]


def _gold(values: Values | str, gold: Sequence[str]) -> Finding:
    if isinstance(values, str):
        return Finding("right answer", "1 for each", "an error", False, values)
    unscored = values.count(None)
    low = next((at for at, value in enumerate(values) if value is None or abs(value - 1.0) > 1e-6), None)
    found = f"mean {_mean(values):.3g}" + (f", {unscored} unscored" if unscored else "")
    example = "" if low is None else f"{values[low]} for {_short(gold[low])}"
    return Finding("right answer", "1 for each", found, low is None, example)


def _wrong(patient: _Patient, gold: Sequence[str], form_only: bool) -> list[Finding]:
    answers = patient.answers(gold)
    given: dict[str, tuple[list[str], float]] = {
        "junk": ([cases.JUNK] * len(gold), WRONG),
        "empty": ([""] * len(gold), WRONG),
        "prompt echoed": (cases.echoed([prompt.raw for prompt in patient.prompts]), WRONG),
        "cut in half": (cases.truncated(gold), 0.5),
    }
    if not form_only:
        given["answers sprayed"] = (cases.sprayed(gold, answers), WRONG)
        given["another row's answer"] = (cases.shuffled(gold, answers), 0.5)
    findings = []
    for name, (texts, most) in given.items():
        expected = f"mean at most {most:g}"
        values = patient.say(texts)
        if isinstance(values, str):
            findings.append(Finding(name, expected, "an error", False, values))
            continue
        high = max(range(len(values)), key=lambda at: values[at] or 0.0)
        example = f"{values[high]} for {_short(texts[high])}"
        findings.append(Finding(name, expected, f"mean {_mean(values):.3g}", _mean(values) <= most, example))
    return findings


def _behaviour(patient: _Patient, gold: Sequence[str]) -> list[Finding]:
    prompts = patient.prompts
    # Right and wrong in turn: of all right ones a function that is wrong about the order would say the same.
    others = cases.shuffled(gold, patient.answers(gold))
    mixed = [text if at % 2 == 0 else other for at, (text, other) in enumerate(zip(gold, others, strict=True))]
    first = patient.say(mixed)
    again = patient.say(mixed)
    back = patient.say(mixed[::-1], prompts[::-1])
    alone = [patient.say([text], [prompt]) for text, prompt in list(zip(mixed, prompts, strict=True))[:_ALONE]]
    singly = [value[0] if isinstance(value, list) else value for value in alone]
    slowest = max(patient.seconds[1:])  # the first call may have had to start something
    began = time.perf_counter()
    bombs = patient.say(list(cases.BOMBS.values()), prompts[:1] * len(cases.BOMBS))
    took = time.perf_counter() - began
    return [
        Finding("asked twice", "the same", _same(again == first), again == first),
        Finding(
            "order reversed", "the same", _same(isinstance(back, list) and back[::-1] == first),
            isinstance(back, list) and back[::-1] == first,
        ),
        Finding("one at a time", "the same", _same(singly == first[:_ALONE]), singly == first[:_ALONE]),
        _bombs(bombs, took),
        Finding("time", f"under {_SLOW:g} s each", f"at most {slowest * 1000:.3g} ms each", slowest < _SLOW),
    ]  # fmt: skip


def _bombs(values: Values | str, took: float) -> Finding:
    expected = f"at most {WRONG:g} each, {_MOST_BOMBS:g} s"
    if isinstance(values, str):
        return Finding("text bombs", expected, "an error", False, values)
    fooled = [f"{value} for {name}" for name, value in zip(cases.BOMBS, values, strict=True) if (value or 0.0) > WRONG]
    found = f"at most {max((value or 0.0) for value in values):.3g}, {took:.1f} s"
    return Finding("text bombs", expected, found, not fooled and took < _MOST_BOMBS, "; ".join(fooled))


def _mean(values: Values) -> float:
    """Unscored counts as nothing."""
    return sum(value or 0.0 for value in values) / len(values)


def _same(same: bool) -> str:
    return "the same" if same else "something else"


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."

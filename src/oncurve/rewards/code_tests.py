"""Tests for programs: the forms in which data sets give them, and grading a program by them in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.rewards.sandbox import Call, RemoteSandbox, Sandbox, SandboxError, Status, same, same_output
from oncurve.rewards.sandbox.inside.wire import WireError, encode
from oncurve.types import OncurveError

FORMS = (
    '{"stdin": ..., "stdout": ...}, {"call": [arguments], "returns": ..., "function": name}, '
    'text that is code (assert ...), or {"inputs": [...], "outputs": [...], "fn_name": name}'
)

_MOST_TIMEOUTS = 3
"""After so many programs that ran out of time the rest of a candidate's tests counts as failed."""


@dataclass(frozen=True, slots=True)
class Program:
    """Standard input and the standard output that is right."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Function:
    """A call and the value that is right."""

    call: Call
    returns: Any


@dataclass(frozen=True, slots=True)
class Code:
    """Code that comes to its end if the function it calls is right."""

    code: str


Test = Program | Function | Code


@dataclass(frozen=True, slots=True)
class Grade:
    """What came of a program and its tests."""

    passed: tuple[bool, ...]
    """By test."""
    status: Status
    """``ok``, or what ended the first test that did not run to its end."""
    cpu_seconds: float | None
    """Processor time of all tests together; None if it was not measured."""
    processes: int
    """In how many processes: each adds the time it takes to set one up."""

    @property
    def scored(self) -> bool:
        return self.status != "infra_error"

    @property
    def accepted(self) -> bool:
        return self.scored and all(self.passed)


def read_tests(given: Any, entry_point: str | None = None) -> list[Test]:
    """The tests of one row.

    Args:
        given: one test or a list of them, in the forms of ``FORMS``; or such a thing as JSON text.
        entry_point: the function to call where a test does not name one.

    Raises:
        OncurveError: it holds no test, or one in another form. The text says which.
    """
    if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise OncurveError(f"not JSON: {error}") from error
    if isinstance(given, dict) and "inputs" in given:
        given = _pairs(given)
    tests = [_test(item, entry_point) for item in (given if isinstance(given, list | tuple) else [given])]
    if not tests:
        raise OncurveError("there is no test; give one of the forms " + FORMS)
    return tests


def _pairs(given: dict[str, Any]) -> list[dict[str, Any]]:
    inputs, outputs = given["inputs"], given.get("outputs")
    if not isinstance(outputs, list | tuple) or len(inputs) != len(outputs):
        raise OncurveError("`inputs` and `outputs` must be lists of the same length")
    if given.get("fn_name"):
        return [
            {"call": call, "returns": value, "function": given["fn_name"]}
            for call, value in zip(inputs, outputs, strict=True)
        ]
    return [{"stdin": stdin, "stdout": stdout} for stdin, stdout in zip(inputs, outputs, strict=True)]


def _test(item: Any, entry_point: str | None) -> Test:
    match item:
        case str() if item.strip():
            return _code(item)
        case {"code": str(code)}:
            return _code(code)
        case {"stdin": str(stdin), "stdout": str(stdout)}:
            return Program(stdin, stdout)
        case {"input": str(given), "output": str(right), "testtype": "functional"}:  # LiveCodeBench
            arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
            return _function(arguments, json.loads(right), entry_point)
        case {"input": str(stdin), "output": str(stdout)}:
            return Program(stdin, stdout)
        case {"call": list() | tuple() as arguments, "returns": returns}:
            return _function(arguments, returns, item.get("function") or entry_point)
        case _:
            shown = repr(item)
            raise OncurveError(f"no test: {shown[:80]}; give one of the forms {FORMS}")


def _code(code: str) -> Code:
    try:
        compile(code, "test", "exec")
    except (SyntaxError, ValueError) as error:
        raise OncurveError(f"the test {code[:60]!r} is no Python: {error}") from error
    return Code(code)


def _function(arguments: Sequence[Any], returns: Any, name: str | None) -> Function:
    if not name:
        raise OncurveError("a call needs the function's name: `function` in the test, or the column `entry_point`")
    try:
        encode([*arguments, returns])
    except WireError as error:
        raise OncurveError(f"a call of {name!r}: {error}") from error
    return Function(Call(name, tuple(arguments)), returns)


def grade(
    source: str,
    tests: Sequence[Test],
    sandbox: Sandbox | RemoteSandbox,
    *,
    entry_point: str | None = None,
    setup: str = "",
) -> Grade:
    """Run a program against its tests. What is right is compared here, and never sent; a test that was not reached, or
    came after the third that ran out of time, has failed."""
    passed = [False] * len(tests)
    statuses: list[Status] = ["ok"] * len(tests)
    times: list[float | None] = []
    processes = 0
    for number, test in enumerate(tests):
        if isinstance(test, Program):
            if statuses.count("timeout") >= _MOST_TIMEOUTS:
                statuses[number] = "timeout"
                continue
            ran = sandbox.run_program(source, test.stdin)
            statuses[number], passed[number] = ran.status, ran.status == "ok" and same_output(test.stdout, ran.stdout)
            times.append(ran.cpu_seconds)
            processes += 1
    functions = {number: test for number, test in enumerate(tests) if isinstance(test, Function)}
    if functions:
        called, seconds = sandbox.call(source, [test.call for test in functions.values()])
        for (number, test), answer in zip(functions.items(), called, strict=True):
            statuses[number] = answer.status
            passed[number] = answer.status == "ok" and same(test.returns, answer.wire)
        times.append(seconds)
        processes += 1
    codes = {number: test for number, test in enumerate(tests) if isinstance(test, Code)}
    if codes:
        tested, seconds = sandbox.check(source, [test.code for test in codes.values()], setup=setup, entry=entry_point)
        for number, result in zip(codes, tested, strict=True):
            statuses[number], passed[number] = result.status, result.passed
        times.append(seconds)
        processes += 1
    if "infra_error" in statuses:
        return Grade(tuple(passed), "infra_error", None, processes)
    first: Status = "ok"
    for status in reversed(statuses):
        first = first if status == "ok" else status
    measured = [seconds for seconds in times if seconds is not None]
    return Grade(tuple(passed), first, sum(measured) if len(measured) == len(times) else None, processes)


def set_up_seconds(sandbox: Sandbox | RemoteSandbox) -> float:
    """Processor time of a program that does nothing: the least of five.

    Raises:
        SandboxError: this sandbox does not measure it.
    """
    times = [sandbox.run_program("pass").cpu_seconds for _ in range(5)]
    measured = [seconds for seconds in times if seconds is not None]
    if not measured:
        raise SandboxError(
            f"{sandbox.description} does not measure processor time, which `code_speed` needs; use a local level"
        )
    return min(measured)

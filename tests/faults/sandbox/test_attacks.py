"""Every attack at every level that this machine has; ``make attack`` prints the same as a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

from faults.sandbox.attacks import LIMITS, attack, forge, name_of, open_at, run_limited
from faults.sandbox.programs import ATTACKS, FORGERIES, NEEDLE, SCAN, Attack, Forgery
from faults.sandbox.scorers import SCORER_ATTACKS, ScorerAttack
from faults.sandbox.world import World
from oncurve.rewards.code_tests import grade, read_tests
from oncurve.rewards.sandbox import Limits, Sandbox
from oncurve.rewards.sandbox.levels import Way, ways
from sandboxes import lacking

WAYS = [way for level in ("landlock", "strict") for way in ways(level)]
NOBODY = 65534
SCRIPT = Path(__file__).with_name("attacks.py")
SOURCES = Path(__file__).resolve().parents[3] / "src"


@pytest.fixture(scope="module", params=WAYS, ids=name_of)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    reason = lacking(request.param)
    if reason:
        pytest.skip(reason)
    with open_at(request.param) as opened:
        yield opened


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("given", ATTACKS, ids=lambda given: f"{given.number} {given.name}")
def test_nothing_gets_out(sandbox: Sandbox, world: World, given: Attack) -> None:
    sandbox.close()  # its workers are started below the world, so that they count as left over if they stay
    result = attack(sandbox, world, given)
    assert result.held, result


@pytest.mark.parametrize("given", FORGERIES, ids=lambda given: f"{given.number} {given.name}")
def test_no_verdict_is_forged(sandbox: Sandbox, world: World, given: Forgery) -> None:
    sandbox.close()
    result = forge(sandbox, world, given)
    assert result.held, result


def test_nothing_of_one_run_is_in_the_memory_of_the_next(sandbox: Sandbox) -> None:
    """Nor of its tests: a program that searched its memory would find what is expected of others."""
    longer = Limits(cpu_seconds=5.0)
    before = sandbox.run_program(SCAN, limits=longer).stdout
    assert before.startswith(b"True ")
    tests = read_tests(
        [
            f"assert f() == '{NEEDLE}'",
            {"stdin": NEEDLE, "stdout": NEEDLE},
            {"call": [NEEDLE], "returns": NEEDLE, "function": "g"},
        ]
    )
    program = f"def f(): return '{NEEDLE}'\ndef g(x): return x\nif __name__ == '__main__': print(input())"
    for _ in range(3):
        assert grade(program, tests, sandbox).accepted
    assert sandbox.run_program(SCAN, limits=longer).stdout == before


@pytest.mark.parametrize("given", SCORER_ATTACKS, ids=lambda given: f"{given.number} {given.name}")
def test_scorers_stand(world: World, given: ScorerAttack) -> None:
    assert run_limited(given, str(world.marker)) == []
    assert world.damage("") == []


@pytest.mark.parametrize("given", [given for given in ATTACKS if given.control], ids=lambda given: given.name)
def test_without_a_sandbox_the_attack_gets_through(world: World, given: Attack) -> None:
    """Else it would prove nothing that it does not."""
    with Sandbox("none", workers=1, limits=LIMITS) as nothing:
        assert attack(nothing, world, given).escapes


def test_every_number_is_there() -> None:
    numbers = {given.number for given in (*ATTACKS, *FORGERIES, *SCORER_ATTACKS)}
    assert numbers == set(range(1, 49))


@cache
def interpreter_for_nobody() -> str | None:
    """An interpreter that an unprivileged user can run, and with it Oncurve's sources."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return None
    for name in (os.path.realpath(sys.executable), *(f"/usr/bin/python3.{minor}" for minor in (11, 12, 13))):
        if os.path.exists(name) and as_nobody(name, "-c", "import oncurve.rewards.sandbox").returncode == 0:
            return name
    return None


def as_nobody(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--reset-env"]
    variables = ["env", f"PYTHONPATH={SOURCES}", "PYTHONDONTWRITEBYTECODE=1"]
    return subprocess.run(
        [*user, *variables, python, *arguments], capture_output=True, text=True, check=False, timeout=300, cwd="/"
    )


@cache
def results_as_nobody(python: str, level: str) -> list[dict[str, Any]]:
    return json.loads(as_nobody(python, str(SCRIPT), "--levels", level, "--json").stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_as_an_unprivileged_user(way: Way) -> None:
    python = interpreter_for_nobody()
    if python is None:
        pytest.skip("needs root, setpriv, and an interpreter and sources that anybody may read")
    results = [result for result in results_as_nobody(python, way.level) if result["way"] == name_of(way)]
    if not results:
        pytest.skip(f"an unprivileged user has no {name_of(way)} here")
    assert {result["number"] for result in results} == set(range(1, 37))
    assert [result for result in results if not result["held"]] == []

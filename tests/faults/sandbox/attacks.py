"""Run every attack at every level that this machine has, and print what came of it.

    python tests/faults/sandbox/attacks.py [--levels strict landlock] [--json]

Needs nothing but the standard library and Oncurve's rewards, so that another user can run it with another interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":  # as pytest has it
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from faults.sandbox.programs import ATTACKS, FORGERIES, Attack, Forgery
from faults.sandbox.scorers import SCORER_ATTACKS, run_limited
from faults.sandbox.world import World, end
from oncurve.rewards.code_tests import grade, read_tests
from oncurve.rewards.sandbox import Limits, Sandbox, SandboxError
from oncurve.rewards.sandbox.levels import Way, ways

HELD_IN = ("strict", "landlock")  # at the level "none" these programs would end every process of the user
LIMITS = Limits(cpu_seconds=0.3, wall_seconds=2.0, memory_mb=256, output_bytes=1 << 20)


@dataclass(frozen=True)
class Result:
    number: int
    name: str
    way: str
    statuses: str
    escapes: tuple[str, ...] = ()
    forged: int = 0
    leftovers: int = 0
    zombies: int = 0
    unexpected: tuple[str, ...] = ()
    """What is no breach and yet not as it should be: another status, or a sandbox that is hurt afterwards."""

    @property
    def held(self) -> bool:
        return not (self.escapes or self.forged or self.leftovers or self.zombies or self.unexpected)


def open_at(way: Way) -> Sandbox:
    return Sandbox(way.level, workers=1, limits=LIMITS, sample_seconds=20.0, way=way)


def name_of(way: Way) -> str:
    return f"{way.level}/{way.namespaces}" if way.namespaces else way.level


def attack(sandbox: Sandbox, world: World, given: Attack) -> Result:
    statuses, escapes, unexpected = [], [], []
    for source in given.sources:
        ran = sandbox.run_program(world.fill_in(source))
        statuses.append(ran.status)
        escapes += world.damage(ran.stdout.decode("utf-8", "replace") + ran.stderr)
        if ran.status not in given.statuses:
            unexpected.append(f"{ran.status}: {ran.stderr[-200:]}")
    return _result(sandbox, world, given, statuses, escapes, 0, unexpected)


def forge(sandbox: Sandbox, world: World, given: Forgery) -> Result:
    tests = read_tests([*given.tests])
    found = grade(given.source, tests, sandbox)
    forged = max(0, sum(found.passed) - given.passes) + found.accepted
    unexpected = [] if found.scored else ["unscored"]
    return _result(sandbox, world, given, [found.status], world.damage(""), forged, unexpected)


def _result(
    sandbox: Sandbox,
    world: World,
    given: Attack | Forgery,
    statuses: list[str],
    escapes: list[str],
    forged: int,
    unexpected: list[str],
) -> Result:
    # The next one is well, and nothing of the last is left.
    following = sandbox.run_program("print(6 * 7)")
    if following.stdout != b"42\n":
        unexpected.append(f"the next program: {following}")
    wrong = grade(
        "def f(x): return x + 2 if x == 2 else 0", read_tests(["assert f(2) == 4", "assert f(3) == 6"]), sandbox
    )
    if wrong.passed != (True, False):
        unexpected.append(f"the next tests: {wrong}")
    sandbox.close()  # so that whatever is alive now is alive for itself
    leftovers, zombies = world.leftovers()
    end(leftovers + zombies)
    return Result(
        given.number,
        given.name,
        name_of(sandbox.way),
        " ".join(sorted(set(statuses))),
        tuple(escapes),
        forged,
        len(leftovers),
        len(zombies),
        tuple(unexpected),
    )


def run_level(way: Way) -> Iterator[Result]:
    assert way.level in HELD_IN
    world = World()
    try:
        with open_at(way) as sandbox:
            for given in ATTACKS:
                yield attack(sandbox, world, given)
            for given in FORGERIES:
                yield forge(sandbox, world, given)
    finally:
        world.close()


def scorer_results() -> Iterator[Result]:
    """The attacks on rewards that run no programs."""
    world = World()
    try:
        for given in SCORER_ATTACKS:
            problems = run_limited(given, world.fill_in("@MARKER@"))
            leftovers, zombies = world.leftovers()
            end(leftovers + zombies)
            counts = (len(leftovers), len(zombies))
            yield Result(given.number, given.name, "-", "", tuple(world.damage("")), 0, *counts, tuple(problems))
    finally:
        world.close()


def available(levels: list[str]) -> tuple[list[Way], list[str]]:
    found, missing = [], []
    for way in [way for level in levels for way in ways(level)]:
        try:
            open_at(way).close()
            found.append(way)
        except SandboxError as error:
            missing.append(str(error))
    return found, missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", choices=HELD_IN, default=HELD_IN)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, missing = available(options.levels)
    results = [*scorer_results()]
    if not options.json:
        for result in results:
            print(_line(result))
        print(f"scorers: {_total(results)}")
    for way in found:
        for result in run_level(way):
            results.append(result)
            if not options.json:
                print(_line(result), flush=True)
    if options.json:
        print(json.dumps([asdict(result) | {"held": result.held} for result in results]))
    else:
        for way in found:
            of_this = [result for result in results if result.way == name_of(way)]
            print(f"{name_of(way)} as user {os.getuid()}: {_total(of_this)}")
        for reason in missing:
            print("not run:", reason)
    return 0 if found and all(result.held for result in results) else 1


def _total(results: list[Result]) -> str:
    return (
        f"{len({result.number for result in results})} attacks with {len(results)} programs: "
        f"{sum(bool(result.escapes) for result in results)} escapes, "
        f"{sum(bool(result.forged) for result in results)} forged verdicts, "
        f"{sum(result.leftovers for result in results)} leftovers, "
        f"{sum(result.zombies for result in results)} zombies, "
        f"{sum(bool(result.unexpected) for result in results)} unexpected"
    )


def _line(result: Result) -> str:
    verdict = "held" if result.held else "NOT HELD " + "; ".join([*result.escapes, *result.unexpected])
    counts = f"{len(result.escapes)} {result.forged} {result.leftovers} {result.zombies}"
    return f"{result.number:>3} {result.name:<38} {result.way:<20} {result.statuses:<20} {counts} {verdict}"


if __name__ == "__main__":
    sys.exit(main())

"""What a check in the sandbox costs: median wall time, one run at a time, on a machine that does nothing else.

python benchmarks/sandbox_cost.py [--runs 200] [--out docs/results/sandbox-cost.md]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common import machine_line

from oncurve.rewards.sandbox import Call, Sandbox, SandboxError
from oncurve.rewards.sandbox.levels import Way, ways

SOURCE = "def double(x):\n    return 2 * x\n"
PROGRAM = "print(2 * int(input()))\n"
FUNCTION_SIZES = (1, 20)


def milliseconds(run: Callable[[], object], runs: int) -> tuple[float, float]:
    """(median, 95th percentile), after a few runs that do not count."""
    for _ in range(5):
        run()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def fresh_interpreter() -> object:
    return subprocess.run([sys.executable, "-I", "-c", PROGRAM], input=b"12", capture_output=True, check=True)


def rows_of(way: Way, runs: int) -> list[Sequence[object]]:
    name = f"{way.level} ({way.namespaces})" if way.namespaces else way.level
    began = time.perf_counter()
    with Sandbox(way.level, workers=1, way=way) as sandbox:
        start = 1000 * (time.perf_counter() - began)
        rows: list[Sequence[object]] = [(name, "start of a worker, once", f"{start:.0f}", "")]
        cases: dict[str, Callable[[], object]] = {
            "program, stdin to stdout": lambda: sandbox.run_program(PROGRAM, "12")
        }
        for size in FUNCTION_SIZES:
            calls = [Call("double", (n,)) for n in range(size)]
            cases[f"function, {size} calls"] = lambda calls=calls: sandbox.call(SOURCE, calls)
        tests = [f"assert double({n}) == {2 * n}" for n in range(3)]
        cases["3 asserts, two processes"] = lambda: sandbox.check(SOURCE, tests)
        for case, run in cases.items():
            median, high = milliseconds(run, runs)
            rows.append((name, case, f"{median:.1f}", f"{high:.1f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[Sequence[object]] = []
    for level in ("landlock", "strict"):
        for way in ways(level):
            try:
                rows += rows_of(way, options.runs)
            except SandboxError as error:
                print(error, file=sys.stderr)
    median, high = milliseconds(fresh_interpreter, min(options.runs, 50))
    rows.append(("no sandbox", "a fresh interpreter for each program", f"{median:.1f}", f"{high:.1f}"))
    lines = [
        "# What a check in the sandbox costs",
        "",
        "| level | check | median, ms | 95th percentile, ms |",
        "|---|---|--:|--:|",
    ]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    lines += ["", f"One run at a time, {options.runs} of each. {machine_line()}", ""]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

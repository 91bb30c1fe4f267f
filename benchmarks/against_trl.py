"""Oncurve and TRL, the same GRPO step side by side on this machine, and how far each is from what the machine allows.

    python benchmarks/against_trl.py                    # all rows; takes about an hour on two cores
    python benchmarks/against_trl.py --rows 1,2 --steps 2

Makes an environment of its own for TRL (``--venv``), with the same torch and transformers. Both sides are processes
that stay alive and take turns, step by step, with one thread each, in float32, with the same prompts, group size and
forced completion lengths. Both allocators are tuned: TRL's by ``MALLOC_`` variables, Oncurve's by itself. Time is CPU
time of the process (user and system). The first step of each is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "speed"))

from floor import Rates, floor, measure  # noqa: E402
from material import model_for, prompts_for  # noqa: E402
from rows import PHASES, ROWS, Job, Row  # noqa: E402

TRL = "1.16.0"
# What Oncurve does to itself, see oncurve.train.allocator.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Side:
    """One process, a step at a time."""

    def __init__(self, python: Path, script: str, job: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / "speed" / script), str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | environment,
        )
        self.steps: list[dict[str, Any]] = []
        self._answer()

    def step(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.steps.append(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[1]} ended with {self._process.wait()}")  # type: ignore[index]
        return json.loads(line)


def trl_python(venv: Path) -> Path:
    """The interpreter of an environment with TRL, which is made if it is not there."""
    python = venv / "bin" / "python"
    if not (venv / ".installed").exists():
        quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = HERE.parent / "constraints.txt"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        # torch alone and first: what TRL asks for would bring another.
        subprocess.run([str(python), *quiet, "-r", str(constraints)], check=True)
        same = [f"transformers=={version('transformers')}", f"trl=={TRL}", "matplotlib"]
        subprocess.run([str(python), *quiet, "-c", str(constraints), *same], check=True)
        (venv / ".installed").touch()
    return python


def compare(row: Row, steps: int, venv: Path, work: Path) -> dict[str, Any]:
    """Medians of ``steps`` steps of each side, after one that is not counted."""
    model = model_for(row, work)
    data = prompts_for(row, model, steps + 1, work)
    job = work / "job.json"
    Job(row, str(model), str(data), str(work / "out"), steps + 1).save(job)
    sides = {
        "trl": Side(trl_python(venv), "trl_side.py", job, TUNED),
        "oncurve": Side(Path(sys.executable), "oncurve_side.py", job, {}),
    }
    for number in range(steps + 1):
        for name, side in sides.items():
            side.step()
            print(f"{row.name}: {name} step {number}: {side.steps[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    found: dict[str, Any] = {"row": row.name, "model": str(model)}
    for name, side in sides.items():
        side.close()
        counted = side.steps[1:]
        found[name] = {
            "seconds": statistics.median(step["seconds"] for step in counted),
            "all_seconds": [round(step["seconds"], 3) for step in counted],
            "memory": max(step["memory"] for step in side.steps),
            "phases": {phase: statistics.median(s["phases"].get(phase, 0.0) for s in counted) for phase in PHASES},
        }
    return found


def table(found: list[dict[str, Any]], rows: dict[str, Row], rates: Rates) -> str:
    lines = [
        "| work | TRL, s | Oncurve, s | time ratio (wanted) | TRL, GB | Oncurve, GB | memory ratio (wanted) | "
        "floor, s | share of it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    detail = [
        "| work | side | sampling | scoring | forward and backward | optimizer | rest | tokens/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        row, trl, ours = rows[each["row"]], each["trl"], each["oncurve"]
        least = floor(row, each["model"], rates)
        lines.append(
            f"| {row.name} | {trl['seconds']:.2f} | {ours['seconds']:.2f} | "
            f"{_ratio(trl['seconds'] / ours['seconds'], row.time_target)} | {trl['memory'] / 1e9:.2f} | "
            f"{ours['memory'] / 1e9:.2f} | {_ratio(trl['memory'] / ours['memory'], row.memory_target)} | "
            f"{least.total:.2f} | {least.total / ours['seconds']:.0%} |"
        )
        for name, side in (("TRL", trl), ("Oncurve", ours)):
            phases = [side["phases"][phase] for phase in PHASES]
            rest = side["seconds"] - sum(phases)
            detail.append(
                f"| {row.name} | {name} | {' | '.join(f'{s:.2f}' for s in phases)} | {rest:.2f} | "
                f"{sum(row.lengths()) / side['seconds']:.0f} |"
            )
        detail.append(f"| {row.name} | floor | {least.sampling:.2f} | | {least.training:.2f} | | | |")
    return "\n".join([*lines, "", *detail])


def _ratio(found: float, wanted: float | None) -> str:
    return f"**{found:.1f}x**" + (f" (>= {wanted:g}x)" if wanted else "")


def machine(rates: Rates) -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return (
        f"Machine: {cpu}, {os.cpu_count()} cores, one thread for each side; torch {version('torch')}, transformers "
        f"{version('transformers')}, TRL {TRL}, Oncurve {version('oncurve')}, Python {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}. Measured on it in the same run: {rates.bytes_per_second / 1e9:.1f} GB/s read, "
        f"{rates.flops / 1e9:.0f} GFLOP/s in large float32 products."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", help="numbers of rows from 1, with commas; default: all")
    options.add_argument("--steps", type=int, default=3, help="steps of which the median is taken")
    options.add_argument("--venv", type=Path, default=HERE.parent / ".venv-trl")
    options.add_argument("--json", type=Path, help="where to add the figures as they come, a row of the table a line")
    given = options.parse_args()
    chosen = [ROWS[int(number) - 1] for number in given.rows.split(",")] if given.rows else ROWS
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="oncurve-speed-") as work:
        rates = measure()
        for row in chosen:
            found.append(compare(row, given.steps, given.venv, Path(work)))
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(found[-1]) + "\n")
        print(machine(rates), "", table(found, {row.name: row for row in ROWS}, rates), sep="\n")


if __name__ == "__main__":
    main()

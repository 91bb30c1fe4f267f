"""Every run of a comparison in a process of its own, so that its memory and time are its own too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from oncurve.compare.plan import Method, Plan
from oncurve.recipe import load_recipe
from oncurve.runlog import RunLog
from oncurve.types import OncurveError, Stopped


@dataclass(frozen=True)
class Done:
    """One finished run."""

    method: str
    seed: int
    path: Path
    wall_seconds: float
    cpu_seconds: float
    peak_gib: float
    """Resident memory of its process at its largest."""


def run_all(plan: Plan, out: Path, say: Callable[[str], None]) -> list[Done]:
    """Fine-tune once a seed, if the recipe has an ``[sft]`` stage, and train every method from there.

    What has finished in ``out`` is not run again; what was interrupted goes on. Raises OncurveError with the end of a
    failed run's output, Stopped if a run was stopped by a signal.
    """
    out.mkdir(parents=True, exist_ok=True)
    total = len(plan.seeds) * len(plan.methods)
    found: list[Done] = []
    for seed in plan.seeds:
        begin = _fine_tuned(plan, seed, out, say)
        for method in plan.methods:
            name = f"{method.name}-{seed}"
            flags = [*method.flags, *begin, *_common(out, name, seed)]
            say(f"{len(found) + 1} of {total}: {name}")
            found.append(_measured(method, seed, out / name, ["grpo", str(plan.recipe), *flags, "--quiet"]))
    return found


def _fine_tuned(plan: Plan, seed: int, out: Path, say: Callable[[str], None]) -> list[str]:
    """The flags that begin a run from this seed's fine-tuned model; none if there is no such stage."""
    recipe = load_recipe(plan.recipe)
    if recipe.sft is None:
        return []
    name = f"sft-{seed}"
    if not _finished(out / name):
        say(f"fine-tuning with seed {seed}, once for all methods")
        _run(["sft", str(plan.recipe), *_common(out, name, seed), "--quiet"])
    return ["--sft=none", f"--model.path={out / name / 'models' / 'sft'}"]


def _common(out: Path, name: str, seed: int) -> list[str]:
    return [f"--run.dir={out}", f"--run.name={name}", f"--run.seed={seed}"]


def _measured(method: Method, seed: int, path: Path, arguments: Sequence[str]) -> Done:
    """Run it, unless it has finished and was measured. The parts of a run that was interrupted add up."""
    record = path / "measured.json"
    known = json.loads(record.read_text()) if record.is_file() else {}
    if not (known and _finished(path)):
        wall, cpu, peak = _run(arguments)
        known = {
            "wall_seconds": known.get("wall_seconds", 0.0) + wall,
            "cpu_seconds": known.get("cpu_seconds", 0.0) + cpu,
            "peak_gib": max(known.get("peak_gib", 0.0), peak),
        }
        record.write_text(json.dumps(known))
    return Done(method.name, seed, path, **known)


def _finished(path: Path) -> bool:
    if not (path / "run.sqlite").is_file():
        return False
    with RunLog.open(path, readonly=True) as log:
        return log.get_meta("status") == "finished"


def _run(arguments: Sequence[str]) -> tuple[float, float, float]:
    """``oncurve ARGUMENTS``; its wall seconds, processor seconds and peak memory in GiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "oncurve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = output.decode("utf-8", "replace").strip()[-2000:]
        if process.returncode in (130, 143):
            raise Stopped(process.returncode - 128, f"stopped; the same command goes on from here\n{said}")
        raise OncurveError(f"oncurve {' '.join(arguments)} ended with {process.returncode}:\n{said}")
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB elsewhere
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def as_json(runs: Sequence[Done]) -> str:
    return json.dumps([asdict(run) | {"path": str(run.path)} for run in runs], indent=1) + "\n"

"""The embedded default over several seeds, each with its control: the table of docs/results/letters.md.

    python benchmarks/letters_seeds.py [--seeds 5] [--recipe recipes/letters.toml] [--out docs/results/letters.md]

Nothing is chosen by these results: the recipe was tuned on the validation split, this reports the eval split.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import machine_line, peak_gib, shown

from oncurve.recipe import load_recipe
from oncurve.terminal import Terminal
from oncurve.train.control import training_seconds
from oncurve.train.demo import run_demo

SHOWN = (
    ("greedy", "accuracy"),
    ("greedy", "chain_right"),
    ("sampled", "accuracy"),
    ("sampled", "right_unboxed"),
    ("sampled", "format"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/letters.toml"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/letters.md"))
    parser.add_argument("--dir", default="runs/seeds")
    options, flags = parser.parse_known_args()
    lines: list[str] = []
    finals: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        flags_here = ["--run.seed", str(seed), "--run.name", f"seed-{seed}", "--run.dir", options.dir, *flags]
        recipe = load_recipe(options.recipe, flags_here)
        began = time.perf_counter()
        demo = run_demo(recipe, control=True, terminal=Terminal())
        sft, grpo, _ = training_seconds(demo.result.run_dir)
        assert demo.control is not None
        stages = (
            ("SFT", sft, demo.result.before),
            ("GRPO", sft + grpo, demo.result.after),
            ("control", sft + grpo, {evaluation.kind: evaluation.estimates for evaluation in demo.control}),
        )
        for stage, seconds, found in stages:
            values = [found[kind][name] for kind, name in SHOWN]
            lines.append(f"| {seed} | {stage} | {seconds:.0f} | " + " | ".join(map(shown, values)) + " |")
            for key, value in zip(SHOWN, values, strict=True):
                finals.setdefault(f"{stage} {' '.join(key)}", []).append(value.value)
        whole = demo.result.seconds
        finals.setdefault("whole run, seconds", []).append(whole)
        print(f"seed {seed}: {whole:.0f} s, with the control {time.perf_counter() - began:.0f} s", file=sys.stderr)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(_page(options, lines, finals, recipe), encoding="utf-8")


def _page(options: argparse.Namespace, lines: list[str], finals: dict[str, list[float]], recipe: Any) -> str:
    summary = [
        f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} |"
        for name, values in finals.items()
    ]
    peak = peak_gib()
    heads = [f"{kind} {name}" for kind, name in SHOWN]
    return "\n".join(
        [
            f"# {options.recipe.stem}: {options.seeds} seeds and their controls",
            "",
            f"    python benchmarks/letters_seeds.py --seeds {options.seeds} --recipe {options.recipe}",
            "",
            f"{recipe.data.eval_size} held-out questions, 95% intervals in brackets. The recipe was tuned on the",
            "validation split; this is the eval split. SFT: after supervised fine-tuning on the careless tutor's",
            "examples. GRPO: after GRPO from there. Control: supervised fine-tuning alone on the same examples, for",
            "the seconds that SFT and GRPO took together (evaluation, loading and saving left out).",
            "",
            machine_line(),
            f"Peak memory of the process over all seeds and controls: {peak:.2f} GiB.",
            "",
            "| seed | stage | s | " + " | ".join(heads) + " |",
            "|---|---|--:|" + "---|" * len(heads),
            *lines,
            "",
            "## Over the seeds",
            "",
            "| | median | lowest | highest |",
            "|---|--:|--:|--:|",
            *summary,
            "",
        ]
    )


if __name__ == "__main__":
    main()

"""A recipe and its control: the same training time given to supervised fine-tuning alone.

    python benchmarks/with_control.py recipes/smollm-chain-sum.toml --out docs/results/smollm-chain-sum.md

Writes a table and, beside it, the run's report. A run that is finished already is not run again.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from common import machine_line, peak_gib, shown

from oncurve.board.report import write_report
from oncurve.recipe import load_recipe
from oncurve.runlog import RunLog
from oncurve.terminal import Terminal
from oncurve.train import run
from oncurve.train.control import control_recipe, run_control, training_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options, flags = parser.parse_known_args()
    recipe = load_recipe(options.recipe, flags)
    assert recipe.sft is not None
    assert recipe.grpo is not None
    result = run(recipe, terminal=Terminal())
    control = {evaluation.kind: evaluation.estimates for evaluation in run_control(recipe, Terminal())}
    sft, grpo, sft_steps = training_seconds(result.run_dir)
    longer = control_recipe(recipe).sft
    assert longer is not None
    with RunLog.open(result.run_dir, readonly=True) as log:
        reward = [value for _, _, value in log.series("reward", "grpo")]
        scoring = sum(value for _, _, value in log.series("time/rewards", "grpo"))
        sandbox = log.get_meta("sandbox")
    fifth = max(1, len(reward) // 5)
    first, last = sum(reward[:fifth]) / fifth, sum(reward[-fifth:]) / fifth

    rows = []
    for kind in ("greedy", "sampled"):
        for name, before in result.before.get(kind, {}).items():
            three = (before, result.after[kind][name], control[kind][name])
            rows.append(f"| {kind} {name} | {' | '.join(map(shown, three))} |")
    report = options.out.with_suffix(".html")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(write_report(result.run_dir), report)
    peak = peak_gib()
    options.out.write_text(
        "\n".join(
            [
                f"# {options.recipe.stem}",
                "",
                f"    python benchmarks/with_control.py {options.recipe} --out {options.out}",
                "",
                f"Seed {recipe.run.seed}. {recipe.data.eval_size} held-out questions, 95% intervals in brackets.",
                f"SFT: {sft_steps} steps. GRPO: {recipe.grpo.iterations} iterations of "
                f"{recipe.grpo.prompts_per_iteration} prompts x {recipe.grpo.group_size} completions.",
                f"Control: {longer.steps} steps of SFT on the same examples, in the time of both.",
                "Seconds are training time; evaluation, loading and saving are left out.",
                "",
                f"| | after SFT ({sft:.0f} s) | after GRPO (+{grpo:.0f} s) | control ({sft + grpo:.0f} s) |",
                "|---|---|---|---|",
                *rows,
                "",
                f"Mean reward of the first {fifth} iterations: {first:.3f}; of the last {fifth}: {last:.3f}.",
                *([f"Programs ran in the sandbox: {sandbox}; {scoring:.0f} s of GRPO."] if sandbox else []),
                f"The whole run took {result.seconds / 60:.0f} minutes, evaluation and all.",
                f"Peak memory of the process: {peak:.1f} GiB. Report: [{report.name}]({report.name}).",
                "",
                machine_line(),
                "",
            ]
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()

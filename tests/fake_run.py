"""A made-up run that looks like a real one: what ``oncurve demo`` writes, without training anything."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from oncurve.runlog import CompletionRow, EvalRow, RunLog

WORDS = ("strawberry", "mirror", "banana", "carrot", "letter", "arrow", "terror", "summer", "ferret", "cherry")
NASTY = "[/b] \x1b[2J </script><img src=x onerror=alert(1)> <!-- \u202egnp.exe & \ud800 \u2028 end \\boxed{2}"

RECIPE = {
    "run": {"name": "demo", "seed": 0},
    "model": {"path": "embedded:letters"},
    "data": {"train": "task:letters", "eval_size": 64},
    "sampling": {"temperature": 1.0, "max_new_tokens": 56},
    "rewards": {"functions": ["accuracy", "format"], "weights": [1.0, 0.2]},
    "sft": {"steps": 200, "rows_per_step": 16, "learning_rate": 3e-3},
    "grpo": {
        "iterations": 60,
        "prompts_per_iteration": 32,
        "group_size": 8,
        "learning_rate": 8e-4,
        "kl_coef": 0.02,
        "clip_low": 0.2,
        "clip_high": 0.2,
    },
}


def make_run(
    run_dir: Path,
    *,
    sft_steps: int = 200,
    iterations: int = 60,
    planned: int | None = None,
    prompts: int = 4,
    group_size: int = 8,
    held_out: int = 64,
    samples: int = 4,
    status: str = "finished",
    nasty: bool = True,
    seed: int = 0,
) -> Path:
    """Write a run. ``iterations=0``: supervised fine-tuning only; ``held_out=0``: nothing was evaluated."""
    rng = random.Random(seed)
    recipe = {**RECIPE, "grpo": {**RECIPE["grpo"], "iterations": planned or iterations} if iterations else None}
    toml = "\n".join(f"[{section}]" for section in recipe) + "\n"
    with RunLog.create(run_dir, toml, json.dumps(recipe), "0.1.0") as log:
        with log.iteration():
            for step in range(1, sft_steps + 1):
                log.metrics("sft", 0, step, _sft_metrics(step, rng))
        if iterations and held_out:
            with log.iteration():
                _evaluate(log, 0, _skill(0), held_out, samples, nasty)
        for iteration in range(1, iterations + 1):
            skill = _skill(iteration / 60)
            with log.iteration():
                log.metrics("grpo", iteration, iteration, _grpo_metrics(iteration, skill, rng))
                log.completions(_groups(iteration, skill, prompts, group_size, rng, nasty))
                last = iteration == (planned or iterations)
                if held_out and (last or iteration % 10 == 0):
                    _evaluate(log, iteration, skill, held_out, samples if last else 0, nasty)
        log.set_meta("sft_steps", str(sft_steps))
        log.set_meta("status", status)
    return run_dir


def _skill(progress: float) -> float:
    return 0.15 + 0.78 / (1 + math.exp(-9 * (progress - 0.4)))


def _sft_metrics(step: int, rng: random.Random) -> dict[str, float]:
    return {
        "loss": 0.22 + 2.6 * math.exp(-step / 25) + 0.02 * rng.random(),
        "grad_norm": 0.4 + 2 * math.exp(-step / 30) + 0.1 * rng.random(),
        "learning_rate": 3e-3 * min(1.0, step / 20) * (1.05 - step / 200),
        "time/step": 0.05 + 0.01 * rng.random(),
    }


def _grpo_metrics(iteration: int, skill: float, rng: random.Random) -> dict[str, float]:
    def noisy(value: float, noise: float) -> float:
        return value + rng.gauss(0, noise)

    accuracy, boxed = min(1.0, max(0.0, noisy(skill, 0.035))), min(1.0, noisy(0.65 + 0.35 * skill, 0.015))
    low, high = abs(noisy(0.012, 0.004)), abs(noisy(0.02, 0.006))
    times = {"sampling": noisy(0.5, 0.03), "rewards": 0.01, "logprobs": noisy(0.3, 0.02), "update": noisy(0.9, 0.05)}
    return {
        "reward": accuracy + 0.2 * boxed,
        "reward_std": max(0.0, noisy(0.42 - 0.35 * abs(skill - 0.45), 0.02)),
        "frac_reward_zero_std": min(1.0, max(0.0, noisy(0.05 + 0.5 * max(0.0, skill - 0.4), 0.03))),
        "rewards/accuracy/mean": accuracy,
        "rewards/format/mean": boxed,
        "completions/mean_length": noisy(22 + 14 * skill, 0.8),
        "completions/mean_terminated_length": noisy(21 + 14 * skill, 0.8),
        "completions/clipped_ratio": max(0.0, noisy(0.02, 0.01)),
        "entropy": max(0.01, noisy(0.42 - 0.3 * skill, 0.012)),
        "kl": max(0.0, noisy(0.2 * (skill - 0.15), 0.006)) if iteration > 1 else 0.0,
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,
        "grad_norm": abs(noisy(0.5, 0.12)) + (2.0 if iteration == 23 else 0.0),
        "learning_rate": 8e-4 * min(1.0, iteration / 5) * (1.05 - iteration / 60),
        "loss": noisy(0.002, 0.002),
        "sampling/sampling_logp_difference/mean": abs(noisy(1e-6, 2e-7)),
        "sampling/sampling_logp_difference/max": abs(noisy(1e-5, 2e-6)),
        "unscored": 0.0,
        "my_metric": math.nan if iteration % 7 == 0 else noisy(3.0, 0.5),
        "num_tokens": 7000.0 * iteration,
        "step_time": sum(times.values()),
        "perf/tokens_per_second": 7000 / sum(times.values()),
        **{f"time/{phase}": seconds for phase, seconds in times.items()},
    }


def _answer(word: str, right: bool, boxed: bool, counts: bool) -> str:
    count, lines = 0, []
    for letter in word:
        count += letter == "r"
        lines.append(f"{letter}: {'yes' if letter == 'r' else 'no'} ({count})\n")
    said = count if right else (count + 1) % 4
    work = "".join(lines) if counts else "at a glance\n"
    return f"<think>\n{work}</think>\n" + (f"\\boxed{{{said}}}" if boxed else str(said))


def _row(split: str, iteration: int, prompt: int, sample: int, skill: float, rng: random.Random) -> CompletionRow:
    word = WORDS[prompt % len(WORDS)]
    right, boxed = rng.random() < skill, rng.random() < 0.65 + 0.35 * skill
    text = _answer(word, right, boxed, counts=right or rng.random() < skill)
    parts: dict[str, float | None] = {"accuracy": float(right and boxed), "format": float(boxed)}
    ids = tuple(range(len(text) // 3))
    return CompletionRow(
        stage="grpo",
        iteration=iteration,
        prompt_id=prompt,
        sample=sample,
        split=split,
        prompt=f"How many r's are in {word}?",
        completion=text,
        token_ids=ids,
        sampler_logprobs=[-0.1] * len(ids),
        reward=(parts["accuracy"] or 0.0) + 0.2 * (parts["format"] or 0.0),
        parts=parts if split == "train" else {**parts, "chain_right": float(right)},
    )


def _groups(
    iteration: int, skill: float, prompts: int, group_size: int, rng: random.Random, nasty: bool
) -> Iterator[CompletionRow]:
    for prompt in range(prompts):
        rows = [_row("train", iteration, prompt, sample, skill, rng) for sample in range(group_size)]
        if nasty and prompt == 0:
            rows[1] = replace(rows[1], completion=NASTY, truncated=True)
            rows[2] = replace(rows[2], completion="so " * 4000, truncated=True)
            rows[3] = replace(rows[3], reward=None, parts={"accuracy": None, "format": 1.0})
        rewards = [row.reward for row in rows if row.reward is not None]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1))
        for row in rows:
            advantage = 0.0 if row.reward is None or std == 0 else (row.reward - mean) / std
            yield replace(row, advantage=advantage)


def _evaluate(log: RunLog, iteration: int, skill: float, n: int, samples: int, nasty: bool) -> None:
    for kind, count in (("greedy", 1), ("sampled", samples)):
        if not count:
            continue
        # The same prompts each time, and those once answered mostly stay answered.
        rows = [
            _row(f"eval_{kind}", iteration, prompt, sample, skill, random.Random(prompt * 31 + sample))
            for prompt in range(n)
            for sample in range(count)
        ]
        if nasty:
            rows[0] = replace(rows[0], completion=NASTY, prompt=f"How many? {NASTY}")
        log.completions(rows)
        estimates = []
        for name in ("accuracy", "format", "chain_right"):
            values = [row.parts[name] or 0.0 for row in rows]
            estimates.append((name, sum(values) / len(values)))
        if kind == "sampled":
            estimates += [("pass@1", estimates[0][1]), ("pass@4", min(1.0, estimates[0][1] * 1.3))]
        log.evals(
            EvalRow(
                "grpo",
                iteration,
                kind,
                name,
                value,
                max(0.0, value - 1.96 * math.sqrt(value * (1 - value) / n) - 0.01),
                min(1.0, value + 1.96 * math.sqrt(value * (1 - value) / n) + 0.01),
                n,
            )
            for name, value in estimates
        )

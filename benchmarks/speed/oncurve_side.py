"""The steps of Oncurve, by the code that ``oncurve grpo`` runs: ``oncurve_side.py JOB.json``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rows import Job, Row
from side import Link, Stopwatch, cpu_seconds
from torch import Tensor

import oncurve.engines.group_decoding as decoding
import oncurve.models.load as load
import oncurve.train.clock as clock
import oncurve.train.grpo as grpo
from oncurve.engines.drawing import Wanted
from oncurve.functional import row_keys
from oncurve.recipe import recipe_from_dict
from oncurve.terminal import Terminal
from oncurve.train.setup import prepare
from oncurve.train.step import make_optimizer

PHASES = {"time/sampling": "sampling", "time/logprobs": "scoring", "time/update": "forward and backward"}


def main(job: Job) -> None:
    link, watch, row = Link(), Stopwatch(), job.row
    clock.time.perf_counter = cpu_seconds  # CPU seconds in place of the wall's
    load._check_vocabulary = lambda *_: None  # the end that no model writes is outside its vocabulary
    recipe = recipe_from_dict(
        {
            "run": {"threads": 1, "dir": job.work, "device": "cpu"},
            "model": {"path": job.model},
            "data": {"train": job.data, "eval_size": 0},
            "sampling": {"max_new_tokens": row.completion_tokens},
            "rewards": {"functions": [f"{Path(__file__).with_name('rows.py')}:reward"]},
            "grpo": {
                "iterations": job.steps,
                "prompts_per_iteration": row.prompts,
                "group_size": row.group,
                "epochs": row.epochs,
                "kl_coef": row.kl,
                "microbatch_tokens": 2048,
                "learning_rate": 1e-6,
            },
        }
    )
    assert recipe.grpo is not None
    parts = prepare(recipe, Terminal(quiet=True), ("grpo",))
    if row.varied:
        force_lengths(row, recipe.run.seed, int(parts.tokenizer.eos_token_id), job.steps)  # type: ignore[arg-type]
    grpo.apply_gradients = watch.timed("optimizer", grpo.apply_gradients)
    reference = parts.lm.frozen_copy() if row.kl else None
    optimizer = make_optimizer(parts.lm.module, recipe.grpo)
    link.ready(parameters=sum(p.numel() for p in parts.lm.module.parameters()))
    steps = grpo.grpo_iterations(parts, recipe.grpo, reference, optimizer, 1)
    for _ in range(job.steps):
        link.wait()
        found = next(steps)
        for name, phase in PHASES.items():
            watch.spent[phase] = watch.spent.get(phase, 0.0) + found.metrics.get(name, 0.0)
        watch.spent["forward and backward"] -= watch.spent.get("optimizer", 0.0)
        link.done(watch, tokens=sum(len(c.token_ids) for group in found.rollouts.groups for c in group.completions))


def force_lengths(row: Row, seed: int, end: int, steps: int) -> None:
    """Let each completion end at its length, with the log-probability that this end has."""
    lengths = torch.tensor(row.lengths())
    numbers = torch.arange(len(lengths))
    # A completion is known by its random stream alone.
    keys = torch.cat([row_keys(seed, step, numbers // row.group, numbers % row.group) for step in range(1, steps + 1)])
    keys, order = keys.sort()
    ends = lengths.repeat(steps)[order] - 1
    usual = decoding.next_tokens

    def next_tokens(wanted: Wanted, hidden: Tensor, of: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        ids, logprobs = usual(wanted, hidden, of, positions)
        last = (positions == ends[torch.searchsorted(keys, of)]).nonzero()[:, 0]
        ids[last] = end
        logprobs[last] = wanted.logits(hidden[last]).log_softmax(dim=-1)[:, end]
        return ids, logprobs

    decoding.next_tokens = next_tokens


if __name__ == "__main__":
    main(Job.load(Path(sys.argv[1])))

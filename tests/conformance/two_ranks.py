"""One of two processes that make an update together: ``python two_ranks.py RANK RENDEZVOUS OUT``."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from conformance.updates import config_of, drifted, gradient, policy, sampled, work_of
from oncurve.train import update

MODES = ("sequence_mean", "token_mean", "length_budget", "prompt_mean")


def rows_of(rank: int, mode: str, rows: int, group_size: int = 4) -> list[int]:
    """Every other row; of ``prompt_mean``, whose prompts must be whole, the first prompt or the other two."""
    mine = (lambda row: (row < group_size) == (rank == 0)) if mode == "prompt_mean" else (lambda row: row % 2 == rank)
    return [row for row in range(rows) if mine(row)]


def main(rank: int, rendezvous: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    local = update.denominator

    def over_all_ranks(*args, **options) -> float:
        count = torch.tensor(local(*args, **options), dtype=torch.float64)
        dist.all_reduce(count)
        return float(count)

    update.denominator = over_all_ranks
    parts = policy()
    rows = sampled(parts)
    found = {}
    for mode in MODES:
        config = config_of("deepseekmath", aggregation=mode)
        work = drifted(work_of(parts, config, rows))
        found[mode] = gradient(parts, config, work, rows_of(rank, mode, len(rows)))
        for value in found[mode].values():
            dist.all_reduce(value)
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])

"""What the machine itself allows: the least CPU time in which a step can be done, from two rates measured here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rows import Row
from side import cpu_seconds
from transformers import AutoConfig, AutoModelForCausalLM


@dataclass(frozen=True)
class Rates:
    """Of one thread."""

    bytes_per_second: float
    """Reading memory that is in no cache."""
    flops: float
    """Additions and multiplications of large float32 matrix products."""


def measure() -> Rates:
    torch.set_num_threads(1)
    memory = torch.ones(1 << 28)  # 1 GiB, far more than any cache
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    read = min(_seconds(lambda: memory.sum()) for _ in range(5))
    product = min(_seconds(lambda: left @ right) for _ in range(8))
    return Rates(memory.numel() * 4 / read, 2 * 1024**3 / product)


def _seconds(work: object) -> float:
    began = cpu_seconds()
    work()  # type: ignore[operator]
    return cpu_seconds() - began


@dataclass(frozen=True)
class Floor:
    """Least seconds of a step."""

    sampling: float
    training: float

    @property
    def total(self) -> float:
        return self.sampling + self.training


def floor(row: Row, model: str, rates: Rates) -> Floor:
    """Sampling: all weights are read once for each token, or are multiplied with every row, whichever takes longer; and
    every different prompt once. Training: 6 x parameters x tokens, every different prompt once; passes without gradient
    2 x. The output layer counts for completion tokens alone; looking tokens up is free. Attention is left out."""
    body, head = _parameters(model)
    lengths = row.lengths()
    tokens, prompt_tokens = sum(lengths), row.prompts * row.prompt_tokens
    once = body * (prompt_tokens + tokens) + head * tokens
    # By the step: how many rows are still to be decoded.
    running = [sum(length > at for length in lengths) for at in range(1, max(lengths))]
    decoding = sum(
        max(4 * (body + head) / rates.bytes_per_second, 2 * (body + head) * n / rates.flops) for n in running
    )
    reading = (2 * body * prompt_tokens + 2 * head * len(lengths)) / rates.flops
    # With several epochs the old log-probs are computed before, and with a KL term those of the reference.
    passes = (row.epochs > 1) + (row.kl > 0)
    return Floor(decoding + reading, (6 * row.epochs + 2 * passes) * once / rates.flops)


def _parameters(model: str) -> tuple[int, int]:
    """Those of the layers and those of the output layer."""
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    head = module.get_output_embeddings().weight.numel()
    whole = sum(p.numel() for p in module.parameters())
    tied = module.get_input_embeddings().weight is module.get_output_embeddings().weight
    return whole - head * (1 if tied or module.config.tie_word_embeddings else 2), head

"""What every kind of training shares: the optimizer, its schedule, one optimizer step, and how a batch is cut.

A gradient must not depend on the cut. The scalar loss of a microbatch is a sum over its tokens divided by a denominator
that was counted over the whole minibatch, so the gradients of the microbatches simply add up.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from oncurve.config import Optimisation
from oncurve.data.order import permutation
from oncurve.models.causal_lm import CausalLM
from oncurve.types import Group


def learning_rate(config: Optimisation, step: int, total_steps: int) -> float:
    """The rate of optimizer step ``step`` (0-based): linear warm-up, then constant, or linear or cosine decay to
    ``final_fraction`` at the last step. A pure function, so resuming needs no scheduler state."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    decay_steps = max(1, total_steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / decay_steps)
    falling = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_fraction + (1.0 - config.final_fraction) * falling)


def make_optimizer(module: nn.Module, config: Optimisation) -> torch.optim.AdamW:
    """AdamW over all trainable parameters; weight decay on matrices only, not on norms and biases."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.learning_rate, betas=config.betas)


def check_sampled(groups: Sequence[Group]) -> None:
    """Raise FloatingPointError if the policy that sampled gave a token no probability in numbers: it has diverged. Its
    completions are worth nothing, and may all score the same, so that no loss would ever show it."""
    for group in groups:
        for completion in group.completions:
            if not math.isfinite(math.fsum(completion.sampler_logprobs)):
                raise FloatingPointError("the log-probabilities of what was sampled are not finite")


@torch.no_grad()
def check_policy(lm: CausalLM, prompt_ids: Sequence[int]) -> None:
    """Raise FloatingPointError if the policy gives no probabilities after ``prompt_ids``. After the last update nothing
    else would show it."""
    hidden = lm.hidden(torch.tensor([list(prompt_ids)], device=lm.device))[:, -1]
    if not bool(lm.logits(hidden).isfinite().all()):
        raise FloatingPointError("the logits of the trained policy are not finite")


def backward(loss: Tensor) -> float:
    """Add the gradient of one microbatch; returns the loss.

    Raises:
        FloatingPointError: the loss is not finite. Its gradient may well be: a masked NaN leaves no trace there.
    """
    value = float(loss.detach())
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss is {value}")
    loss.backward()
    return value


def apply_gradients(module: nn.Module, optimizer: torch.optim.Optimizer, config: Optimisation, rate: float) -> float:
    """Clip the accumulated gradient, step, clear it. Returns the gradient's norm before clipping.

    Raises:
        FloatingPointError: the gradient is not finite; the weights have not been touched.
    """
    norm = nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)
    if not torch.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise FloatingPointError(f"the gradient norm is {norm.item()}")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def shuffled(n: int, *key: object) -> list[int]:
    """A permutation of ``range(n)`` that is a function of ``key`` alone."""
    return permutation(n, "/".join(map(str, key)))


def equal_parts(items: Sequence[int], parts: int) -> list[list[int]]:
    """Cut into ``parts`` runs whose lengths differ by at most one."""
    bounds = [round(index * len(items) / parts) for index in range(parts + 1)]
    return [list(items[a:b]) for a, b in itertools.pairwise(bounds) if b > a]


@contextlib.contextmanager
def recomputing(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Train mode while gradient checkpointing is wanted: transformers recomputes activations in train mode only, and
    refuses its cache there, so sampling must not see it. Dropout is off in either mode."""
    if enabled:
        module.train()
    try:
        yield
    finally:
        module.eval()


@dataclass
class TokenMeans:
    """Running means over the trained tokens of one iteration, for the metrics."""

    sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0

    def add(self, mask: Tensor, **per_token: Tensor) -> None:
        """Add ``[B, T]`` values at the True positions of ``mask``."""
        self.tokens += int(mask.sum())
        for name, values in per_token.items():
            total = float(values.detach()[mask].double().sum())
            self.sums[name] = self.sums.get(name, 0.0) + total

    def include(self, other: TokenMeans) -> None:
        self.tokens += other.tokens
        for name, total in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + total

    def means(self) -> dict[str, float]:
        return {name: total / max(1, self.tokens) for name, total in self.sums.items()}

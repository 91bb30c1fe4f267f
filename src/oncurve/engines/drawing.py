"""What both ways of decoding have in common: what is to be sampled, how a token is drawn, and what is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.functional.decoding import draw, filter_logits, uniforms
from oncurve.types import SamplingParams

# Logits held at a time: a block that the allocator keeps and reuses (see ``functional.linear_logprobs``).
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Wanted:
    """N completions that are to be sampled."""

    prompts: Sequence[tuple[int, ...]]
    """Of each completion, the prompt's token ids."""
    keys: Tensor
    """int64 ``[N]``: the random stream of each."""
    eos: Tensor
    """int64: any of these ends a completion."""
    params: SamplingParams
    max_rows: int
    """Completions that may be decoded side by side."""
    logits: Callable[[Tensor], Tensor]
    """``[B, V]`` of hidden states ``[B, D]``."""
    vocabulary: int
    """V, roughly: it says how many rows of logits are held at a time."""

    def results(self) -> tuple[Tensor, Tensor]:
        """Token ids (int64) and log-probs (float32), ``[N, max_new_tokens]`` each, to be filled in. What stands behind
        the first of ``eos`` is of no account."""
        shape, device = (len(self.prompts), self.params.max_new_tokens), self.keys.device
        return torch.zeros(shape, dtype=torch.int64, device=device), torch.zeros(shape, device=device)

    def ended(self, ids: Tensor) -> Tensor:
        """Which of the tokens ``[B]`` end a completion, as bool ``[B]``."""
        return (ids[:, None] == self.eos).any(dim=1)


@dataclass
class Meter:
    """What is counted while decoding; see ``oncurve.types.Usage``."""

    prefill_seconds: float = 0.0
    running: int = 0
    places: int = 0

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.prefill_seconds += time.perf_counter() - began

    def step(self, running: int, places: int) -> None:
        self.running += running
        self.places += places


def next_tokens(wanted: Wanted, hidden: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """From hidden states ``[B, D]`` the tokens at ``positions [B]`` of the completions with the streams ``keys [B]``.

    Returns ids ``[B]`` and log-probs ``[B]`` under the distribution they were drawn from; for greedy decoding under
    that of temperature 1. Logits are computed for some rows at a time.
    """
    rows = max(1, _CHUNK_ELEMENTS // wanted.vocabulary)
    parts = [
        _drawn(wanted.logits(hidden[chunk]).float(), keys[chunk], positions[chunk], wanted.params)
        for chunk in (slice(at, at + rows) for at in range(0, len(hidden), rows))
    ]
    return torch.cat([ids for ids, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def _drawn(logits: Tensor, keys: Tensor, positions: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    if params.temperature == 0:
        ids = logits.argmax(dim=-1)
        return ids, logits.log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]
    if params.temperature != 1:
        logits = logits / params.temperature
    logits = filter_logits(logits, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    return draw(logits, uniforms(keys, positions))

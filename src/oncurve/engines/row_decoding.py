"""Decoding for any model with a key-value cache: each row has a copy of what was read of its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import Cache

from oncurve.engines.drawing import Meter, Wanted, next_tokens
from oncurve.models.causal_lm import CausalLM
from oncurve.models.kv_cache import growing_cache

# Leaving costs a copy of the cache, so rows that have ended are carried along until they are a quarter of the batch.
_CROWDED = 0.75

# Tokens by which the cache grows at a time: few enough that little memory lies idle when completions end early, enough
# that copying the cache, once in so many tokens, is lost in the time of reading it for each.
_CACHE_ROOM = 256


def decode_rows(lm: CausalLM, wanted: Wanted, meter: Meter) -> tuple[Tensor, Tensor]:
    """Fills in ``wanted.results()``, up to ``max_rows`` completions after another."""
    ids, logprobs = wanted.results()
    for rows in _chunks(wanted, one_length=not lm.padding_is_unseen):
        index = torch.tensor(rows, device=ids.device)
        ids[index], logprobs[index] = _decode(lm, wanted, rows, meter)
    return ids, logprobs


def _chunks(wanted: Wanted, *, one_length: bool) -> Iterator[list[int]]:
    """At most ``max_rows`` rows, prompts of like length together; with ``one_length`` (where padding would be read as
    if it were text) the prompts of a chunk are all of one length."""
    chunk: list[int] = []
    for row in sorted(range(len(wanted.prompts)), key=lambda row: len(wanted.prompts[row])):
        other_length = chunk and len(wanted.prompts[row]) != len(wanted.prompts[chunk[0]])
        if len(chunk) == wanted.max_rows or (one_length and other_length):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _decode(lm: CausalLM, wanted: Wanted, chunk: list[int], meter: Meter) -> tuple[Tensor, Tensor]:
    """Token ids and log-probs, ``[B, max_new_tokens]`` each, of the rows in ``chunk``."""
    limit = wanted.params.max_new_tokens
    prompts = [wanted.prompts[row] for row in chunk]
    with meter.prefilling():
        hidden, cache, of_prompt = _read(lm, prompts, room=min(limit, _CACHE_ROOM))
    lengths, width = of_prompt.sum(dim=1), of_prompt.shape[1]
    padded = not bool(of_prompt.all())
    visible = torch.cat([of_prompt, of_prompt.new_ones(len(prompts), limit)], dim=1)
    keys = wanted.keys[torch.tensor(chunk, device=lm.device)]

    all_ids, all_logprobs = (whole[: len(chunk)] for whole in wanted.results())
    rows = torch.arange(len(prompts), device=lm.device)  # still in the batch
    running = torch.ones_like(rows, dtype=torch.bool)  # [len(rows)]: have not ended
    left = len(chunk)
    for position in range(limit):
        meter.step(left, min(wanted.max_rows, len(wanted.prompts)))
        chosen, logprobs = next_tokens(wanted, hidden, keys[rows], torch.full_like(rows, position))
        all_ids[rows, position] = chosen
        all_logprobs[rows, position] = logprobs
        running = running & ~wanted.ended(chosen)
        left = int(running.sum())
        if left == 0 or position + 1 == limit:
            break
        if left <= _CROWDED * len(rows):
            stay = running.nonzero()[:, 0]
            cache.reorder_cache(stay)  # type: ignore[arg-type]
            rows, chosen, running = rows[stay], chosen[stay], running[stay]
        hidden = lm.hidden(
            chosen[:, None],
            cache=cache,
            visible=visible[rows, : width + position + 1] if padded else None,
            positions=(lengths[rows] + position)[:, None],
        )[:, -1]
    return all_ids, all_logprobs


def _read(lm: CausalLM, prompts: Sequence[tuple[int, ...]], room: int) -> tuple[Tensor, Cache, Tensor]:
    """Read every different prompt once, and give each of its rows a copy of what was read.

    Padding stands on the left: to a model that counts slots (for a sliding window, or for positions), a prompt and its
    completion must be without a gap.

    Returns:
        hidden ``[B, D]``: what predicts the first new token.
        cache: of B rows, with space for ``room`` more tokens before it has to grow.
        visible ``[B, W]``: bool, True = prompt, not padding; W = the longest prompt.
    """
    place_of = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
    width = max(len(ids) for ids in place_of)
    tokens = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in place_of])
    visible = torch.tensor([[False] * (width - len(ids)) + [True] * len(ids) for ids in place_of])
    tokens, visible = tokens.to(lm.device), visible.to(lm.device)
    padded = not bool(visible.all())
    cache = growing_cache(lm.module.config, room)
    hidden = lm.hidden(
        tokens,
        cache=cache,
        visible=visible if padded else None,
        positions=(visible.cumsum(dim=1) - 1).clamp(min=0),
    )[:, -1]
    rows = torch.tensor([place_of[prompt] for prompt in prompts], device=lm.device)
    cache.reorder_cache(rows)  # type: ignore[arg-type]
    return hidden[rows], cache, visible[rows]

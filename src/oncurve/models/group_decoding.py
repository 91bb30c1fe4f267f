"""Decoding the completions of several prompts side by side, each prompt's keys and values held once for its group.

The forward pass is the model's own; only its attention is another, which transformers' ``AttentionInterface`` allows.
Whether a model's attention can be replaced like that is tried, not believed: see :func:`can_decode_groups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from oncurve.models.causal_lm import CausalLM
from oncurve.models.group_cache import Cohort, GroupCache, Prefix

_NAME = "oncurve_groups"
_TOLERANCE = 1e-3
_TOLERANCE_IN_16_BITS = 0.1
"""Of the largest entry of the hidden states: rounding is well below, a scale or a cap left out well above."""


# What a family of its own kind may do with an attention and a cache that it does not know.
_SURPRISES = (AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)


def prefill(lm: CausalLM, prompts: Sequence[Sequence[int]], token_budget: int) -> tuple[Tensor, Prefix]:
    """Read ``prompts``, each once, in forward passes of about ``token_budget`` padded tokens.

    Padding stands on the right, where causal attention never looks.

    Returns:
        hidden ``[U, D]``: what predicts the first token after each prompt.
        what was read.
    """
    lengths = [len(ids) for ids in prompts]
    order = sorted(range(len(prompts)), key=lambda index: lengths[index])
    hidden: list[Tensor] = []
    prefix: Prefix | None = None
    for part in _parts(order, lengths, token_budget):
        last, read = _read(lm, [prompts[index] for index in part])
        hidden.append(last)
        prefix = read if prefix is None else prefix.joined(read)
    assert prefix is not None
    place = torch.tensor(order, device=lm.device).argsort()
    return torch.cat(hidden)[place], prefix if order == sorted(order) else prefix.take(place.tolist())


def decode_step(lm: CausalLM, cohorts: Sequence[Cohort], tokens: Tensor, positions: Tensor) -> Tensor:
    """Hidden states ``[rows, D]`` after one more token for every row of ``cohorts``, whose caches it joins.

    ``tokens`` and ``positions`` (in the whole sequence) are int64 ``[rows]``, cohort by cohort.
    """
    cache = GroupCache(cohorts)
    # A mask with four axes is handed through by transformers as it is; ours is not looked at.
    unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
    with _own_attention(lm):
        output = lm.decoder(
            input_ids=tokens[:, None],
            attention_mask=unread,
            position_ids=positions[:, None],
            use_cache=True,
            group_cache=cache,
            **{lm.cache_keyword: cache},
        )
    return output.last_hidden_state[:, -1]


@torch.no_grad()
def can_decode_groups(lm: CausalLM) -> bool:
    """Whether completions of ``lm`` may be decoded in this way: its layers attend to all that came before by an
    exchangeable attention, and hidden states come out as in a plain forward pass.

    Not so: sliding windows, recurrent layers, attention of a family's own (ALiBi, capped scores). ``lm.module`` must be
    in eval mode.
    """
    config = lm.module.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if not kinds else None
    replaceable = getattr(lm.module, "_supports_attention_backend", False) and getattr(
        lm.module, "_supports_sdpa", False
    )
    if not (lm.padding_is_unseen and kinds <= {"full_attention"} and not window and replaceable):
        return False
    prompts, tails = [[0, 1, 2, 3], [3, 1]], [[2, 1], [0, 3], [1, 1]]
    rows = [0, 0, 1]
    whole = [
        lm.hidden(torch.tensor([prompts[prompt] + tail], device=lm.device))[:, -2:]
        for prompt, tail in zip(rows, tails, strict=True)
    ]
    try:
        _, prefix = prefill(lm, prompts, 100)
        cohort = Cohort(prefix, [2, 1], limit=2)
        steps = [
            decode_step(lm, [cohort], torch.tensor(tokens, device=lm.device), cohort.starts + at)
            for at, tokens in enumerate(zip(*tails, strict=True))
        ]
    except torch.OutOfMemoryError:
        raise
    except _SURPRISES:
        return False
    expected, found = torch.cat(whole), torch.stack(steps, dim=1)
    gap = float((found - expected).abs().max() / expected.abs().max())
    return gap <= (_TOLERANCE_IN_16_BITS if expected.dtype.itemsize == 2 else _TOLERANCE)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    group_cache: GroupCache | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``[rows, 1, H, D]`` of queries ``[rows, H, 1, D]``: transformers' attention interface. Key and value are in the
    cache already."""
    assert group_cache is not None
    layer: int = module.layer_idx  # type: ignore[assignment]
    rows, heads, _one, width = query.shape
    key_heads = key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    grouped = query.reshape(rows, key_heads, heads // key_heads, width).transpose(0, 1)
    read = [
        cohort.attend(layer, grouped[:, begin:end], scale)
        for cohort, (begin, end) in zip(group_cache.cohorts, group_cache.bounds, strict=True)
    ]
    found = read[0] if len(read) == 1 else torch.cat(read, dim=1)
    return found.transpose(0, 1).reshape(rows, 1, heads, width), None


AttentionInterface.register(_NAME, _attention)


@contextmanager
def _own_attention(lm: CausalLM) -> Iterator[None]:
    config: Any = lm.decoder.config
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def _read(lm: CausalLM, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Prefix]:
    """As :func:`prefill`, in one forward pass."""
    width = max(len(ids) for ids in prompts)
    tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts], device=lm.device)
    lengths = torch.tensor([len(ids) for ids in prompts], device=lm.device)
    cache = DynamicCache(config=lm.module.config)
    hidden = lm.hidden(tokens, cache=cache)
    keys, values = list[Tensor](), list[Tensor]()
    for layer in cache.layers:
        keys.append(layer.keys.transpose(0, 1).contiguous())  # type: ignore[union-attr]
        values.append(layer.values.transpose(0, 1).contiguous())  # type: ignore[union-attr]
        layer.keys = layer.values = None  # type: ignore[union-attr]  # given back layer by layer
    return hidden[torch.arange(len(prompts), device=lm.device), lengths - 1], Prefix(keys, values, lengths)


def _parts(order: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """``order`` (from short to long) cut so that no part is over the budget, and padding is under a quarter of it or
    of little account."""
    parts: list[list[int]] = []
    real = 0
    for index in order:
        padded = (len(parts[-1]) + 1) * lengths[index] if parts else 0
        wasted = padded - real - lengths[index]
        if parts and padded <= token_budget and wasted <= max(256, padded // 4):
            parts[-1].append(index)
            real += lengths[index]
        else:
            parts.append([index])
            real = lengths[index]
    return parts

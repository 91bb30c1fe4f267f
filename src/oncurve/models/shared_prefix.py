"""Hidden states of a group's completions, with their common prompt computed once.

The rows of a GRPO batch come in groups with one prompt. A plain forward pass computes the prompt again for each row;
here every different prompt passes the model once, with its gradient, and its keys and values serve all completions. For
a prompt of 512 tokens and eight completions of 64 that is 1,024 tokens in place of 4,608.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from oncurve.models.causal_lm import CausalLM
from oncurve.types import Batch


@dataclass(frozen=True)
class Prefixes:
    """What the rows of a batch have in common: U different prompts, padded on the left."""

    tokens: Tensor
    """int64 ``[U, W]``."""
    visible: Tensor
    """bool ``[U, W]``: True = prompt, not padding."""
    of_row: Tensor
    """int64 ``[B]``: the prompt of each row."""
    lengths: Tensor
    """int64 ``[B]``: its tokens."""

    @property
    def padded(self) -> bool:
        return not bool(self.visible.all())


def prefixes(batch: Batch) -> Prefixes:
    """The prompts of ``batch``: what stands before the first token that is trained on."""
    lengths = prompt_lengths(batch)
    rows, starts = batch.tokens.tolist(), lengths.tolist()
    place_of: dict[tuple[int, ...], int] = {}
    of_row = [place_of.setdefault(tuple(row[:start]), len(place_of)) for row, start in zip(rows, starts, strict=True)]
    width = max(starts)
    padded = [[0] * (width - len(ids)) + list(ids) for ids in place_of]
    visible = [[False] * (width - len(ids)) + [True] * len(ids) for ids in place_of]
    new = batch.tokens.new_tensor
    return Prefixes(
        new(padded), torch.tensor(visible, device=batch.tokens.device), new(of_row), lengths.to(batch.tokens.device)
    )


def prompt_lengths(batch: Batch) -> Tensor:
    """int64 ``[B]``: tokens before the first that is trained on; of a row without one, all but the last."""
    mask = batch.completion_mask
    return torch.where(mask.any(dim=1), mask.long().argmax(dim=1), batch.lengths - 1)


def worth_sharing(lm: CausalLM, batch: Batch) -> bool:
    """Whether prompts come more than once, and this model can have them computed once."""
    if not lm.shares_prefixes or batch.positions is not None or len(batch) < 2:
        return False
    lengths = prompt_lengths(batch).tolist()
    if min(lengths) < 1:
        return False
    rows = batch.tokens.tolist()
    distinct = {tuple(row[:length]) for row, length in zip(rows, lengths, strict=True)}
    return len(distinct) < len(rows)


def predictors(lm: CausalLM, batch: Batch) -> Tensor:
    """``[N, D]``: the hidden state that predicts each completion token, row by row, as ``hidden[predictor_mask]`` of a
    plain forward pass would give it.

    The last token of a row is not computed: nothing is predicted from it.
    """
    found = prefixes(batch)
    cache = DynamicCache(config=lm.module.config)
    positions = (found.visible.cumsum(dim=1) - 1).clamp(min=0)
    of_prompt = lm.hidden(
        found.tokens, cache=cache, visible=found.visible if found.padded else None, positions=positions
    )
    last = of_prompt[:, -1][found.of_row]  # [B, D]
    suffixes, longest = _suffixes(batch, found.lengths)
    if longest > 1:
        # index_select, whose backward pass adds the gradients of a group's rows up
        cache.reorder_cache(found.of_row)  # type: ignore[arg-type]
        tokens = suffixes[:, :-1]
        steps = torch.arange(longest - 1, device=tokens.device)
        visible = None
        if found.padded:
            visible = torch.cat([found.visible[found.of_row], torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        of_suffix = lm.hidden(tokens, cache=cache, visible=visible, positions=found.lengths[:, None] + steps)
        hidden = torch.cat([last[:, None], of_suffix], dim=1)  # [B, longest, D]
    else:
        hidden = last[:, None]
    rows, columns = batch.completion_mask.nonzero(as_tuple=True)
    return hidden[rows, columns - found.lengths[rows]]


def _suffixes(batch: Batch, lengths: Tensor) -> tuple[Tensor, int]:
    """int64 ``[B, S]``: what follows the prompt, padded on the right; and S."""
    longest = int((batch.lengths - lengths).max())
    columns = lengths[:, None] + torch.arange(longest, device=lengths.device)
    inside = columns < batch.lengths[:, None]
    tokens = batch.tokens.gather(1, columns.clamp(max=batch.tokens.shape[1] - 1))
    return torch.where(inside, tokens, 0), longest


def grouped_microbatches(
    prompts: Sequence[int], prompt_sizes: Sequence[int], sizes: Sequence[int], token_budget: int
) -> list[list[int]]:
    """Row numbers, the rows of a prompt together, so that what is computed is at most ``token_budget`` padded tokens:
    different prompts x longest prompt + rows x longest completion.

    Prompts of like length come together, the longest first, and within a prompt the longest completions. A prompt whose
    rows are over the budget is spread over several microbatches; a row that is over it by itself is one of its own.
    """
    first_with: dict[int, int] = {}
    for row, prompt in enumerate(prompts):
        first_with.setdefault(prompt, row)
    order = sorted(
        range(len(prompts)),
        key=lambda row: (-prompt_sizes[row], first_with[prompts[row]], prompt_sizes[row] - sizes[row]),
    )
    groups: list[list[int]] = []
    widest = longest = 0
    seen: set[int] = set()
    for row in order:
        width, length = max(widest, prompt_sizes[row]), max(longest, sizes[row] - prompt_sizes[row])
        different = len(seen | {prompts[row]})
        if groups and different * width + (len(groups[-1]) + 1) * length <= token_budget:
            groups[-1].append(row)
        else:
            groups.append([row])
            width, length, seen = prompt_sizes[row], sizes[row] - prompt_sizes[row], set()
        widest, longest = width, length
        seen.add(prompts[row])
    return groups

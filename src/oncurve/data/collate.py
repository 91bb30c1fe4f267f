"""From rows of token ids to one padded batch, and how to cut a batch into forward passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oncurve.types import Batch

Device = torch.device | str | None


def collate(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    pad_id: int,
    *,
    completion_masks: Sequence[Sequence[bool]] | None = None,
    device: Device = None,
) -> Batch:
    """``(prompt_ids, completion_ids)`` rows as one batch ``[B, T]``, padded on the right.

    The completion mask goes by length, never by looking for ``pad_id`` or EOS: padding with EOS is legal. With
    ``completion_masks`` (one bool per completion token) only the True tokens of a completion are trained on.

    Raises ValueError for a row without prompt (nothing would predict its first token) or without completion.
    """
    if not rows:
        raise ValueError("a batch needs at least one row")
    for index, (prompt, completion) in enumerate(rows):
        if not prompt or not completion:
            raise ValueError(f"row {index} has an empty {'completion' if prompt else 'prompt'}")
    masks = [[True] * len(completion) for _, completion in rows] if completion_masks is None else completion_masks
    lengths = [len(prompt) + len(completion) for prompt, completion in rows]
    tokens = torch.full((len(rows), max(lengths)), pad_id, dtype=torch.int64)
    completion_mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for index, ((prompt, completion), mask) in enumerate(zip(rows, masks, strict=True)):
        if len(mask) != len(completion):
            raise ValueError(f"row {index} has {len(completion)} completion tokens and a mask of {len(mask)}")
        tokens[index, : lengths[index]] = torch.tensor([*prompt, *completion])
        completion_mask[index, len(prompt) : lengths[index]] = torch.tensor(mask, dtype=torch.bool)
    return Batch(tokens.to(device), torch.tensor(lengths, device=device), completion_mask.to(device))


def packed(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], token_budget: int, device: Device = None
) -> list[Batch]:
    """``(prompt_ids, completion_ids)`` rows end to end without padding, as batches of one row ``[1, T]`` of at most
    ``token_budget`` tokens (a longer sequence has a batch of its own).

    Positions begin again at 0 with each sequence, and by that transformers keeps the sequences of a row apart; it does
    so only when it builds no cache. Nothing is padded, but attention is masked over the whole row: on a CPU, where the
    mask skips no work, ``microbatches`` of padded rows is usually faster for short sequences.
    """
    lengths = [len(prompt) + len(completion) for prompt, completion in rows]
    packs: list[list[int]] = []
    filled = 0
    for index in range(len(rows)):
        if not packs or filled + lengths[index] > token_budget:
            packs.append([])
            filled = 0
        packs[-1].append(index)
        filled += lengths[index]
    return [_one_row([rows[index] for index in pack], device) for pack in packs]


def _one_row(rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: Device) -> Batch:
    tokens = [token for prompt, completion in rows for token in (*prompt, *completion)]
    mask = [trained for prompt, completion in rows for trained in [False] * len(prompt) + [True] * len(completion)]
    positions = [place for prompt, completion in rows for place in range(len(prompt) + len(completion))]
    return Batch(
        torch.tensor([tokens], device=device),
        torch.tensor([len(tokens)], device=device),
        torch.tensor([mask], device=device),
        torch.tensor([positions], device=device),
    )


def microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Row numbers, grouped so that ``rows x longest row`` is at most ``token_budget`` padded tokens.

    Rows of like length come together, the longest first: a batch too large for the memory fails at once, not after an
    hour. A row that is over the budget by itself is a group of its own. Every row stands in exactly one group.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):  # stable: equal lengths keep their order
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= token_budget:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups

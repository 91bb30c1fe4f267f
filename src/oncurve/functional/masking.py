"""Which tokens are the model's own: completions end with their first end-of-sequence token, or by truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_ids


def completion_lengths(ids: Tensor, eos: int | Sequence[int], lengths: Tensor | None = None) -> Tensor:
    """Tokens of each completion, up to and including the first end-of-sequence token.

        length[b] = 1 + min{t < lengths[b] : ids[b, t] = eos},   or lengths[b] if there is none

    What was sampled is told by ``lengths``, never by looking for pads: the pad id may equal the end-of-sequence id (the
    first one then belongs to the completion, the rest are padding), and a truncated row has pads but no end.

    Args:
        ids: ``[B, T]`` int64, completions alone, padded on the right with anything.
        eos: the end-of-sequence id, or several of which any ends a completion.
        lengths: ``[B]`` int64, sampled tokens of each row, each in ``[0, T]``; by default T, for rows that were never
            padded before their end.

    Returns:
        ``[B]`` int64, in tokens.

    Source: the sum over t = 1..abs(o_i) in DeepSeekMath (arXiv 2402.03300) eq. 3, with o_i up to its end-of-sequence
    token.

    >>> completion_lengths(torch.tensor([[11, 12, 2, 0, 0], [11, 12, 13, 14, 15]]), eos=2)
    tensor([3, 5])
    """
    ends = _ends(ids, eos, lengths)
    # A token counts if no end-of-sequence token came before it.
    before_end = ends.cumsum(dim=1) - ends.long() == 0
    return (before_end & _within(ids, lengths)).sum(dim=1)


def truncated(ids: Tensor, eos: int | Sequence[int], lengths: Tensor | None = None) -> Tensor:
    """Which completions were cut by a limit, not ended by the model.

        truncated[b] = no t < lengths[b] has ids[b, t] = eos

    Args:
        ids: ``[B, T]`` int64, as in :func:`completion_lengths`, and so are the others.
        eos: the end-of-sequence id or ids.
        lengths: ``[B]`` int64, sampled tokens of each row; by default T.

    Returns:
        bool ``[B]``.

    Source: DAPO (arXiv 2503.14476) section 3.4 on why truncation must be told from a wrong answer.

    >>> truncated(torch.tensor([[11, 12, 2, 0, 0], [11, 12, 13, 14, 15]]), eos=2)
    tensor([False,  True])
    """
    return ~_ends(ids, eos, lengths).any(dim=1)


def completion_mask(prompt_lengths: Tensor, lengths: Tensor, width: int) -> Tensor:
    """The tokens that are trained on, in rows of prompt + completion padded on the right.

        mask[b, t] = prompt_lengths[b] <= t < prompt_lengths[b] + lengths[b]

    Args:
        prompt_lengths: ``[B]`` int64, tokens of each prompt.
        lengths: ``[B]`` int64, tokens of each completion as :func:`completion_lengths` counts them, so that the first
            end-of-sequence token is included and nothing after it.
        width: T, at least the longest prompt + completion.

    Returns:
        bool ``[B, T]``, True = trained on.

    Source: the indicator of the completion's tokens in DeepSeekMath (arXiv 2402.03300) eq. 3.

    >>> completion_mask(torch.tensor([2, 1]), torch.tensor([1, 3]), width=5).int()
    tensor([[0, 0, 1, 0, 0],
            [0, 1, 1, 1, 0]], dtype=torch.int32)
    """
    check_ids("prompt_lengths", prompt_lengths)
    check_axes("prompt_lengths", prompt_lengths, "B")
    check_ids("lengths", lengths)
    if lengths.shape != prompt_lengths.shape:
        raise ValueError(
            f"lengths {list(lengths.shape)} and prompt_lengths {list(prompt_lengths.shape)} must both have shape [B]"
        )
    wrong = (prompt_lengths < 0) | (lengths < 0) | (lengths > width - prompt_lengths)  # their sum may overflow
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} has a prompt of {int(prompt_lengths[row])} and a completion of {int(lengths[row])} tokens; "
            f"both must be at least 0 and their sum at most the width {width}"
        )
    position = torch.arange(width, device=lengths.device)
    start = prompt_lengths.unsqueeze(1)
    return (position >= start) & (position < start + lengths.unsqueeze(1))


def _ends(ids: Tensor, eos: int | Sequence[int], lengths: Tensor | None) -> Tensor:
    """bool ``[B, T]``: the sampled tokens that end a completion."""
    check_ids("ids", ids)
    check_axes("ids", ids, "BT")
    eos_ids = torch.tensor([eos] if isinstance(eos, int) else list(eos), dtype=torch.int64, device=ids.device)
    return torch.isin(ids, eos_ids) & _within(ids, lengths)


def _within(ids: Tensor, lengths: Tensor | None) -> Tensor:
    """bool ``[B, T]``: the sampled tokens."""
    rows, width = ids.shape
    if lengths is None:
        return torch.ones_like(ids, dtype=torch.bool)
    check_ids("lengths", lengths)
    if lengths.shape != (rows,):
        raise ValueError(f"lengths must have shape [B] with the B of ids {list(ids.shape)}, got {list(lengths.shape)}")
    wrong = (lengths < 0) | (lengths > width)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"lengths[{row}] is {int(lengths[row])}; it must be between 0 and the width of ids, {width}")
    return torch.arange(width, device=ids.device) < lengths.unsqueeze(1)

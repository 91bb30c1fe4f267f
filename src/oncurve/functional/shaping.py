"""What is done to rewards before they become advantages, and which completions are kept.

The rewards here are added to others by the caller. They are float64, like sums of rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.functional._checks import check_ids, check_mask, check_same_shape
from oncurve.functional._moments import check_scores, deviations, first
from oncurve.functional.advantages import zero_variance

_TIE = 1e-12


def soft_overlong(lengths: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """A punishment that grows over the last tokens before the limit, so that being cut off is not a surprise.

        n <= max_length - buffer:   0
        n <= max_length:            (max_length - buffer - n) / buffer
        n >  max_length:           -1

    Args:
        lengths: int64, any shape, tokens of each completion, at least 0.
        max_length: tokens at which the punishment is whole, at least 1.
        buffer: tokens over which it grows, from 1 to max_length.

    Returns:
        float64 of the same shape, between -1 and 0, to be added to the reward.

    Raises:
        ValueError: a negative length, or max_length or buffer out of range.

    Source: DAPO (arXiv 2503.14476) eq. 13; there max_length is 20480 and buffer 4096, with rewards of 1 and -1.

    >>> soft_overlong(torch.tensor([80, 90, 100, 101]), max_length=100, buffer=20)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000], dtype=torch.float64)
    """
    _check_lengths(lengths)
    _check_max_length(max_length)
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer must be between 1 and max_length, {max_length}; got {buffer}")
    return ((max_length - buffer - lengths).double() / buffer).clamp(-1.0, 0.0)


def cosine_length(
    lengths: Tensor,
    correct: Tensor,
    *,
    max_length: int,
    correct_shortest: float = 2.0,
    correct_longest: float = 1.0,
    wrong_shortest: float = -10.0,
    wrong_longest: float = 0.0,
    exceeding: float | None = -10.0,
) -> Tensor:
    """A reward that falls with length where the answer is right and rises with it where it is wrong.

        R(n) = longest + (shortest - longest) / 2 (1 + cos(pi n / max_length)),   n < max_length
        R(n) = exceeding,                                                         n >= max_length

    with shortest and longest of the kind the completion is of. Think longer if it helps, and stop when it is done.

    Args:
        lengths: int64, any shape, tokens of each completion, at least 0.
        correct: bool, the same shape.
        max_length: tokens, at least 1: the limit of generation.
        correct_shortest: reward of a right answer of no token.
        correct_longest: what it falls to at max_length.
        wrong_shortest: reward of a wrong answer of no token.
        wrong_longest: what it rises to at max_length.
        exceeding: reward at max_length and beyond, right or wrong; None: correct_longest or wrong_longest.

    Returns:
        float64 of the same shape: the whole reward for correctness, not an addition to it.

    Raises:
        ValueError: a negative length, a max_length under 1, a reward that is not finite, a wrong shape.

    Source: Yeo et al. (arXiv 2502.03373), cosine reward; the defaults are those of its authors' scripts for section 4.2
    (TRL's ``get_cosine_scaled_reward`` has 1, 0.5, -1, -0.5 and no exceeding). Deviation: their code counts as
    exceeding what comes within 16 tokens of the limit.

    >>> cosine_length(torch.tensor([0, 50, 0, 50, 100]), torch.tensor([1, 1, 0, 0, 1]).bool(), max_length=100)
    tensor([  2.0000,   1.5000, -10.0000,  -5.0000, -10.0000], dtype=torch.float64)
    """
    _check_lengths(lengths)
    check_mask("correct", correct)
    check_same_shape("correct", correct, "lengths", lengths)
    _check_max_length(max_length)
    for name, value in (
        ("correct_shortest", correct_shortest),
        ("correct_longest", correct_longest),
        ("wrong_shortest", wrong_shortest),
        ("wrong_longest", wrong_longest),
        ("exceeding", 0.0 if exceeding is None else exceeding),
    ):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
    share_of_shortest = (1 + (lengths.clamp(max=max_length).double() * (math.pi / max_length)).cos()) / 2
    right = correct_longest + (correct_shortest - correct_longest) * share_of_shortest
    wrong = wrong_longest + (wrong_shortest - wrong_longest) * share_of_shortest
    rewards = torch.where(correct, right, wrong)
    return rewards if exceeding is None else torch.where(lengths >= max_length, exceeding, rewards)


def repetition_penalty(completions: Sequence[Sequence[int]], *, n: int, max_penalty: float) -> Tensor:
    """A punishment by the share of n-grams that were there before.

        penalty = (1 - unique n-grams / n-grams) * max_penalty,   0 if the completion is shorter than n

    Args:
        completions: N sequences of token ids, of any lengths, without padding (which would count as repetition).
        n: tokens of an n-gram, at least 1.
        max_penalty: at most 0; what a completion that only repeats itself comes near.

    Returns:
        ``[N]`` float64, between max_penalty and 0, to be added to the reward.

    Raises:
        ValueError: an n under 1, or a max_penalty that is above 0 or not finite.
        TypeError: a completion that is text or a tensor, whose entries would be taken for token ids one by one.

    Source: Yeo et al. (arXiv 2502.03373) appendix C.2, for wrong answers; their code and TRL's
    ``get_repetition_penalty_reward``. Deviation: n-grams of tokens, where that code has words in lower case.

    >>> repetition_penalty([[5, 5, 5, 5, 5], [1, 2, 3], [4]], n=2, max_penalty=-1.0)
    tensor([-0.7500,  0.0000,  0.0000], dtype=torch.float64)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if not (max_penalty <= 0 and math.isfinite(max_penalty)):
        raise ValueError(f"max_penalty must be a finite number of at most 0, got {max_penalty}")
    penalties: list[float] = []
    for row, ids in enumerate(completions):
        if isinstance(ids, str | bytes | Tensor):
            raise TypeError(f"completions[{row}] must be a list of token ids, got {type(ids).__name__}")
        total = len(ids) - n + 1
        repeated = total - len({tuple(ids[start : start + n]) for start in range(total)}) if total > 0 else 0
        penalties.append(max_penalty * repeated / total if repeated else 0.0)
    return torch.tensor(penalties, dtype=torch.float64)


def informative_groups(rewards: Tensor) -> Tensor:
    """The groups worth an update: those in which some completion is better than another.

        keep[p] = not zero_variance(r)[p]

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored.

    Returns:
        bool ``[P]``, True = kept.

    Raises:
        ValueError: an infinite reward or a wrong shape.

    Source: dynamic sampling of DAPO (arXiv 2503.14476) section 3.2, eq. 11: 0 < correct completions < G. Deviation: any
    reward is taken, not only 0 and 1, and with a length or format term in it a group of nothing but wrong answers is
    kept; give the rewards for correctness alone to have the paper's filter.

    >>> informative_groups(torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]))
    tensor([False, False,  True])
    """
    return ~zero_variance(rewards)


def max_variance_rows(rewards: Tensor, keep: int) -> Tensor:
    """The completions of each group whose rewards differ most from one another: some of the best, some of the worst.

        out[p] = the subset of ``keep`` completions with the largest variance of r[p],
                 which is the k best and the keep - k worst for some k

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored: chosen only if there are too few others.
        keep: from 1 to G.

    Returns:
        ``[P, keep]`` int64, samples of each group, in ascending order. Of several k the largest is taken, of equal
        rewards the earlier sample among the best and the later one among the worst.

    Raises:
        ValueError: keep out of range, an infinite reward or a wrong shape.

    Source: PODS (arXiv 2504.13818), max-variance down-sampling, in O(G log G). The authors take the advantages from the
    rows that are kept; taken from the whole group before, they keep the group's mean.

    >>> max_variance_rows(torch.tensor([[0.1, 1.0, 0.4, 0.9, 0.0, 0.5]]), keep=4)
    tensor([[0, 1, 3, 4]])
    """
    check_scores("rewards", rewards, "PG")
    group_size = rewards.shape[1]
    if not 1 <= keep <= group_size:
        raise ValueError(f"keep must be between 1 and the group size, {group_size}; got {keep}")
    order = rewards.nan_to_num(nan=-math.inf).argsort(dim=1, descending=True, stable=True)
    values, scored = deviations(rewards)
    sums = _prefix_sums(values.gather(1, order))
    squares = _prefix_sums(values.square().gather(1, order))
    n = scored.sum(dim=1, keepdim=True)
    chosen = n.clamp(max=keep)
    # For every k: how much the k best and the (chosen - k) worst of the scored add up to.
    k = torch.minimum(torch.arange(keep + 1, device=rewards.device).expand(len(rewards), -1), chosen)
    tail = n - (chosen - k)
    total = sums.gather(1, k) + sums.gather(1, n) - sums.gather(1, tail)
    spread = squares.gather(1, k) + squares.gather(1, n) - squares.gather(1, tail)
    spread = spread - total.square() / chosen.clamp(min=1)
    # k that differ by rounding alone are a tie.
    best = torch.where(spread >= spread.amax(dim=1, keepdim=True) * (1 - _TIE), k, 0).amax(dim=1, keepdim=True)
    slot = torch.arange(keep, device=rewards.device)
    # Best first, then from the end of the scored, then the unscored that follow them.
    place = torch.where(slot < best, slot, n - chosen + slot)
    return order.gather(1, place).sort(dim=1).values


def _prefix_sums(values: Tensor) -> Tensor:
    """``[P, G + 1]``: out[p, g] = the sum of the first g values."""
    return torch.nn.functional.pad(values.cumsum(dim=1), (1, 0))


def _check_lengths(lengths: Tensor) -> None:
    check_ids("lengths", lengths)
    negative = lengths < 0
    if bool(negative.any()):
        where = first(negative)
        raise ValueError(f"lengths[{', '.join(map(str, where))}] is {int(lengths[where])}; a length is at least 0")


def _check_max_length(max_length: int) -> None:
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")

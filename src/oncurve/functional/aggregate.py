"""From per-token values to one scalar, in a way that does not depend on how the batch was cut.

The denominator is counted over everything that one optimizer step trains on and is passed in. The sum over microbatches
(and ranks) of ``aggregate(...)``, each with that same denominator, is then the value of the whole batch, and so is the
gradient. A mean of microbatch means is not: for token means 2.6 in place of 2.857 in the tests' example.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float, check_ids, check_mask, check_same_shape

AggregationMode = Literal["sequence_mean", "token_mean", "prompt_mean", "length_budget"]
"""Who weighs the same: ``sequence_mean`` every completion (mean over its tokens, then over completions); ``token_mean``
every token of the step; ``prompt_mean`` every prompt (mean over the tokens of all its completions, then over prompts);
``length_budget`` every token, by a constant: a long completion counts for more than a short one, and how much does not
depend on what else is in the step."""


def denominator(
    mask: Tensor, mode: AggregationMode, *, groups: Tensor | None = None, budget: int | None = None
) -> float:
    """What :func:`aggregate` divides by, counted over a whole optimizer step.

        sequence_mean: rows                  token_mean:    True entries
        prompt_mean:   prompts               length_budget: rows * budget

    Counts of microbatches, and of ranks, add up, with one exception: a prompt whose rows are cut apart would be counted
    in each part. Count the prompts of ``prompt_mean`` once, over the whole step.

    Args:
        mask: bool ``[B, T]``, True = trained on. A row without a True entry counts as a row in ``sequence_mean`` and
            ``length_budget``, and its prompt as a prompt: it was sampled, and adds 0 to the sum.
        mode: see :data:`AggregationMode`.
        groups: ``[B]`` int64, the same id for the rows of one prompt; ``prompt_mean`` alone needs it, and looks at it.
        budget: tokens a completion may have, at least 1; ``length_budget`` alone needs it, and looks at it. A constant
            of the run, not the longest completion of the step.

    Returns:
        Completions, tokens or prompts, as a float.

    Raises:
        ValueError: groups or budget is missing where it is needed, a wrong shape or mode.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3, 1/G; DAPO (arXiv 2503.14476) eq. 8, 1/sum_i abs(o_i); ScaleRL (arXiv
    2510.13786) section 3.2, prompt average; Dr. GRPO (arXiv 2503.20783), constant in place of abs(o_i). Deviation: over
    all rows of the step, where the papers write one group.

    >>> mask = torch.tensor([[True, True, False], [True, False, False]])
    >>> denominator(mask, "sequence_mean"), denominator(mask, "token_mean")
    (2.0, 3.0)
    >>> denominator(mask, "prompt_mean", groups=torch.tensor([7, 7])), denominator(mask, "length_budget", budget=8)
    (1.0, 16.0)
    """
    check_mask("mask", mask)
    check_axes("mask", mask, "BT")
    _check_mode(mode)
    if mode == "prompt_mean":
        if groups is None:
            raise ValueError("prompt_mean needs groups: the prompt of each row")
        _check_rows("groups", groups, mask)
        return float(_prompt_numbers(groups).max()) + 1 if len(groups) else 0.0
    if mode == "length_budget":
        if not isinstance(budget, int) or budget < 1:
            raise ValueError(f"length_budget needs a budget of at least 1 token per completion, got {budget}")
        return float(mask.shape[0] * budget)
    return float(mask.shape[0]) if mode == "sequence_mean" else float(mask.sum())


def group_token_counts(mask: Tensor, groups: Tensor) -> Tensor:
    """For each row, the trained tokens of all rows of its prompt: what ``prompt_mean`` weighs it by.

        out[b] = sum over c with groups[c] = groups[b] of sum_t mask[c, t]

    Args:
        mask: bool ``[B, T]``, True = trained on: all rows of the optimizer step, before it is cut into microbatches.
        groups: ``[B]`` int64, the same id for the rows of one prompt, in any order.

    Returns:
        int64 ``[B]``, in tokens. Cut it along with the rows.

    Source: ScaleRL (arXiv 2510.13786) section 3.2, prompt average.

    >>> mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    >>> group_token_counts(mask, torch.tensor([4, 9, 4]))
    tensor([5, 1, 5])
    """
    check_mask("mask", mask)
    check_axes("mask", mask, "BT")
    _check_rows("groups", groups, mask)
    numbers = _prompt_numbers(groups)
    return torch.zeros_like(groups).index_add_(0, numbers, mask.sum(dim=1))[numbers]


def aggregate(
    per_token: Tensor, mask: Tensor, mode: AggregationMode, denominator: float, *, group_tokens: Tensor | None = None
) -> Tensor:
    """The share of these rows in the mean over one optimizer step.

        sequence_mean: 1/D sum_b 1/n_b sum_t mask[b, t] x[b, t]            n_b = sum_t mask[b, t]
        token_mean:    1/D sum_b       sum_t mask[b, t] x[b, t]
        prompt_mean:   1/D sum_b 1/m_b sum_t mask[b, t] x[b, t]            m_b = tokens of all rows of b's prompt
        length_budget: 1/D sum_b       sum_t mask[b, t] x[b, t]

    Args:
        per_token: ``[B, T]`` float32 or float64.
        mask: bool ``[B, T]``, True = counted. Where it is False per_token may hold anything, nan and infinities
            included: it reaches neither the value nor the gradient.
        mode: see :data:`AggregationMode`.
        denominator: D, from :func:`denominator` over the whole step, above 0.
        group_tokens: ``[B]`` int64, m_b from :func:`group_token_counts` over the whole step; ``prompt_mean`` alone
            needs it, and looks at it.

    Returns:
        Scalar of the dtype of ``per_token``. A row without a True entry adds 0.

    Raises:
        ValueError: a denominator that is not above 0, group_tokens missing where it is needed, a wrong shape or mode.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3 (sequence_mean); DAPO (arXiv 2503.14476) eq. 8 (token_mean); ScaleRL
    (arXiv 2510.13786) section 3.2 (prompt_mean); Dr. GRPO (arXiv 2503.20783) (length_budget; the authors' code divides
    by the generation limit). Deviation: sums are taken in float64, so that the order of the rows and the padding do not
    show in a float32 result.

    >>> per_token = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0], [4.0, 0.0, 0.0, 0.0]])
    >>> mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    >>> aggregate(per_token, mask, "sequence_mean", denominator=3.0)
    tensor(3.)
    >>> aggregate(per_token, mask, "token_mean", denominator=7.0)
    tensor(2.8571)
    >>> aggregate(per_token, mask, "prompt_mean", denominator=2.0, group_tokens=torch.tensor([6, 6, 1]))
    tensor(3.3333)
    >>> aggregate(per_token, mask, "length_budget", denominator=24.0)
    tensor(0.8333)
    """
    check_float("per_token", per_token)
    check_axes("per_token", per_token, "BT")
    check_mask("mask", mask)
    check_same_shape("mask", mask, "per_token", per_token)
    _check_mode(mode)
    if not (denominator > 0 and math.isfinite(denominator)):
        raise ValueError(f"denominator must be a finite number above 0, got {denominator}")
    # where, not a product with the mask: inf * 0 is nan.
    row_sums = torch.where(mask, per_token, 0.0).sum(dim=1, dtype=torch.float64)
    if mode == "sequence_mean":
        row_sums = row_sums / mask.sum(dim=1).clamp(min=1)
    elif mode == "prompt_mean":
        if group_tokens is None:
            raise ValueError(
                "prompt_mean needs group_tokens: the trained tokens of each row's prompt in the whole step"
            )
        _check_rows("group_tokens", group_tokens, mask)
        if bool((group_tokens < mask.sum(dim=1)).any()):
            raise ValueError("group_tokens must count at least the trained tokens of each row itself")
        row_sums = row_sums / group_tokens.clamp(min=1)
    return (row_sums.sum() / denominator).to(per_token.dtype)


def _check_mode(mode: str) -> None:
    if mode not in get_args(AggregationMode):
        raise ValueError(f"mode must be one of {', '.join(get_args(AggregationMode))}; got {mode!r}")


def _prompt_numbers(groups: Tensor) -> Tensor:
    """``[B]`` int64: the ids of prompts, whatever they are, as 0, 1, 2, ..."""
    ordered, order = groups.sort()
    starts = torch.zeros_like(groups)
    starts[1:] = ordered.diff() != 0
    return torch.empty_like(groups).scatter(0, order, starts.cumsum(dim=0))


def _check_rows(name: str, per_row: Tensor, mask: Tensor) -> None:
    check_ids(name, per_row)
    if per_row.shape != mask.shape[:1]:
        raise ValueError(f"{name} must have shape [B] with the B of mask {list(mask.shape)}, got {list(per_row.shape)}")

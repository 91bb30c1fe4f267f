"""Process supervision: a reward for each step of a completion, and so an advantage for each of its tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float, check_ids, check_same_shape
from oncurve.functional._moments import check_ddof_and_eps, check_scores, first, normalised


def process_advantages(
    step_rewards: Tensor,
    step_ends: Tensor,
    lengths: Tensor,
    *,
    width: int,
    ddof: int = 1,
    eps: float = 1e-4,
    max_steps: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Each token gets the sum of the normalised rewards of the steps that end at it or after it.

        R[p]        = all step rewards of all G completions of prompt p
        a[p, g, s]  = (r[p, g, s] - mean(R[p])) / (std(R[p]) + eps)
        A[p, g, t]  = sum over s with end[p, g, s] >= t of a[p, g, s],   then clamped to [-cap, cap]

    The last token of a step belongs to it; tokens after the last step get 0. The sums grow with the number of steps: a
    chain of ten good steps has ten times the advantage of one good step, and a long bad one is pushed down as much.
    max_steps and cap bound that; :func:`dropped_steps` and :func:`capped_tokens` count how often.

    Args:
        step_rewards: ``[P, G, S]`` float32 or float64, padded with nan. nan = no such step, or one that was not scored:
            it leaves the statistics, adds nothing and ends nowhere.
        step_ends: ``[P, G, S]`` int64, index of the step's last token within the completion (0 is the completion's
            first token). Where the reward is nan it may hold anything. Steps may come in any order, and several may end
            at one token.
        lengths: ``[P, G]`` int64, in tokens, each in ``[0, width]``.
        width: tokens of the longest completion, or more.
        ddof: 1 divides the sum of squares by n - 1, 0 by n, with n the steps of the whole group.
        eps: at least 0, in units of reward.
        max_steps: at least 1; of each completion only the steps that end first, so many, count, and the others are
            dropped before the statistics are taken. None: all.
        cap: above 0, bound for the absolute advantage of a token. None: no bound.

    Returns:
        ``[P, G, width]`` of the dtype of ``step_rewards``, without unit; completion-aligned: entry t speaks about the
        completion's token t. Exactly 0 beyond a completion's length, and everywhere in a group whose step rewards are
        all equal or fewer than two. With one step per completion, at its last token, these are the advantages of
        :func:`~oncurve.functional.advantages.group_normalised`.

    Raises:
        ValueError: a scored step that ends outside its completion (named by prompt, sample and step), an infinite
            reward, a length outside ``[0, width]``, a wrong shape or constant.

    Source: DeepSeekMath (arXiv 2402.03300) section 4.1.3. The paper gives neither ddof nor eps. Deviations: max_steps
    and cap are not in the paper (None gives it); sums are taken in float64.

    >>> rewards = torch.tensor([[[1.0, 0.0], [1.0, float("nan")]]])
    >>> ends = torch.tensor([[[0, 2], [1, 0]]])
    >>> process_advantages(rewards, ends, torch.tensor([[3, 3]]), width=4, ddof=0, eps=0.0)
    tensor([[[-0.7071, -1.4142, -1.4142,  0.0000],
             [ 0.7071,  0.7071,  0.0000,  0.0000]]])
    """
    check_scores("step_rewards", step_rewards, "PGS")
    check_ids("step_ends", step_ends)
    check_same_shape("step_ends", step_ends, "step_rewards", step_rewards)
    check_ids("lengths", lengths)
    if lengths.shape != step_rewards.shape[:2]:
        raise ValueError(
            f"lengths must have shape [P, G] with the P and G of step_rewards {list(step_rewards.shape)}, "
            f"got {list(lengths.shape)}"
        )
    check_ddof_and_eps(ddof, eps)
    if cap is not None:
        _check_cap(cap)
    _check_ends(step_rewards, step_ends, lengths, width)
    kept = _first_to_end(step_rewards, step_ends, max_steps)
    pooled = step_rewards.masked_fill(~kept, math.nan).flatten(start_dim=1)
    normal = normalised(pooled, ddof, eps).reshape(step_rewards.shape)
    # One column more than there are tokens, for the zeros of what does not count.
    at_end = torch.zeros(*lengths.shape, width + 1, dtype=torch.float64, device=normal.device)
    at_end.scatter_add_(2, step_ends.masked_fill(~kept, width), normal)
    advantages = at_end.flip(2).cumsum(dim=2).flip(2)[..., :width]
    if cap is not None:
        advantages = advantages.clamp(-cap, cap)
    return advantages.to(step_rewards.dtype)


def dropped_steps(step_rewards: Tensor, *, max_steps: int | None) -> Tensor:
    """How many steps of each completion ``max_steps`` leaves out.

        dropped[p, g] = max(scored steps of [p, g] - max_steps, 0)

    Args:
        step_rewards: ``[P, G, S]`` float32 or float64; nan = no step.
        max_steps: as in :func:`process_advantages`; None drops nothing.

    Returns:
        int64 ``[P, G]``, in steps.

    Source: the steps of DeepSeekMath (arXiv 2402.03300) section 4.1.3; the bound is not in the paper.

    >>> dropped_steps(torch.tensor([[[1.0, 0.0, 1.0], [1.0, 0.0, float("nan")]]]), max_steps=2)
    tensor([[1, 0]])
    """
    check_float("step_rewards", step_rewards)
    check_axes("step_rewards", step_rewards, "PGS")
    steps = (~step_rewards.isnan()).sum(dim=2)
    if max_steps is None:
        return torch.zeros_like(steps)
    _check_max_steps(max_steps)
    return (steps - max_steps).clamp(min=0)


def capped_tokens(advantages: Tensor, *, cap: float | None) -> Tensor:
    """How many tokens of each completion have an advantage at the cap.

        capped[p, g] = count of t with abs(A[p, g, t]) >= cap

    Args:
        advantages: ``[P, G, T]`` float32 or float64, from :func:`process_advantages` with that cap or with none: the
            count is the same.
        cap: above 0; None caps nothing.

    Returns:
        int64 ``[P, G]``, in tokens. Divided by the lengths it is the share of capped tokens.

    Source: the advantages of DeepSeekMath (arXiv 2402.03300) section 4.1.3; the cap is not in the paper.

    >>> capped_tokens(torch.tensor([[[2.0, -2.0, 0.5], [-3.0, 0.0, 0.0]]]), cap=2.0)
    tensor([[2, 1]])
    """
    check_float("advantages", advantages)
    check_axes("advantages", advantages, "PGT")
    if cap is None:
        return torch.zeros(advantages.shape[:2], dtype=torch.int64, device=advantages.device)
    _check_cap(cap)
    # The cap as it is after rounding to the dtype of the advantages, or float32(0.7) would be under 0.7.
    bound = torch.tensor(cap, dtype=advantages.dtype, device=advantages.device)
    return (advantages.abs() >= bound).sum(dim=2)


def _first_to_end(step_rewards: Tensor, step_ends: Tensor, max_steps: int | None) -> Tensor:
    """bool ``[P, G, S]``: the scored steps that count."""
    scored = ~step_rewards.isnan()
    if max_steps is None:
        return scored
    _check_max_steps(max_steps)
    last = torch.iinfo(torch.int64).max
    order = step_ends.masked_fill(~scored, last).argsort(dim=2, stable=True)
    return scored & (order.argsort(dim=2) < max_steps)


def _check_ends(step_rewards: Tensor, step_ends: Tensor, lengths: Tensor, width: int) -> None:
    wrong_lengths = (lengths < 0) | (lengths > width)
    if bool(wrong_lengths.any()):
        prompt, sample = first(wrong_lengths)
        raise ValueError(
            f"lengths[{prompt}, {sample}] is {int(lengths[prompt, sample])}; it must be between 0 and the width {width}"
        )
    outside = ~step_rewards.isnan() & ((step_ends < 0) | (step_ends >= lengths.unsqueeze(2)))
    if bool(outside.any()):
        prompt, sample, step = first(outside)
        raise ValueError(
            f"prompt {prompt}, sample {sample}, step {step} ends at token {int(step_ends[prompt, sample, step])}, "
            f"outside its completion of {int(lengths[prompt, sample])} tokens; ends count from 0 within the completion"
        )


def _check_max_steps(max_steps: int) -> None:
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")


def _check_cap(cap: float) -> None:
    if not (cap > 0 and math.isfinite(cap)):
        raise ValueError(f"cap must be a finite number above 0, got {cap}")

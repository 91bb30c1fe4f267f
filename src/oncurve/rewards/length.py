"""Rewards that look at the length of a completion, or at what it says twice. The maths is in ``functional.shaping``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncurve.rewards.correctness import accuracy

Tokens = Sequence[Sequence[int]]


def overlong_reward(completion_ids: Tokens, max_length: int, buffer: int, **kwargs: Any) -> list[float]:
    """The ``overlong`` reward: 0 up to ``max_length - buffer`` tokens, then falling to -1 at ``max_length``.

    Tokens are counted with the end-of-sequence token. At ``max_length`` and beyond it is -1, cut or not. An empty list
    of tokens is 0. See ``functional.soft_overlong`` (DAPO, arXiv 2503.14476, eq. 13).

    Raises:
        ValueError: buffer is not between 1 and max_length.
    """
    _whole(max_length=max_length, buffer=buffer)
    torch, shaping = _maths()
    return shaping.soft_overlong(_lengths(torch, completion_ids), max_length=max_length, buffer=buffer).tolist()


def cosine_reward(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    completion_ids: Tokens,
    answer: Sequence[Any],
    max_length: int,
    correct_shortest: float = 2.0,
    correct_longest: float = 1.0,
    wrong_shortest: float = -10.0,
    wrong_longest: float = 0.0,
    exceeding: float = -10.0,
    box_in_thoughts: bool = False,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The ``cosine`` reward, in place of ``accuracy``: right answers get less the longer they are, wrong ones more.

    Whether an answer is right is what ``accuracy`` says, and what that leaves unscored is unscored here. The length is
    in tokens; at ``max_length`` and beyond the reward is ``exceeding``, right or wrong. See
    ``functional.cosine_length`` (Yeo et al., arXiv 2502.03373), whose authors' defaults these are.

    Raises:
        ValueError: max_length is under 1, or a reward is not finite.
        OncurveError: as ``accuracy``.
    """
    _whole(max_length=max_length)
    right = accuracy(completions, answer, box_in_thoughts=box_in_thoughts)
    torch, shaping = _maths()
    rewards = shaping.cosine_length(
        _lengths(torch, completion_ids),
        torch.tensor([value == 1.0 for value in right], dtype=torch.bool),
        max_length=max_length,
        correct_shortest=correct_shortest,
        correct_longest=correct_longest,
        wrong_shortest=wrong_shortest,
        wrong_longest=wrong_longest,
        exceeding=exceeding,
    ).tolist()
    if log_metric is not None and right:
        log_metric("cosine/right", sum(value == 1.0 for value in right) / len(right))
    return [None if known is None else reward for known, reward in zip(right, rewards, strict=True)]


def repetition_reward(completion_ids: Tokens, n: int = 20, max_penalty: float = -1.0, **kwargs: Any) -> list[float]:
    """The ``repetition`` reward: the share of a completion's n-grams of tokens that were there before, times
    ``max_penalty``.

    0 for a completion without repetition, or of fewer than ``n`` tokens. See ``functional.repetition_penalty`` (Yeo et
    al., arXiv 2502.03373, appendix C.2); there only wrong answers are punished, here all. The default ``n`` is ours:
    what is said twice within twenty tokens is copied, while three tokens recur in any text.

    Raises:
        ValueError: n is under 1, or max_penalty above 0.
    """
    _whole(n=n)
    return _maths()[1].repetition_penalty(completion_ids, n=n, max_penalty=max_penalty).tolist()


def _lengths(torch: Any, completion_ids: Tokens) -> Any:
    return torch.tensor([len(ids) for ids in completion_ids], dtype=torch.int64)


def _whole(**given: Any) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} = {value!r}: give a whole number")


def _maths() -> tuple[Any, Any]:
    """torch and the maths, when they are needed: a recipe must be checked without loading torch."""
    return importlib.import_module("torch"), importlib.import_module("oncurve.functional.shaping")

"""Which prompts are held out and in what order the rest is used: pure functions of the seed.

Nothing here keeps a position, so a resumed run needs none: iteration i asks for its prompts by number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from oncurve.types import Message, OncurveError, Prompt


def order(n: int, seed: int, epoch: int) -> list[int]:
    """A permutation of ``range(n)``."""
    return permutation(n, f"order/{seed}/{epoch}")


def prompts_for_iteration(n: int, per_iteration: int, seed: int, iteration: int) -> list[int]:
    """Which of ``n`` prompts iteration number ``iteration`` (from 0) samples from: ``per_iteration`` different ones.

    Every epoch is cut into whole iterations; the ``n % per_iteration`` prompts left at the end of its permutation sit
    this epoch out. So no iteration holds a prompt twice, and over the epochs every prompt comes equally often.

    Raises OncurveError if there are fewer than ``per_iteration`` prompts.
    """
    if per_iteration > n:
        raise OncurveError(
            f"grpo.prompts_per_iteration is {per_iteration}, but there are only {n} training prompts; lower it or "
            "give more"
        )
    epoch, index = divmod(iteration, n // per_iteration)
    return order(n, seed, epoch)[index * per_iteration : (index + 1) * per_iteration]


def further_prompts(n: int, count: int, seed: int, iteration: int, used: Sequence[int]) -> list[int]:
    """``count`` more of ``n`` prompts for that iteration, none of which it has ``used``; fewer if there are no more.

    They are drawn apart from the epochs' order, which goes on as if they had not been.
    """
    if count <= 0:
        return []
    taken = set(used)
    return [index for index in permutation(n, f"further/{seed}/{iteration}") if index not in taken][:count]


def apart(
    train: Sequence[Prompt], given: Sequence[Prompt] | None, eval_size: int, seed: int
) -> tuple[list[Prompt], list[Prompt]]:
    """(to train on, held out): the first ``eval_size`` of the ``given`` ones, or that many split off ``train``. What
    asks a held-out question is not trained on.

    Raises OncurveError if nothing would be left to train on.
    """
    if given is None:
        return split_off(train, eval_size, seed)
    held_out = list(given[:eval_size])
    kept = leave_out(train, held_out)
    if not kept:
        raise OncurveError("data.train leaves no prompt to train on: each of them asks what a held-out prompt asks")
    return kept, held_out


def split_off(prompts: Sequence[Prompt], eval_size: int, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """(train, held out), each in the order of the data set.

    The held-out prompts are ``eval_size`` different questions. Whatever asks one of them again is in neither part: the
    difference in number is what leaked.

    Raises OncurveError if nothing would be left to train on.
    """
    first: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first.setdefault(question(prompt.raw), index)
    if eval_size >= len(first):
        raise OncurveError(
            f"data.eval_size is {eval_size}, but the training data has only {len(first)} different prompts; lower it, "
            "or give data.eval"
        )
    indices = list(first.values())
    chosen = sorted(indices[i] for i in permutation(len(indices), f"held out/{seed}")[:eval_size])
    held_out = [prompts[i] for i in chosen]
    return leave_out(prompts, held_out), held_out


def leave_out(prompts: Sequence[Prompt], held_out: Sequence[Prompt]) -> list[Prompt]:
    """``prompts`` without those that ask what a held-out prompt asks."""
    asked = {question(prompt.raw) for prompt in held_out}
    return [prompt for prompt in prompts if question(prompt.raw) not in asked]


def question(raw: str | Sequence[Message]) -> str:
    """What makes two prompts the same question: their text, without regard to white space."""
    if isinstance(raw, str):
        return " ".join(raw.split())
    return json.dumps([(message["role"], question(message["content"])) for message in raw])


def permutation(n: int, key: str) -> list[int]:
    """A permutation of ``range(n)`` that is a function of ``key`` alone."""
    # Sorting by random() rather than shuffle(): Python promises to keep the sequence of the former only.
    draws = random.Random(key)
    keys = [draws.random() for _ in range(n)]
    return sorted(range(n), key=keys.__getitem__)

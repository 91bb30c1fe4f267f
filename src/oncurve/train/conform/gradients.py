"""The gradient of one step, taken in ways that must not change it. The step is the trainer's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oncurve.config import Grpo, Sft
from oncurve.functional import denominator
from oncurve.train import sft, update
from oncurve.train.conform.check import Check
from oncurve.train.conform.made_up import Row, made_up_work, turned, widened
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans
from oncurve.types import Demonstration, OncurveError

PADDING = 8

RANDOM = "something in the model draws at random (dropout?) or keeps a state from call to call"
ROWS = "a row feels the rows beside it, or the loss is divided by something of the microbatch"
COUNTS = "a step is divided by something else than its own rows, tokens or prompts"
PADDED = "padding is read: by attention, by positions, or by a layer that mixes rows (BatchNorm, expert capacity)"
PACKED = "the sequences of a packed row see one another; leave sft.packing at false"

Gradient = list[Tensor]
Step = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Way:
    """Another way to the same gradient."""

    name: str
    gradient: Callable[[], Gradient] | None
    """None: cannot be taken; ``hint`` says why."""
    hint: str
    counts: bool = True


def gradient_of(parts: Parts, step: Step) -> Gradient:
    """What ``step`` leaves in the ``.grad`` of every trained parameter."""
    module = parts.lm.module
    module.zero_grad(set_to_none=True)
    try:
        step()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained]
    finally:
        module.zero_grad(set_to_none=True)


def relative_error(one: Gradient, other: Gradient) -> float:
    """Of two gradients, over all parameters together."""
    difference = _norm([a.double() - b.double() for a, b in zip(one, other, strict=True)])
    return difference / max(_norm(one), _norm(other))


def _norm(gradient: Gradient) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in gradient))


def compared(kind: str, base: Gradient, ways: Sequence[Way], bound: float) -> list[Check]:
    norm = _norm(base)
    if not 0.0 < norm < math.inf:
        raise OncurveError(f"{kind}: the gradient of the made-up step has the norm {norm:g}: nothing can be compared")
    return [
        Check(
            f"{kind}: {way.name}",
            None if way.gradient is None else relative_error(base, way.gradient()),
            bound,
            "relative",
            way.hint,
            way.counts,
        )
        for way in ways
    ]


def grpo_checks(parts: Parts, config: Grpo, rows: Sequence[Row], bound: float) -> list[Check]:
    work = made_up_work(parts, config, rows)
    everything = list(range(len(work.batch)))
    longest = int(work.batch.lengths.max())

    def gradient(
        budget: int = config.microbatch_tokens, of: update.Work = work, minibatch: Sequence[int] = everything
    ) -> Gradient:
        cut = config.model_copy(update={"microbatch_tokens": budget})
        return gradient_of(
            parts,
            lambda: update.accumulate_gradient(parts, cut, of, list(minibatch), TokenMeans(), config.kl_coef),
        )

    def in_halves() -> Gradient:
        """Two steps of half the prompts each, weighed by what each was divided by."""
        first = work.prompts <= work.prompts.unique().double().mean()
        halves = [half.nonzero()[:, 0].tolist() for half in (first, ~first) if half.any()]
        counts = [
            denominator(
                work.batch.completion_mask[half],
                config.aggregation,
                groups=work.prompts[half],
                budget=parts.recipe.sampling.max_new_tokens,
            )
            for half in halves
        ]
        gradients = [gradient(minibatch=half) for half in halves]
        shares = [count / sum(counts) for count in counts]
        return [
            torch.stack([share * each.double() for share, each in zip(shares, same, strict=True)]).sum(dim=0)
            for same in zip(*gradients, strict=True)
        ]

    def of_rows(number: int) -> Callable[[], Gradient]:
        return lambda: gradient(budget=1 if number == 1 else number * longest)

    context = parts.lm.context
    room = PADDING if context is None else min(PADDING, context - longest)
    ways = [Way("the same step twice", gradient, RANDOM)]
    ways += [
        Way(f"microbatches of {number} row{'s or more' if number > 1 else ''}", of_rows(number), ROWS)
        for number in (1, 2, 3)
        if number == 1 or number * longest <= config.microbatch_tokens
    ]
    ways += [
        Way("two halves added up", in_halves, COUNTS),
        Way("rows in another order", lambda: gradient(of=turned(work), minibatch=[*everything[1:], 0]), ROWS),
        Way(f"{room} more tokens of padding", lambda: gradient(of=widened(work, room, parts.pad_id)), PADDED)
        if room > 0
        else Way("more padding", None, "a row fills the model's context"),
    ]
    return compared("grpo", gradient(), ways, bound)


def sft_checks(parts: Parts, config: Sft, rows: Sequence[Row], bound: float) -> list[Check]:
    demonstrations = [Demonstration(prompt.token_ids, completion.token_ids) for prompt, completion in rows]
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in demonstrations)
    room = min(3 * longest, parts.lm.context or 3 * longest)

    def gradient(
        budget: int = config.microbatch_tokens, packing: bool = False, of: Sequence[Demonstration] = demonstrations
    ) -> Gradient:
        cut = config.model_copy(update={"microbatch_tokens": budget, "packing": packing})
        return gradient_of(parts, lambda: sft.accumulate_gradient(parts, cut, list(of)))

    ways = [
        Way("the same step twice", gradient, RANDOM),
        Way("microbatches of 1 row", lambda: gradient(budget=1), ROWS),
        Way("rows in another order", lambda: gradient(of=demonstrations[::-1]), ROWS),
        Way("packed", lambda: gradient(budget=room, packing=True), PACKED, counts=config.packing),
    ]
    return compared("sft", gradient(), ways, bound)

"""The policy's log-probs of the sampled tokens, by every way there is to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.data.collate import collate, packed
from oncurve.functional import selected_logprobs
from oncurve.models.kv_cache import growing_cache
from oncurve.models.token_logprobs import token_logprobs
from oncurve.train.conform.check import Bounds, Check
from oncurve.train.conform.gradients import PACKED, PADDING, RANDOM, ROWS
from oncurve.train.conform.made_up import Row
from oncurve.train.setup import Parts
from oncurve.train.step import recomputing
from oncurve.types import Batch

ENGINE = "the engine draws from another distribution: other weights, temperature, positions, or padding that it reads"
CACHE = "a model that goes on from its key-value cache is not the model that reads everything at once"

Pair = tuple[Sequence[int], Sequence[int]]


def logprob_checks(parts: Parts, rows: Sequence[Row], bounds: Bounds) -> list[Check]:
    lm = parts.lm
    pairs: list[Pair] = [(prompt.token_ids, completion.token_ids) for prompt, completion in rows]

    def of(batch: Batch) -> Tensor:
        """``[N]`` of the completion tokens, in reading order."""
        logprobs, _ = token_logprobs(lm, batch, parts.recipe.sampling.temperature)
        return logprobs.detach()[batch.completion_mask].double()

    def together(chosen: Sequence[Pair]) -> Batch:
        return collate(chosen, parts.pad_id, device=lm.device)

    # Where a row padded on the left has padding, a packed row has another sequence; any will do.
    junk = (pairs[-1][0][:PADDING], pairs[0][1][:1])
    with torch.no_grad():
        whole = of(together(pairs))
        alone = torch.cat([of(together([pair])) for pair in pairs])
        behind = torch.cat([of(packed([junk, pair], 2**62, lm.device)[0])[1:] for pair in pairs])
        cached = torch.cat([_cached(parts, pair) for pair in pairs])
    with recomputing(lm.module, parts.recipe.model.gradient_checkpointing):
        training = of(together(pairs))
    sampled = torch.tensor([value for _, completion in rows for value in completion.sampler_logprobs]).to(whole)
    packs = parts.recipe.sft is not None and parts.recipe.sft.packing

    def check(name: str, found: Tensor, hint: str, bound: float = bounds.logprobs, *, counts: bool = True) -> Check:
        return Check(f"log-probs: {name}", float((found - whole).abs().max()), bound, "nats", hint, counts)

    return [
        check("one row at a time", alone, ROWS),
        check("in a forward pass for training", training, RANDOM),
        check("token by token from the cache", cached, CACHE),
        check("of the engine", sampled, ENGINE, bounds.engine),
        check("behind another sequence, packed", behind, PACKED, counts=packs),
    ]


def _cached(parts: Parts, pair: Pair) -> Tensor:
    """``[N]`` of one completion, with the prompt read once and then one token after another."""
    lm, (prompt, completion) = parts.lm, pair
    cache = growing_cache(lm.module.config, len(completion))
    tokens = torch.tensor([[*prompt, *completion]], device=lm.device)
    at = len(prompt)
    hidden = [lm.hidden(tokens[:, :at], cache=cache)[:, -1:]]
    hidden += [lm.hidden(tokens[:, t : t + 1], cache=cache) for t in range(at, tokens.shape[1] - 1)]
    logits = lm.logits(torch.cat(hidden, dim=1)[0])
    return selected_logprobs(logits, tokens[0, at:], parts.recipe.sampling.temperature)[0].double()

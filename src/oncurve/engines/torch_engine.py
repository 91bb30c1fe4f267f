"""The embedded engine: batched sampling with plain torch, from the very weights that are trained.

A prompt is read once for its whole group; rows that are finished leave the batch; a token is the inverse CDF of its
distribution at one uniform number, which depends on (seed, iteration, prompt id, sample number, position) alone. So the
same seed gives the same completions whatever the batch size, as long as no uniform number falls into the rounding error
(about 1e-7 in float32) between two ways of batching the same matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache

from oncurve.functional.decoding import filter_logits, inverse_cdf, row_keys, uniforms
from oncurve.functional.masking import completion_lengths, truncated
from oncurve.models.causal_lm import CausalLM, eval_mode
from oncurve.models.kv_cache import growing_cache
from oncurve.types import Completion, Group, OncurveError, Prompt, SamplingParams

# Leaving costs a copy of the cache, so rows that have ended are carried along until they are a quarter of the batch.
_CROWDED = 0.75

# Tokens by which the cache grows at a time: few enough that little memory lies idle when completions end early, enough
# that copying the cache, once in so many tokens, is lost in the time of reading it for each.
_CACHE_ROOM = 256


@dataclass(frozen=True)
class _Row:
    prompt: int
    sample: int


class TorchEngine:
    """Implements ``oncurve.types.Engine``."""

    def __init__(
        self,
        lm: CausalLM,
        *,
        eos_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        max_rows: int,
    ) -> None:
        """``eos_ids``: any of these ends a completion. ``decode``: token ids to text, special tokens left out.
        ``max_rows``: completions decoded side by side."""
        self._lm = lm
        self._eos_ids = sorted(set(eos_ids))
        self._decode = decode
        self._max_rows = max_rows

    def load_weights(self, policy: nn.Module) -> None:
        """Nothing to do when ``policy`` is the module this engine samples from; otherwise a copy of its weights."""
        if policy is not self._lm.module:
            self._lm.module.load_state_dict(policy.state_dict())

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        iteration: int,
    ) -> list[Group]:
        """``group_size`` completions for each of ``prompts``, in their order.

        ``sampler_logprobs`` are of the distribution that was drawn from, filters included; for greedy decoding, of
        temperature 1. The module is in eval mode meanwhile, and then again in the mode it was found in.

        Raises OncurveError for a prompt that is empty, or that leaves no room in the model's context for
        ``params.max_new_tokens``.
        """
        for prompt in prompts:
            _check_fits(prompt, params.max_new_tokens, self._lm.context)
        done: dict[tuple[int, int], Completion] = {}
        # In train mode there may be dropout, and with gradient checkpointing some models drop their cache unasked: each
        # token would be drawn as if nothing stood before it.
        with eval_mode(self._lm.module):
            for chunk in self._chunks(prompts, group_size):
                keys = row_keys(
                    seed,
                    iteration,
                    torch.tensor([prompts[row.prompt].id for row in chunk]),
                    torch.tensor([row.sample for row in chunk]),
                ).to(self._lm.device)
                completions = self._decode_rows([prompts[row.prompt] for row in chunk], keys, params)
                done |= {(row.prompt, row.sample): c for row, c in zip(chunk, completions, strict=True)}
        return [
            Group(prompt, tuple(done[index, sample] for sample in range(group_size)))
            for index, prompt in enumerate(prompts)
        ]

    def _chunks(self, prompts: Sequence[Prompt], group_size: int) -> Iterator[list[_Row]]:
        """At most ``max_rows`` rows, the rows of a prompt side by side, prompts of like length together.

        Where padding would be read as if it were text, the prompts of a chunk are all of one length.
        """
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index].token_ids))
        one_length = not self._lm.padding_is_unseen
        chunk: list[_Row] = []
        for row in [_Row(p, s) for p in by_length for s in range(group_size)]:
            other_length = chunk and len(prompts[row.prompt].token_ids) != len(prompts[chunk[0].prompt].token_ids)
            if len(chunk) == self._max_rows or (one_length and other_length):
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _decode_rows(self, prompts: list[Prompt], keys: Tensor, params: SamplingParams) -> list[Completion]:
        """One completion for each of ``prompts [B]``, drawn with ``keys [B]``."""
        lm, limit = self._lm, params.max_new_tokens
        hidden, cache, of_prompt = _read(lm, prompts, room=min(limit, _CACHE_ROOM))
        lengths, width = of_prompt.sum(dim=1), of_prompt.shape[1]
        padded = not bool(of_prompt.all())
        visible = torch.cat([of_prompt, of_prompt.new_ones(len(prompts), limit)], dim=1)

        eos = torch.tensor(self._eos_ids, dtype=torch.int64, device=lm.device)
        ids = torch.zeros(len(prompts), limit, dtype=torch.int64, device=lm.device)
        logprobs = torch.zeros(len(prompts), limit, dtype=torch.float32, device=lm.device)
        rows = torch.arange(len(prompts), device=lm.device)  # still in the batch
        running = torch.ones_like(rows, dtype=torch.bool)  # [len(rows)]: have not ended
        for position in range(limit):
            chosen, chosen_logprobs = _draw(lm.logits(hidden), keys[rows], position, params)
            ids[rows, position] = chosen
            logprobs[rows, position] = chosen_logprobs
            running = running & ~torch.isin(chosen, eos)
            left = int(running.sum())
            if left == 0 or position + 1 == limit:
                break
            if left <= _CROWDED * len(rows):
                stay = running.nonzero()[:, 0]
                cache.reorder_cache(stay)  # type: ignore[arg-type]
                rows, chosen, running = rows[stay], chosen[stay], running[stay]
            hidden = lm.hidden(
                chosen[:, None],
                cache=cache,
                visible=visible[rows, : width + position + 1] if padded else None,
                positions=(lengths[rows] + position)[:, None],
            )[:, -1]
        # What a row drew after it had ended is cut off here.
        counts = completion_lengths(ids, self._eos_ids).tolist()
        cut = truncated(ids, self._eos_ids).tolist()
        return [
            self._completion(row_ids[:count], row_logprobs[:count], was_cut)
            for row_ids, row_logprobs, count, was_cut in zip(ids.tolist(), logprobs.tolist(), counts, cut, strict=True)
        ]

    def _completion(self, ids: list[int], logprobs: list[float], was_cut: bool) -> Completion:
        return Completion(tuple(ids), self._decode(ids), tuple(logprobs), was_cut)


def _read(lm: CausalLM, prompts: Sequence[Prompt], room: int) -> tuple[Tensor, Cache, Tensor]:
    """Read every different prompt once, and give each of its rows a copy of what was read.

    Padding stands on the left: to a model that counts slots (for a sliding window, or for positions), a prompt and its
    completion must be without a gap.

    Returns:
        hidden ``[B, D]``: what predicts the first new token.
        cache: of B rows, with space for ``room`` more tokens before it has to grow.
        visible ``[B, W]``: bool, True = prompt, not padding; W = the longest prompt.
    """
    place_of = {ids: place for place, ids in enumerate(dict.fromkeys(prompt.token_ids for prompt in prompts))}
    width = max(len(ids) for ids in place_of)
    tokens = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in place_of])
    visible = torch.tensor([[False] * (width - len(ids)) + [True] * len(ids) for ids in place_of])
    tokens, visible = tokens.to(lm.device), visible.to(lm.device)
    padded = not bool(visible.all())
    cache = growing_cache(lm.module.config, room)
    hidden = lm.hidden(
        tokens,
        cache=cache,
        visible=visible if padded else None,
        positions=(visible.cumsum(dim=1) - 1).clamp(min=0),
    )[:, -1]
    rows = torch.tensor([place_of[prompt.token_ids] for prompt in prompts], device=lm.device)
    cache.reorder_cache(rows)  # type: ignore[arg-type]
    return hidden[rows], cache, visible[rows]


def _draw(logits: Tensor, keys: Tensor, position: int, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Next token ``[B]`` and its log-probability ``[B]`` under the distribution it was drawn from."""
    logits = logits.float()
    if params.temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        logits = filter_logits(logits / params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
        ids = inverse_cdf(logits, 1.0, uniforms(keys, position))
    # Not ``selected_logprobs``: it measures the entropy too, which took longer than the draw itself.
    return ids, logits.log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]


def _check_fits(prompt: Prompt, max_new_tokens: int, context: int | None) -> None:
    length = len(prompt.token_ids)
    if length == 0:
        raise OncurveError(f"prompt {prompt.id} is empty; a completion needs at least one token to follow")
    if context is not None and length + max_new_tokens > context:
        raise OncurveError(
            f"prompt {prompt.id} has {length} tokens and max_new_tokens is {max_new_tokens}, but the model's context "
            f"is {context} tokens; at most {context - max_new_tokens} fit"
        )
